#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "runtime/ptx/hazards.h"

namespace vqllm::ptx {

/// The other access of a race: whose it was.
struct AccessSite {
  static constexpr uint32_t kNoPc = 0xffffffffu;
  uint32_t pc = kNoPc;
  uint64_t block = 0;  ///< linear index
  uint32_t warp = 0;
  int lane = -1;  ///< -1: not known
};

/// Hazards by instruction and kind: how many, and the first in the order of blocks. Each worker has one; they
/// merge to the same log at any number of workers.
class HazardLog {
 public:
  struct Entry {
    uint64_t count = 0;
    uint64_t block = 0;  ///< linear index
    uint32_t warp = 0;
    int lane = 0;
    uint64_t address = 0;
    std::string detail;
    AccessSite other;
  };
  using Map = std::map<std::pair<uint32_t, HazardKind>, Entry>;

  void Record(HazardKind kind, uint32_t pc, uint64_t block, uint32_t warp, int lane, uint64_t address,
              std::string_view detail, const AccessSite& other = {});
  void Merge(const HazardLog& other);
  const Map& entries() const { return entries_; }

 private:
  Map entries_;
};

}  // namespace vqllm::ptx
