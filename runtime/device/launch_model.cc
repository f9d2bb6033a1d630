#include "runtime/device/launch_model.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace vqllm {
namespace {

constexpr double kDramShare = 0.9;      // of the peak that a kernel reaches
constexpr double kIssueSlots = 4;       // warp instructions a clock and SM
constexpr double kIssueOverhead = 1.1;  // machine instructions for one of PTX, moves not counted
constexpr double kLaunchUs = 2.2;

}  // namespace

LaunchTime ModelLaunch(const LaunchCounts& counts, const LaunchSize& size, const GpuSpec& gpu) {
  if (counts.instructions == 0) return {};
  const double blocks = static_cast<double>(size.blocks_x * size.blocks_y * size.blocks_z);
  const double share = std::ceil(blocks / gpu.sms.value) / blocks;  // of the busiest SM
  const double clocks_us = gpu.clock_ghz.value * 1e3;
  std::array<double, 5> terms = {
      counts.dram_bytes / (kDramShare * gpu.dram_gb_per_s.value * 1e3),
      counts.l2_bytes / (gpu.l2_gb_per_s.value * 1e3),
      (counts.shared_wavefronts + counts.global_lines) * share / clocks_us,
      counts.instructions * kIssueOverhead * share / (kIssueSlots * clocks_us),
      counts.tensor_flops * share / (gpu.mma_flop_clock.value * clocks_us),
  };
  std::ranges::sort(terms, std::greater<>());
  return {terms[0], terms[0] + terms[1] + kLaunchUs};
}

}  // namespace vqllm
