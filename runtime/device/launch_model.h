#pragma once

#include "codegen/gpu.h"
#include "runtime/device/driver.h"

namespace vqllm {

/// A modelled time of one launch: never measured.
struct LaunchTime {
  double lower_us = 0;  ///< the largest of DRAM, L2, shared and global passes, issue, tensor cores
  double upper_us = 0;  ///< the two largest one after the other, and the launch itself
};

/// The time of a launch from what the interpreter counted, for any kernel, planned or fixed. Blocks are dealt
/// out evenly: the busiest SM has ceil(blocks / SMs) of them. A launch without counts takes 0.
LaunchTime ModelLaunch(const LaunchCounts& counts, const LaunchSize& size, const GpuSpec& gpu);

}  // namespace vqllm
