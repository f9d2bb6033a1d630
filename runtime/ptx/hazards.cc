#include "runtime/ptx/hazards.h"

#include <fmt/format.h>

#include "runtime/ptx/hazard_log.h"

namespace vqllm::ptx {
namespace {

constexpr std::string_view kNames[] = {
    "out of bounds",
    "misaligned",
    "uninitialised shared read",
    "uninitialised global read",
    "shared race",
    "missing __syncwarp",
    "global race between blocks",
    "cp.async data touched before its wait",
    "divergent barrier",
    "inactive lane",
    "deadlock",
    "endless loop",
    "trap",
    "branch index out of range",
};
static_assert(std::size(kNames) == static_cast<size_t>(HazardKind::kCount));

// "PTX line 14 (gemv.cu:7) [ld.shared.u32 ...] block (0, 0, 0) warp 1"
template <typename Side>
std::string PlaceText(const Side& side) {
  std::string where = fmt::format("PTX line {}", side.ptx_line);
  if (side.source_line != 0) where += fmt::format(" ({}:{})", side.source_file, side.source_line);
  return fmt::format("{} [{}] block ({}, {}, {}) warp {}", where, side.text, side.block[0], side.block[1],
                     side.block[2], side.warp);
}

}  // namespace

std::string_view HazardName(HazardKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::string Hazard::ToString() const {
  std::string out = fmt::format("{} x{}: {} lane {} address 0x{:x}", HazardName(kind), count,
                                PlaceText(*this), lane, address);
  if (!detail.empty()) out += ": " + detail;
  if (other) {
    out += "; the other side: " + PlaceText(*other);
    if (other->lane >= 0) out += fmt::format(" lane {}", other->lane);
  }
  return out;
}

void HazardLog::Record(HazardKind kind, uint32_t pc, uint64_t block, uint32_t warp, int lane,
                       uint64_t address, std::string_view detail, const AccessSite& other) {
  Entry& entry = entries_[{pc, kind}];
  if (entry.count++ == 0 || block < entry.block) {
    const uint64_t count = entry.count;
    entry = {count, block, warp, lane, address, std::string(detail), other};
  }
}

void HazardLog::Merge(const HazardLog& other) {
  for (const auto& [key, theirs] : other.entries_) {
    Entry& mine = entries_[key];
    const uint64_t count = mine.count + theirs.count;
    if (mine.count == 0 || theirs.block < mine.block) mine = theirs;
    mine.count = count;
  }
}

}  // namespace vqllm::ptx
