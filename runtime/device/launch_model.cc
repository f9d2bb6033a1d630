#include "runtime/device/launch_model.h"

#include "codegen/latency_model.h"

namespace vqllm {

LaunchTime ModelLaunch(const LaunchCounts& counts, const LaunchSize& size, const GpuSpec& gpu) {
  if (counts.instructions == 0) return {};
  const ModelledTime time =
      ModelTime({.blocks = static_cast<double>(size.blocks_x * size.blocks_y * size.blocks_z),
                 .dram_bytes = counts.dram_bytes,
                 .l2_bytes = counts.l2_bytes,
                 .lsu_passes = counts.shared_wavefronts + counts.global_lines,
                 .instructions = counts.instructions,
                 .tensor_flops = counts.tensor_flops},
                gpu);
  return {time.lower_us, time.lower_us + time.second_us + kLaunchUs};
}

}  // namespace vqllm
