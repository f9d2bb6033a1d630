#include "codegen/latency_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace vqllm {
namespace {

// Estimates, as kLaunchUs.
constexpr double kDramLatency = 650e-9;  // seconds
constexpr double kL2LatencyClocks = 270;
constexpr double kDramEfficiency = 0.9;  // of the vendor's peak that a stream reaches
constexpr double kIssueOverhead = 1.1;   // SASS over PTX instructions without moves
constexpr int kIssueSlots = 4;           // a clock and SM

}  // namespace

ModelledTime ModelTime(const TimedWork& work, const GpuSpec& gpu) {
  const double clock = gpu.clock_ghz.value * 1e9;
  const double busiest = std::ceil(work.blocks / gpu.sms.value);  // blocks of the busiest SM
  const double share = busiest / work.blocks;
  ModelledTime t;
  t.dram_us = 1e6 * work.dram_bytes / (kDramEfficiency * gpu.dram_gb_per_s.value * 1e9);
  t.l2_us = 1e6 * work.l2_bytes / (gpu.l2_gb_per_s.value * 1e9);
  t.lsu_us = 1e6 * work.lsu_passes * share / clock;
  t.issue_us = 1e6 * work.instructions * kIssueOverhead * share / (kIssueSlots * clock);
  t.fp32_us = 1e6 * work.fma * 32 / gpu.fp32_lanes.value * share / clock;
  t.tensor_us = 1e6 * work.tensor_flops * share / (gpu.mma_flop_clock.value * clock);
  // Little's law: loads in flight are those of the resident blocks.
  const double in_flight = std::min(work.resident_blocks, busiest) * work.block_loads;
  t.latency_us = 1e6 * work.waiting_loads * share * kDramLatency / in_flight;
  const std::pair<double, const char*> terms[] = {
      {t.dram_us, "dram"}, {t.l2_us, "l2"},         {t.lsu_us, "lsu"},        {t.issue_us, "issue"},
      {t.fp32_us, "fp32"}, {t.tensor_us, "tensor"}, {t.latency_us, "latency"}};
  for (const auto& [us, name] : terms) {
    if (us > t.lower_us) {
      t.second_us = t.lower_us;
      t.lower_us = us;
      t.bound = name;
    } else {
      t.second_us = std::max(t.second_us, us);
    }
  }
  const double serial = 1e6 * (kDramLatency * 2 + kL2LatencyClocks / clock);
  t.upper_us = t.lower_us + t.second_us + serial + kLaunchUs * work.launches;
  return t;
}

}  // namespace vqllm
