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

}  // namespace

std::string_view HazardName(HazardKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::string Hazard::ToString() const {
  std::string where = fmt::format("PTX line {}", ptx_line);
  if (source_line != 0) where += fmt::format(" ({}:{})", source_file, source_line);
  std::string out =
      fmt::format("{} x{}: {} [{}] block ({}, {}, {}) warp {} lane {} address 0x{:x}", HazardName(kind),
                  count, where, text, block[0], block[1], block[2], warp, lane, address);
  if (!detail.empty()) out += ": " + detail;
  return out;
}

void HazardLog::Record(HazardKind kind, uint32_t pc, uint64_t block, uint32_t warp, int lane,
                       uint64_t address, std::string_view detail) {
  Entry& entry = entries_[{pc, kind}];
  if (entry.count++ == 0 || block < entry.block) {
    const uint64_t count = entry.count;
    entry = {count, block, warp, lane, address, std::string(detail)};
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
