#pragma once

#include <cstdint>
#include <vector>

namespace vqllm::ptx {

struct Warp;

/// What is known of every word of a block's shared memory: who wrote and read it since the last barrier,
/// which bytes have a value, and which wait for a cp.async. Reports races, uninitialised reads and touched
/// copies.
class SharedShadow {
 public:
  void Resize(uint32_t bytes) {
    words_.resize(bytes / 4 + 8);
    quiet_.resize(bytes / 4 + 8);
  }
  void BeginBlock() {
    words_.assign(words_.size(), Word{});
    quiet_.assign(quiet_.size(), 0);
    epoch_ = 1;
  }
  /// All warps have met: what came before is ordered.
  void Barrier() { ++epoch_; }

  /// `bytes` is 1, 2 or a multiple of 4, aligned; the range lies within shared memory.
  void Read(Warp& warp, int lane, uint32_t address, uint32_t bytes);
  void Write(Warp& warp, int lane, uint32_t address, uint32_t bytes);
  void Atomic(Warp& warp, int lane, uint32_t address, uint32_t bytes);
  void BeginCopy(Warp& warp, int lane, uint32_t address, uint32_t bytes);
  void EndCopy(Warp& warp, int lane, uint32_t address, uint32_t bytes);

 private:
  struct Word {
    uint32_t write_epoch = 0;
    uint32_t read_epoch = 0;
    uint32_t write_step = 0;  ///< Warp::sync_step of the writer
    uint32_t read_step = 0;
    uint16_t write_thread = 0;
    uint16_t read_thread = 0;  ///< kMany for several
    uint16_t read_warp = 0;    ///< kMany for several
    uint8_t write_mask = 0;    ///< bytes
    uint8_t read_mask = 0;
    uint8_t initialised = 0;
    uint8_t pending = 0;
    bool atomic = false;  ///< the last write was an atomic: further atomics do not race with it
  };
  static constexpr uint16_t kMany = 0xffff;

  void CheckReadAfterWrite(Warp& warp, const Word& word, uint8_t mask, int lane, uint32_t address,
                           uint16_t thread) const;
  void WriteWord(Warp& warp, Word& word, uint8_t mask, int lane, uint32_t address, bool is_copy);

  std::vector<Word> words_;
  /// The epoch in which a further read of this word has nothing to check and nothing to record: written
  /// before, read by several warps since. What a table looks like that all warps look up in.
  std::vector<uint32_t> quiet_;
  uint32_t epoch_ = 1;
};

}  // namespace vqllm::ptx
