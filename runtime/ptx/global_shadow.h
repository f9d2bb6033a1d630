#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/ptx/access.h"
#include "runtime/ptx/launch_shadow.h"
#include "runtime/ptx/traffic.h"

namespace vqllm::ptx {

/// One worker's part: the sectors that its block has touched.
class GlobalShadow {
 public:
  GlobalShadow(LaunchShadow& launch, const Memory& memory, uint64_t blocks);
  void BeginBlock(uint64_t block);

  enum class Access : uint8_t { kLoad, kStore, kAtomic };
  /// A request of the lanes of `mask`, `bytes` each, with its sectors.
  struct Request {
    const Lanes32& lanes;
    uint32_t mask;
    uint32_t bytes;
    Access access;
  };
  /// Records a request and gives the number of sectors that this block had not touched in that way.
  uint32_t Touch(Warp& warp, int segment, const Request& request, const SectorList& list);
  /// An atomic on a word: what blocks published there before is visible now.
  void Synchronise(uint64_t address);
  void Fence() { fenced_ = true; }

 private:
  struct Sector {
    uint32_t block = 0;   // index + 1
    uint8_t touched = 0;  // bit 0 loaded, bit 1 stored
    uint8_t loaded = 0;   // words that are recorded
    uint8_t stored = 0;
  };
  void Record(Warp& warp, LaunchShadow::Shadow& shadow, const Request& request, uint64_t sector,
              uint8_t words);
  void RecordBytes(Warp& warp, LaunchShadow::Shadow& shadow, const Request& request, uint64_t sector,
                   uint32_t bytes);
  void JudgeNow(Warp& warp, int lane, const LaunchShadow::Shadow& shadow, uint64_t word, uint8_t bytes,
                bool is_store);
  int LaneOf(const Request& request, uint64_t address);
  LaunchShadow::Stamp StampOf(const Warp& warp, int lane) const;
  bool Ordered(LaunchShadow::Stamp other) const;

  LaunchShadow& launch_;
  std::vector<std::vector<Sector>> sectors_;
  uint64_t block_ = 0;
  int lane_hint_ = 0;  // neighbouring words mostly belong to neighbouring lanes
  bool fenced_ = false;
  std::vector<uint8_t> visible_;  // ordered: blocks whose writes this one may see
  std::vector<uint32_t> visible_list_;
  std::unordered_map<uint64_t, size_t> seen_releases_;
};

}  // namespace vqllm::ptx
