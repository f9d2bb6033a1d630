#pragma once

#include <cstdint>

#include "codegen/latency_model.h"
#include "codegen/plan.h"
#include "codegen/traffic.h"

namespace vqllm {

/// What one run of a plan's kernels moves and executes. The traffic is what the interpreter counts, by the
/// same names; tests compare the two.
struct PlanCounters {
  Traffic traffic;
  double compulsory_bytes = 0;  ///< codes, codebooks, scales, activations, outputs: each once
  double instructions = 0;      ///< warp instructions that take an issue slot, about
  double fma = 0;               ///< warp instructions of the fp32 pipe
  double shuffles = 0;          ///< warp instructions that pass through the shared memory's crossbar
  double code_requests = 0;     ///< warp loads of codes, which wait for DRAM

  double partial_bytes = 0;  ///< sums of blocks that share outputs, written and read back

  /// First touch of each kernel, whole sectors.
  double FirstTouchBytes() const;
  /// What DRAM moves where L2 never evicts: the same without partial sums that take no more than half of L2,
  /// which the second kernel finds there.
  double DramBytes(const GpuSpec& gpu) const;
  /// First touch of each block: what L2 moves where L1 never evicts.
  double L2Bytes() const;
  double SharedWavefronts() const;
  double SharedWavefrontsIdeal() const;
  /// What passes through the load-store unit: wavefronts, shuffles, lines of global requests.
  double LsuPasses() const;
};
PlanCounters PredictCounters(const Plan& plan);

/// The time of a plan's kernels, from what they are predicted to do.
ModelledTime ModelTime(const Plan& plan, const PlanCounters& counters, const GpuSpec& gpu);

}  // namespace vqllm
