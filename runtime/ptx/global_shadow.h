#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/ptx/memory.h"
#include "runtime/ptx/traffic.h"

namespace vqllm::ptx {

struct Block;
struct Warp;

/// What all workers of a launch know of global memory: which sectors were touched, and which blocks wrote and
/// read each word. All of it is a maximum over the accesses, so it does not depend on the order of blocks.
class LaunchShadow {
 public:
  /// `ordered`: the blocks run one after another and races are judged at once, with what the blocks told
  /// each other through fences and atomics; else they are judged by Races() at the end.
  LaunchShadow(const Memory& memory, bool races, bool ordered, uint64_t blocks);

  struct Race {
    uint32_t pc = 0;
    uint64_t block = 0;
    uint64_t address = 0;
    uint64_t other_block = 0;
    bool write_write = false;
  };
  /// Words that one block wrote and another wrote or read.
  std::vector<Race> Races() const;
  uint64_t LoadedSectors() const;
  uint64_t StoredSectors() const;

 private:
  friend class GlobalShadow;
  // Zero is none; otherwise block + 1 (and the instruction below it), minima as complements.
  struct Reads {
    std::atomic<uint32_t> last{0};
    std::atomic<uint32_t> first{0};
  };
  struct Writes {
    std::atomic<uint64_t> last{0};
    std::atomic<uint64_t> first{0};
  };
  template <typename T>
  using ZeroPages = std::unique_ptr<T, void (*)(void*)>;
  struct Shadow {
    uint64_t base = 0;
    uint64_t sectors = 0;
    std::unique_ptr<std::atomic<uint8_t>[]> touched;  // bit 0 loaded, bit 1 stored
    ZeroPages<Reads> reads{nullptr, nullptr};         // of each word
    ZeroPages<Reads> sector_reads{nullptr, nullptr};  // of whole sectors: most loads are
    ZeroPages<Writes> writes{nullptr, nullptr};
  };

  static uint32_t LastRead(const Shadow& shadow, uint64_t sector, uint64_t word);
  static uint32_t FirstRead(const Shadow& shadow, uint64_t sector, uint64_t word);

  bool races_;
  bool ordered_;
  std::vector<Shadow> segments_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> releases_;  // ordered: blocks by address of the atomic
};

/// One worker's part: the sectors that its block has touched.
class GlobalShadow {
 public:
  GlobalShadow(LaunchShadow& launch, const Memory& memory, uint64_t blocks);
  void BeginBlock(uint64_t block);

  enum class Access : uint8_t { kLoad, kStore, kAtomic };
  /// Records a request and gives the number of sectors that this block had not touched in that way.
  /// `partial` stores of less than a word are not judged: their neighbours may belong to other blocks.
  uint32_t Touch(Warp& warp, int segment, const SectorList& list, Access access, bool partial);
  /// An atomic on a word: what blocks published there before is visible now.
  void Synchronise(uint64_t address);
  void Fence() { fenced_ = true; }

 private:
  struct Sector {
    uint32_t block = 0;  // index + 1
    uint8_t loaded = 0;  // words
    uint8_t stored = 0;
  };
  void Record(Warp& warp, LaunchShadow::Shadow& shadow, uint64_t sector, uint8_t words, bool is_store);
  void JudgeNow(Warp& warp, const LaunchShadow::Shadow& shadow, uint64_t sector, uint64_t word,
                bool is_store);
  bool Ordered(uint64_t other) const { return other == block_ || visible_[other]; }

  LaunchShadow& launch_;
  std::vector<std::vector<Sector>> sectors_;
  uint64_t block_ = 0;
  bool fenced_ = false;
  std::vector<uint8_t> visible_;  // ordered: blocks whose writes this one may see
  std::vector<uint32_t> visible_list_;
  std::unordered_map<uint64_t, size_t> seen_releases_;
};

}  // namespace vqllm::ptx
