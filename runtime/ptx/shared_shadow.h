#pragma once

#include <cstdint>
#include <vector>

#include "runtime/ptx/hazard_log.h"

namespace vqllm::ptx {

struct Warp;

/// What is known of every word of a block's shared memory: who wrote and read it since the last barrier,
/// which bytes have a value, and which wait for a cp.async. Reports races, uninitialised reads and touched
/// copies, races with both of their sides. A word that is accessed in parts is known byte by byte.
class SharedShadow {
 public:
  void Resize(uint32_t bytes);
  void BeginBlock();
  /// All warps have met: what came before is ordered.
  void Barrier() { ++epoch_; }

  /// `bytes` is 1, 2 or a multiple of 4, aligned; the range lies within shared memory.
  void Read(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
    const uint32_t* quiet = &quiet_[address >> 2];
    uint32_t differs = *quiet ^ epoch_;
    for (uint32_t w = 1; w < bytes / 4; ++w) differs |= quiet[w] ^ epoch_;
    if (differs != 0) ReadWords(warp, lane, address, bytes);
  }
  void Write(Warp& warp, int lane, uint32_t address, uint32_t bytes);
  void Atomic(Warp& warp, int lane, uint32_t address, uint32_t bytes);
  void BeginCopy(Warp& warp, int lane, uint32_t address, uint32_t bytes);
  void EndCopy(Warp& warp, int lane, uint32_t address, uint32_t bytes);

 private:
  static constexpr uint16_t kNobody = 0xffff;

  /// Who accessed a word, or a byte of one. Threads are numbers within the block.
  struct Cell {
    uint32_t write_epoch = 0;
    uint32_t write_step = 0;  ///< Warp::sync_step of the writer
    uint32_t write_pc = 0;
    uint32_t read_epoch = 0;
    uint32_t read_step = 0;
    uint32_t read_pc = 0;
    uint32_t second_pc = 0;
    uint16_t write_thread = 0;
    /// Of one warp: a reader since its last __syncwarp and another one; of several: one of each of two.
    uint16_t read_thread = 0;
    uint16_t second_thread = kNobody;
    bool several_warps = false;  ///< read since the last barrier
    bool atomic = false;         ///< the last write was an atomic: further atomics do not race with it
  };
  struct Word {
    Cell cell;
    uint32_t split_epoch = 0;  ///< in it, bytes_ holds the cells of this word
  };
  /// The cp.async that a pending word waits for.
  struct Copy {
    uint32_t pc = 0;
    uint16_t thread = 0;
  };
  void ReadWords(Warp& warp, int lane, uint32_t address, uint32_t bytes);
  template <typename Body>
  void ForCells(uint32_t word, uint8_t mask, Body&& body);
  void Split(uint32_t word);
  // Each reports the race of an access with what the cell knows, and tells whether there was one.
  bool RacesWithWrite(Warp& warp, const Cell& cell, int lane, uint32_t address, bool is_read) const;
  bool RacesWithReads(Warp& warp, const Cell& cell, int lane, uint32_t address) const;
  void NoteRead(const Warp& warp, Cell& cell, uint16_t thread) const;
  void NoteWrite(const Warp& warp, Cell& cell, uint16_t thread, bool atomic) const;
  void CheckValue(Warp& warp, uint32_t word, uint8_t mask, int lane, uint32_t address, const char* what);
  void ReportPending(Warp& warp, uint32_t word, int lane, uint32_t address, const char* what);
  void WriteWord(Warp& warp, uint32_t word, uint8_t mask, int lane, uint32_t address, bool is_copy);

  std::vector<Word> words_;
  std::vector<Cell> bytes_;           // four a word, once a word has been accessed in parts
  std::vector<uint8_t> initialised_;  // of each word, a bit a byte
  std::vector<uint8_t> pending_;      // of each word, a bit a byte
  std::vector<Copy> copies_;          // of each word, while it is pending
  /// The epoch in which a further read of this word has nothing to check and nothing to record: written
  /// before, read by several warps since. What a table looks like that all warps look up in.
  std::vector<uint32_t> quiet_;
  uint32_t epoch_ = 1;  // grows over all blocks, so nothing but the bytes' state is cleared between them
};

}  // namespace vqllm::ptx
