#pragma once

#include <cstdint>
#include <string>

#include "codegen/plan.h"

namespace vqllm {

/// What one run of a plan's kernels moves and executes, in closed form. Names follow the profiler's counters.
struct PlanCounters {
  double dram_bytes = 0;         ///< first touch of a launch: codes, codebooks, scales, activations, outputs
  double compulsory_bytes = 0;   ///< the same with nothing counted twice: what any kernel must move
  double l2_bytes = 0;           ///< first touch of each block
  double shared_wavefronts = 0;  ///< 128-byte passes of shared memory, conflicts counted
  double shared_ideal = 0;       ///< the same without conflicts
  double global_lines = 0;       ///< 128-byte passes of global loads and stores through L1
  double instructions = 0;       ///< warp instructions that take an issue slot
  double fma = 0;                ///< warp instructions of the fp32 pipe
  double mma_flop = 0;
  double load_requests = 0;  ///< warp loads of codes
  int64_t blocks = 0;
};
PlanCounters PredictCounters(const Plan& plan);

/// Wavefronts of 32 random lookups in `entries` entries of `bytes` bytes (4, 8 or 16) with `replicas` copies
/// side by side, over the ideal 1, 2 or 4. Expected maximum of balls in bins, computed once by simulation
/// with a fixed seed.
double ConflictFactor(int entries, int bytes, int replicas);

/// A modelled time: a bound, a bracket and what binds. Never measured.
struct ModelledTime {
  double lower_us = 0;  ///< the largest term
  double upper_us = 0;  ///< launch, serial latencies and the two largest terms one after the other
  std::string bound;    ///< dram, l2, lsu, issue, fp32, tensor or latency
  double dram_us = 0;
  double l2_us = 0;
  double lsu_us = 0;
  double issue_us = 0;
  double fp32_us = 0;
  double tensor_us = 0;
  double latency_us = 0;
};
ModelledTime ModelTime(const Plan& plan, const PlanCounters& counters, const GpuSpec& gpu);

}  // namespace vqllm
