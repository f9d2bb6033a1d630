#include "codegen/kv/planner.h"

#include <algorithm>

#include "vq/base/check.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

int CeilDiv(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

std::vector<StageTier> Tiers(const KvSideLayout& layout, int shared_bytes) {
  std::vector<StageTier> tiers;
  if (layout.format.kind != FormatKind::kTable) return tiers;
  const int entry = layout.units * 4 * layout.entry_words;
  for (int stage = 0; stage < layout.format.stages(); ++stage) {
    StageTier tier;
    tier.entries = layout.format.entries[static_cast<size_t>(stage)];
    tier.code_bits = layout.format.CodeBits(stage);
    tier.shared = std::clamp(shared_bytes / layout.format.stages() / entry, 0, tier.entries);
    tiers.push_back(tier);
  }
  return tiers;
}

/// Queries, keys, accumulators, words of the tokens under way.
int RegisterEstimate(const KvPlan& plan) {
  const int key = plan.key.layout.SliceChannels();
  const int value = plan.value.layout.SliceChannels();
  int registers = 48 + plan.tile * (key + value + 2 + plan.slots) + key;
  if (plan.shape.keys_before_rope) registers += plan.tile * key;
  registers += plan.slots * ((plan.key.layout.SliceBits() + plan.value.layout.SliceBits()) / 32 + 4);
  return std::min(200, (registers * 5 / 4 + 7) / 8 * 8);
}

KvPlan Base(const KvRequest& request) {
  KvPlan plan;
  plan.op = request.op;
  plan.shape = request.shape;
  plan.group = request.group;
  plan.q_tokens = request.q_tokens;
  plan.rows = request.rows;
  plan.activation = request.activation;
  plan.gpu = request.gpu.name;
  plan.arch = request.gpu.arch;
  plan.level = request.level;
  plan.key.layout = MakeKvSideLayout(request.shape.key, request.shape.head_dim);
  plan.value.layout = MakeKvSideLayout(request.shape.value, request.shape.head_dim);
  plan.key.stages = Tiers(plan.key.layout, 0);
  plan.value.stages = Tiers(plan.value.layout, 0);
  return plan;
}

}  // namespace

KvPlan MakeKvPlan(const KvRequest& request) {
  Validate(request);
  KvPlan plan = Base(request);
  const KvPins& pins = request.pins;
  if (request.op == KvOp::kAppend) {
    const int units = std::max(plan.key.stages.empty() ? 1 : plan.key.layout.units,
                               plan.value.stages.empty() ? 1 : plan.value.layout.units);
    plan.warps = std::max({pins.warps, 4, CeilDiv(units, 32)});
    plan.tile = pins.tile > 0 ? std::min(pins.tile, 16) : std::min(request.q_tokens, 8);
    plan.register_budget = 64;
    CompleteKvPlan(plan, request.gpu);
    return plan;
  }
  plan.warps = pins.warps > 0 ? pins.warps : 4;
  if (request.op == KvOp::kPrefill) {
    plan.key_tile = request.shape.head_dim > 128 ? 32 : 64;
    const int padded = CeilDiv(request.shape.head_dim, 16) * 16;
    plan.register_budget =
        std::min(224, 88 + padded / 2 + plan.key_tile / 2 + plan.key.layout.SliceChannels());
    CompleteKvPlan(plan, request.gpu);
    return plan;
  }
  if (pins.key_compute >= 0) plan.key.compute = static_cast<KvCompute>(pins.key_compute);
  if (pins.value_compute >= 0) plan.value.compute = static_cast<KvCompute>(pins.value_compute);
  plan.key.turned = CanTurn(plan.key.layout);
  plan.value.turned = CanTurn(plan.value.layout);
  plan.slots = pins.slots > 0 ? pins.slots : 2;
  plan.tile = pins.tile > 0 ? pins.tile : 4;
  const int blocks =
      request.shape.kv_heads * CeilDiv(request.q_tokens * request.group, plan.tile) * request.rows;
  const int wanted = std::max(1, CeilDiv(2 * static_cast<int>(request.gpu.sms.value), blocks));
  plan.split_tokens = pins.split_tokens > 0
                          ? pins.split_tokens
                          : std::max(128, CeilDiv(CeilDiv(request.shape.context, wanted), 128) * 128);
  plan.register_budget = RegisterEstimate(plan);
  CompleteKvPlan(plan, request.gpu);
  return plan;
}

}  // namespace vqllm
