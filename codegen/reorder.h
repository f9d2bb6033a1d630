#pragma once

#include <cstdint>
#include <vector>

#include "codegen/plan.h"
#include "vq/tensor.h"

namespace vqllm {

/// How often the entries of one stage occur, over all codebooks of the stage, hottest first after
/// ReorderByFrequency.
struct StageHistogram {
  std::vector<int64_t> counts;  ///< [entries]
  int64_t total = 0;
  int64_t hot = 0;       ///< entries above mean + 3 standard deviations (VQ-LLM, section III, figure 8)
  double hot_share = 0;  ///< of all lookups that those serve
};
std::vector<StageHistogram> CountCodes(const Tensor& tensor);

/// Renumbers codes and entries of every codebook so that code 0 is the most frequent one (VQ-LLM, section
/// V-A): what lets a tier be chosen with one compare. Ties keep their order. The decoded weights stay the
/// same bit for bit. Only tables have entries; other formats come back as they are.
Tensor ReorderByFrequency(Tensor tensor);

/// The share of all lookups of one stage that each tier of the plan serves.
struct TierShares {
  double held = 0;
  double shared = 0;
  double global = 0;
};
std::vector<TierShares> SharesOfTiers(const Plan& plan, const Tensor& tensor);

}  // namespace vqllm
