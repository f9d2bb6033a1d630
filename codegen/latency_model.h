#pragma once

#include <string>

#include "codegen/gpu.h"

namespace vqllm {

/// What kernels that follow each other ask of a GPU together, predicted or counted.
struct TimedWork {
  double blocks = 1;  ///< dealt out evenly: the busiest SM has ceil(blocks / SMs)
  double dram_bytes = 0;
  double l2_bytes = 0;
  double lsu_passes = 0;    ///< wavefronts of shared memory, lines of global requests, shuffles
  double instructions = 0;  ///< warp instructions that take an issue slot
  double fma = 0;           ///< warp instructions of the fp32 pipe
  double tensor_flops = 0;
  double waiting_loads = 0;    ///< warp loads that wait for DRAM
  double resident_blocks = 1;  ///< an SM takes at once, where there are as many
  double block_loads = 1;      ///< of the waiting loads, that a block has under way at once
  double launches = 1;
};

/// A modelled time: a bound, a bracket and what binds. Never measured.
struct ModelledTime {
  double lower_us = 0;   ///< the largest term
  double second_us = 0;  ///< the next
  double upper_us = 0;   ///< launch, serial latencies and the two largest terms one after the other
  std::string bound;     ///< dram, l2, lsu, issue, fp32, tensor or latency
  double dram_us = 0;
  double l2_us = 0;
  double lsu_us = 0;
  double issue_us = 0;
  double fp32_us = 0;
  double tensor_us = 0;
  double latency_us = 0;
};
ModelledTime ModelTime(const TimedWork& work, const GpuSpec& gpu);

/// Microseconds of a launch; an estimate, as all constants of the model are until a GPU calibrates them.
inline constexpr double kLaunchUs = 2.2;

}  // namespace vqllm
