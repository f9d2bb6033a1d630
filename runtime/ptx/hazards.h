#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vqllm::ptx {

enum class HazardKind : uint8_t {
  kOutOfBounds,
  kMisaligned,
  kUninitialisedShared,
  kUninitialisedGlobal,
  kSharedRace,
  kMissingSyncwarp,
  kGlobalRace,
  kPendingCopy,
  kDivergentBarrier,
  kInactiveLane,
  kDeadlock,
  kEndlessLoop,
  kTrap,
  kBadBranch,
  kCount,
};

/// Words for a terminal: "out of bounds".
std::string_view HazardName(HazardKind kind);

/// The other side of a race, or the cp.async that was not waited for.
struct HazardPeer {
  int ptx_line = 0;
  int source_line = 0;  ///< 0 where the PTX has no .loc
  std::string source_file;
  std::string text;  ///< the instruction
  uint32_t block[3] = {};
  uint32_t warp = 0;
  int lane = -1;  ///< -1: not known
};

/// A mistake of a kernel. One entry stands for all occurrences of a kind at one instruction; the place is
/// that of the occurrence in the lowest block.
struct Hazard {
  HazardKind kind = HazardKind::kOutOfBounds;
  uint64_t count = 0;
  int ptx_line = 0;
  int source_line = 0;  ///< 0 where the PTX has no .loc
  std::string source_file;
  std::string text;  ///< the instruction
  uint32_t block[3] = {};
  uint32_t warp = 0;
  int lane = 0;
  uint64_t address = 0;
  std::string detail;
  std::optional<HazardPeer> other;

  std::string ToString() const;
};

}  // namespace vqllm::ptx
