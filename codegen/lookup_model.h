#pragma once

#include <cstdint>

#include "codegen/plan.h"

namespace vqllm {

/// Which lanes of a warp look up what: `random` lanes a code drawn evenly from all entries, `zero` lanes code
/// 0 (padding of the layout).
struct LookupLanes {
  uint32_t random = 0xffffffffu;
  uint32_t zero = 0;
};

/// Expected cost of one load instruction for the entries that a warp's codes pick, in closed form.
struct LookupCost {
  double shared_requests = 0;  ///< probability that a lane reads shared memory
  double wavefronts = 0;
  double ideal = 0;
  double global_requests = 0;  ///< probability that a lane reads global memory
  double sectors = 0;
  double lines = 0;
};

/// `bytes` a lane (4, 8 or 16). Codes below tier.held are in registers, those below tier.shared in shared
/// memory, copy `lane % replicas` of replicas side by side; the others in global memory, `entry_bytes` apart.
/// The wavefronts are the expected largest number of distinct entries of a bank: balls into bins, where balls
/// of one entry count once. `replicas` is a power of two.
LookupCost ExpectedLookup(const StageTier& tier, int bytes, int entry_bytes, const LookupLanes& lanes);

/// Expected distinct groups of `group` neighbours that `lookups` codes touch among those in [first, last) of
/// `entries`.
double ExpectedDistinct(int64_t first, int64_t last, int64_t entries, int64_t group, double lookups);

}  // namespace vqllm
