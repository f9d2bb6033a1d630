// The plan in words: choices, slack, traffic, and why the runners-up lost.
#include "codegen/decode/decoder.h"
#include "codegen/planner.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

std::string TierText(const Plan& plan) {
  std::string text;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const StageTier& tier = plan.stages[stage];
    const int shared = std::max(0, tier.shared - tier.held);
    text += fmt::format(
        "  stage {}: {} entries: {} in registers, {} in shared memory x {} copies, {} in global memory\n",
        stage, tier.entries, tier.held, shared, tier.replicas,
        tier.entries - std::max(tier.held, tier.shared));
  }
  return text.empty() ? "  no codebook\n" : text;
}

/// What decides between two plans: their terms side by side.
std::string Terms(const ModelledTime& t) {
  return fmt::format(
      "dram {:.2f}  l2 {:.2f}  lsu {:.2f}  issue {:.2f}  fp32 {:.2f}  tensor {:.2f}  latency {:.2f}",
      t.dram_us, t.l2_us, t.lsu_us, t.issue_us, t.fp32_us, t.tensor_us, t.latency_us);
}

std::string Choices(const Plan& plan) {
  std::string tiers;
  for (const StageTier& tier : plan.stages)
    tiers += fmt::format(" {}/{}x{}/{}", tier.held, tier.shared, tier.replicas, tier.entries);
  return fmt::format("{} warps {}x{} slots {} chunk {} tokens {} split {}{}", ToString(plan.compute),
                     plan.warps_n, plan.warps_k, plan.layout.row_slots, plan.layout.chunk_pieces,
                     plan.token_tile, plan.split, tiers.empty() ? std::string() : ", tiers" + tiers);
}

}  // namespace

std::string Explain(const Request& request, const PlanResult& result) {
  const Plan& plan = result.best.plan;
  const PlanCounters& c = result.best.counters;
  const ModelledTime& t = result.best.time;
  const GpuSpec& gpu = request.gpu;
  const Occupancy occupancy =
      ComputeOccupancy(LimitsOf(gpu.arch), plan.Threads(), plan.register_budget, plan.shared_bytes);
  std::string text = fmt::format("{} {} m {} n {} k {} on {} (sm_{}), level {}: the cheapest of {} plans\n\n",
                                 ToString(plan.op), plan.format.name, plan.m, plan.n, plan.k, gpu.title,
                                 gpu.arch, ToString(plan.level), result.considered);
  text += fmt::format("choices\n  {}\n  fusion {}, {} x slots, {} steps of {} columns\n", Choices(plan),
                      ToString(plan.fusion), plan.x_slots, plan.steps, plan.x_step_cols);
  text += fmt::format("tiers\n{}", TierText(plan));
  text += fmt::format(
      "slack at {} registers a thread and {} bytes a block: {} blocks an SM by {}; {} bytes and {} "
      "registers to spare\n",
      plan.register_budget, plan.shared_bytes, occupancy.blocks, occupancy.limit, occupancy.slack_shared,
      occupancy.slack_registers);
  text += fmt::format(
      "traffic (modelled)\n"
      "  DRAM        {:>12.0f} bytes, compulsory {:.0f} ({:.3f}x)\n"
      "  L2          {:>12.0f} bytes\n"
      "  shared      {:>12.0f} wavefronts, ideal {:.0f} ({:.3f}x)\n"
      "  global      {:>12.0f} lines\n"
      "  instructions{:>12.0f}\n",
      c.DramBytes(gpu), c.compulsory_bytes, c.DramBytes(gpu) / c.compulsory_bytes, c.L2Bytes(),
      c.SharedWavefronts(), c.SharedWavefrontsIdeal(),
      c.SharedWavefrontsIdeal() > 0 ? c.SharedWavefronts() / c.SharedWavefrontsIdeal() : 1.0,
      c.traffic.global_lines, c.instructions);
  text += fmt::format("time (modelled, us): {:.2f} to {:.2f}, bound by {}\n  {}\n", t.lower_us, t.upper_us,
                      t.bound, Terms(t));
  if (!result.runners_up.empty()) text += "runners-up (modelled, us)\n";
  for (const Candidate& other : result.runners_up) {
    text += fmt::format("  {:.2f} to {:.2f} by {}: {}\n    {}\n", other.time.lower_us, other.time.upper_us,
                        other.time.bound, Choices(other.plan), Terms(other.time));
  }
  text += "GPU figures\n";
  const std::pair<const char*, const Figure*> figures[] = {{"SMs", &gpu.sms},
                                                           {"clock GHz", &gpu.clock_ghz},
                                                           {"DRAM GB/s", &gpu.dram_gb_per_s},
                                                           {"L2 MiB", &gpu.l2_mib},
                                                           {"L2 GB/s", &gpu.l2_gb_per_s},
                                                           {"mma flop/clock/SM", &gpu.mma_flop_clock},
                                                           {"fp32 lanes", &gpu.fp32_lanes}};
  for (const auto& [name, figure] : figures)
    text += fmt::format("  {:<18}{:>8.6g}  {}\n", name, figure->value, figure->source);
  return text;
}

}  // namespace vqllm
