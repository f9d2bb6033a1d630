#pragma once

#include <array>
#include <cstdint>

#include "codegen/lookup_model.h"
#include "codegen/plan.h"

namespace vqllm {

/// The unit that each lane of a warp looks up in one step; negative: none.
using LaneUnits = std::array<int, 32>;

/// Expected cost of one load instruction for the entries that codes drawn evenly pick, in closed form.
/// Entries lie [entry][unit], `bytes` (4, 8 or 16) a unit; those below tier.shared in shared memory, the
/// others in global memory, `entry_bytes` a unit.
///
/// Where a multiple of all banks separates the entries of a unit, a lane's bank follows from its unit and
/// only different codes of one unit meet; else codes spread the lanes over the banks of their residue
/// (and those of one unit are taken as different).
LookupCost ExpectedUnitLookup(const StageTier& tier, int units, int bytes, int entry_bytes,
                              const LaneUnits& lanes);

}  // namespace vqllm
