#include "codegen/kv/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codegen/kv/traffic.h"
#include "vq/base/math.h"

namespace vqllm {
namespace {

/// Warp instructions that a lane group's tokens take on one side, without memory requests: as emitted PTX
/// counts.
struct SideWork {
  double instructions = 0;
  double fma = 0;
};
SideWork WorkOf(const KvPlan& plan, const KvSidePlan& side, bool keys) {
  const KvSideLayout& layout = side.layout;
  const double channels = layout.SliceChannels();
  const double codes = static_cast<double>(layout.slice_units) * static_cast<double>(side.stages.size());
  SideWork work;
  if (side.Codes()) {
    work.instructions = codes * (5 + plan.tile);
    work.fma = codes * plan.tile;
    return work;
  }
  // Conversion to fp32; of integers the codes' extraction, too, and scale and offset.
  const double convert = layout.format.kind == FormatKind::kInt ? 3 : 1;
  work.fma = channels * plan.tile + (layout.format.kind == FormatKind::kInt ? channels : 0);
  work.instructions = channels * convert + work.fma + 5 * codes;
  if (side.stages.size() > 1) work.instructions += channels * static_cast<double>(side.stages.size() - 1) * 2;
  if (keys && plan.shape.keys_before_rope) work.instructions += channels * (3 + plan.tile);
  return work;
}

}  // namespace

PlanCounters PredictKvCounters(const KvPlan& plan) {
  const KvShape& shape = plan.shape;
  PlanCounters c;
  c.traffic = EstimateKvTraffic(plan);
  const double blocks = plan.StoredBlocks();
  const int step = plan.warps * plan.slots * plan.TokenLanes();
  const double iterations =
      static_cast<double>(CeilDiv(plan.split_tokens, step)) * plan.warps;  // of the warps of a block
  const double groups = iterations * plan.slots;
  const SideWork key = WorkOf(plan, plan.key, true);
  const SideWork value = WorkOf(plan, plan.value, false);
  const double lanes_log = std::countr_zero(static_cast<unsigned>(plan.lanes));
  const double softmax = plan.tile * (2 * lanes_log + 10);
  const double channels = plan.value.Codes() ? 0 : plan.value.layout.SliceChannels();
  const double rescale = plan.tile * (channels + 8);
  double block =
      groups * (34 + key.instructions + value.instructions + softmax) + iterations * (rescale + 10);
  double fma = groups * (key.fma + value.fma);
  double shuffles = groups * plan.tile * lanes_log;
  // Queries, states, and what they are joined with.
  const double rows = plan.tile * shape.head_dim / 32.0;
  block += rows * (30 + 8 * plan.warps) + 40 * plan.warps;
  if (!plan.value.Codes()) {
    const double joins = std::countr_zero(static_cast<unsigned>(plan.TokenLanes()));
    block += plan.warps * plan.tile * channels * 3 * joins;
    shuffles += plan.warps * plan.tile * channels * joins;
  }
  if (plan.key.Codes()) {
    const double entries = plan.key.Entries() * plan.key.layout.units / 32.0;
    const double products = entries * plan.key.layout.unit_channels * plan.tile;
    fma += products;
    block += products + entries * (plan.key.layout.unit_channels + 6);
  }
  if (plan.value.Codes()) {
    const double entries = plan.value.Entries() * plan.value.layout.units / 32.0;
    const double parts = static_cast<double>(plan.warps) * plan.TokenLanes();
    block += plan.tile * entries * (20 + 3 * parts) + rows * plan.value.Entries() * 6;
  }
  const Traffic& t = c.traffic;
  c.instructions = blocks * block + t[Metric::kGlobalLoadRequests] + t[Metric::kGlobalStoreRequests] +
                   t[Metric::kSharedLoadRequests] + t[Metric::kSharedStoreRequests] + t[Metric::kBarriers];
  if (plan.Merges())
    c.instructions += static_cast<double>(plan.rows) * plan.q_tokens * plan.Heads() * shape.head_dim / 32 *
                      (12.0 * plan.splits + 20);
  c.fma = blocks * fma;
  c.shuffles = blocks * shuffles;
  c.code_requests = blocks * groups * 2;
  const double record_bytes =
      4.0 * static_cast<double>(plan.key.layout.RecordWords() + plan.value.layout.RecordWords());
  c.compulsory_bytes = static_cast<double>(plan.rows) * shape.kv_heads * shape.context * record_bytes +
                       4.0 * plan.rows * plan.q_tokens * plan.Heads() * shape.head_dim;
  for (const KvSidePlan* side : {&plan.key, &plan.value})
    c.compulsory_bytes +=
        4.0 * side->Entries() * side->layout.units * side->layout.entry_words * shape.kv_heads;
  return c;
}

ModelledTime ModelKvTime(const KvPlan& plan, const PlanCounters& c, const GpuSpec& gpu) {
  const Occupancy occupancy =
      ComputeOccupancy(LimitsOf(gpu.arch), plan.Threads(), plan.register_budget, plan.shared_bytes);
  return ModelTime({.blocks = plan.StoredBlocks(),
                    .dram_bytes = c.DramBytes(gpu),
                    .l2_bytes = c.L2Bytes(),
                    .lsu_passes = c.LsuPasses(),
                    .instructions = c.instructions,
                    .fma = c.fma,
                    .waiting_loads = c.code_requests,
                    .resident_blocks = static_cast<double>(occupancy.blocks),
                    // Both sides of all tokens that a warp has under way.
                    .block_loads = 2.0 * plan.warps * plan.slots,
                    .launches = static_cast<double>(plan.launches.size())},
                   gpu);
}

double WaveEfficiency(const KvPlan& plan, const GpuSpec& gpu) {
  const double sms = gpu.sms.value;
  return plan.StoredBlocks() / (std::ceil(plan.StoredBlocks() / sms) * sms);
}

}  // namespace vqllm
