#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/ptx/hazard_log.h"
#include "runtime/ptx/memory.h"
#include "runtime/ptx/types.h"

namespace vqllm::ptx {

/// What all workers of a launch know of global memory: which sectors were touched, and which blocks wrote and
/// read each word, or each byte of the words that were accessed in parts. All of it is a maximum over the
/// accesses, so it does not depend on the order of blocks.
class LaunchShadow {
 public:
  /// `ordered`: the blocks run one after another and races are judged at once, with what the blocks told
  /// each other through fences and atomics; else they are judged by Races() at the end.
  LaunchShadow(const Memory& memory, bool races, bool ordered);
  ~LaunchShadow();
  LaunchShadow(const LaunchShadow&) = delete;
  LaunchShadow& operator=(const LaunchShadow&) = delete;

  struct Race {
    AccessSite writer;  ///< of the lowest block that wrote
    AccessSite other;
    uint64_t address = 0;
    bool write_write = false;
  };
  /// Words that one block wrote and another wrote or read, one race for each.
  std::vector<Race> Races() const;
  uint64_t LoadedSectors() const;
  uint64_t StoredSectors() const;

 private:
  friend class GlobalShadow;
  // An access: (block + 1) << 32 | instruction << 10 | thread of the block. Zero is none. The parser takes
  // 2^20 statements at the most, a block has up to 1024 threads.
  using Stamp = uint64_t;
  static constexpr int kThreadBits = 10;
  static constexpr int kBlockShift = 32;
  static constexpr uint8_t kWholeWord = 15;  // the mask of its bytes
  struct Stamps {
    std::atomic<Stamp> last{0};
    std::atomic<Stamp> first{0};  // its complement
    void Add(Stamp stamp) {
      Raise(last, stamp);
      Raise(first, ~stamp);
    }
    static void Raise(std::atomic<Stamp>& place, Stamp value) {
      Stamp now = place.load(std::memory_order_relaxed);
      while (now < value && !place.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
      }
    }
  };
  struct Accesses {
    Stamps reads;
    Stamps writes;
  };
  static constexpr uint64_t kPartBytes = 1024;  // what comes into being at once

  struct Shadow {
    Shadow(const Segment& segment, bool races);
    ~Shadow();
    Shadow(const Shadow&) = delete;
    Shadow& operator=(const Shadow&) = delete;
    /// The accesses of a byte; null where no word of its kibibyte was accessed in parts.
    const Accesses* FindByte(uint64_t offset) const;
    Accesses& Byte(uint64_t offset);

    uint64_t base = 0;
    uint64_t sectors = 0;
    std::unique_ptr<std::atomic<uint8_t>[]> touched;  // bit 0 loaded, bit 1 stored
    std::unique_ptr<Accesses, void (*)(void*)> words;
    std::unique_ptr<Stamps, void (*)(void*)> sector_reads;  // of whole sectors: most loads are
    std::unique_ptr<std::atomic<Accesses*>[]> parts;        // of each byte of a kibibyte
    uint64_t part_count = 0;
  };
  // The first and last accesses to some bytes of a word.
  struct History {
    Stamp first_write = ~Stamp{0};
    Stamp last_write = 0;
    Stamp first_read = ~Stamp{0};
    Stamp last_read = 0;
    void Add(const Accesses& accesses);
    void AddReads(const Stamps& stamps);
  };
  static History Look(const Shadow& shadow, uint64_t word, uint8_t bytes);
  static AccessSite SiteOf(Stamp stamp);
  static void Judge(const Shadow& shadow, uint64_t word, std::vector<Race>& races);

  /// The shadow of a segment; made at the first touch, for a model has hundreds of segments and a launch
  /// touches a few.
  Shadow& At(int segment);
  /// Calls visit(shadow) for the segments that were touched.
  template <typename Visit>
  void ForEachTouched(const Visit& visit) const;

  const Memory& memory_;
  bool races_;
  bool ordered_;
  std::vector<std::atomic<Shadow*>> segments_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> releases_;  // ordered: blocks by address of the atomic
};

}  // namespace vqllm::ptx
