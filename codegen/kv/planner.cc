#include "codegen/kv/planner.h"

#include <algorithm>
#include <optional>

#include "codegen/kv/cost.h"
#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/math.h"

namespace vqllm {
namespace {

std::vector<StageTier> Tiers(const KvSideLayout& layout, int shared_bytes) {
  std::vector<StageTier> tiers;
  if (layout.format.kind != FormatKind::kTable) return tiers;
  const int entry = layout.units * 4 * layout.entry_words;
  for (int stage = 0; stage < layout.format.stages(); ++stage) {
    StageTier tier;
    tier.entries = layout.format.entries[static_cast<size_t>(stage)];
    tier.code_bits = layout.format.CodeBits(stage);
    tier.shared = std::clamp(shared_bytes / layout.format.stages() / entry, 0, tier.entries);
    if (tier.shared < tier.entries) tier.shared -= tier.shared % 16;  // whole rounds of a block's threads
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
  return (registers * 5 / 4 + 7) / 8 * 8;
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

/// A computation of a side and, where it decodes, entries of each stage in shared memory.
struct SideChoice {
  KvCompute compute = KvCompute::kDequantise;
  int shared_bytes = 0;
};

constexpr int kAll = 1 << 28;  // bytes: more than any codebook's share

/// Plans of op attention that the request's level allows; one search through them all.
class AttentionSearch {
 public:
  explicit AttentionSearch(const KvRequest& request) : request_(request), base_(Base(request)) {}

  KvPlan Best() {
    for (const int tile : Tiles(request_.level == Level::kBest)) TryTile(tile);
    if (!best_ && request_.pins.tile == 0) TryTile(1);
    if (!best_) throw Error(why_);
    return *best_;
  }

 private:
  void TryTile(int tile) {
    const bool best = request_.level == Level::kBest;
    for (const int warps : Warps(best)) {
      for (const SideChoice& key : Sides(base_.key, request_.pins.key_compute)) {
        for (const SideChoice& value : Sides(base_.value, request_.pins.value_compute)) {
          for (const int slots : Slots(best)) Try({tile, warps, slots}, key, value);
        }
      }
    }
  }

  std::vector<int> Tiles(bool all) const {
    const int queries = request_.q_tokens * request_.group;
    if (request_.pins.tile > 0) return {request_.pins.tile};
    if (!all) return {std::min(4, queries)};
    std::vector<int> tiles;
    for (int tile = 1; tile <= 8; tile *= 2) {
      if (tile < 2 * queries) tiles.push_back(std::min(tile, queries));
    }
    return tiles;
  }

  std::vector<int> Warps(bool all) const {
    if (request_.pins.warps > 0) return {request_.pins.warps};
    if (!all && request_.level < Level::kO3) return {4};
    return {4, 8, 16};
  }

  std::vector<SideChoice> Sides(const KvSidePlan& side, int pinned) const {
    if (side.stages.empty()) return {{static_cast<KvCompute>(std::max(0, pinned)), 0}};
    const int limit = LimitsOf(request_.gpu.arch).shared_block;
    const int books = side.Entries() * side.layout.units * 4 * side.layout.entry_words;
    std::vector<SideChoice> choices;
    switch (request_.level) {
      case Level::kGc:
        return {{KvCompute::kDequantise, 0}};
      case Level::kSc:
        return {{KvCompute::kDequantise, std::min(books, limit / 2 - 8192)}};
      case Level::kO1:
      case Level::kO2:
        return {{KvCompute::kDequantise, kAll}};  // what the slack has
      case Level::kO3:
      case Level::kO4:
      case Level::kBest:
        for (const int bytes : {0, books / 4, books / 2, books})
          choices.push_back({KvCompute::kDequantise, bytes});
    }
    if (request_.level == Level::kBest) choices.push_back({KvCompute::kCodes, 0});
    if (pinned >= 0) {
      std::erase_if(choices,
                    [&](const SideChoice& c) { return c.compute != static_cast<KvCompute>(pinned); });
    }
    return choices;
  }

  /// Completes a plan for some number of splits; nothing where it does not fit.
  std::optional<KvPlan> Complete(KvPlan plan, int split_tokens) {
    plan.split_tokens = split_tokens;
    try {
      CompleteKvPlan(plan, request_.gpu);
    } catch (const Error& error) {
      why_ = error.what();
      return std::nullopt;
    }
    return plan;
  }

  std::vector<int> Slots(bool all) const {
    if (request_.pins.slots > 0) return {request_.pins.slots};
    if (!all && request_.level < Level::kO3) return {2};
    return {2, 4};
  }

  struct BlockChoice {
    int tile, warps, slots;
  };
  void Try(const BlockChoice& block, const SideChoice& key, const SideChoice& value) {
    KvPlan plan = base_;
    const bool best = request_.level == Level::kBest;
    plan.tile = block.tile;
    plan.warps = block.warps;
    plan.slots = block.slots;
    const bool slack = key.shared_bytes == kAll || value.shared_bytes == kAll;
    const auto set = [&](KvSidePlan& side, const SideChoice& choice, int bytes) {
      side.compute = choice.compute;
      side.turned = best && CanTurn(side.layout);
      side.stages = Tiers(side.layout, bytes);
    };
    set(plan.key, key, slack ? 0 : key.shared_bytes);
    set(plan.value, value, slack ? 0 : value.shared_bytes);
    plan.register_budget = RegisterEstimate(plan);
    if (plan.register_budget > kMostRegisters) {
      // Where one query and two slots are too many, nothing smaller is left.
      if ((plan.tile > 1 && request_.pins.tile == 0) || (plan.slots > 2 && request_.pins.slots == 0)) return;
      plan.register_budget = kMostRegisters;
    }
    const int whole = RoundUp(request_.shape.context, request_.shape.page_tokens);
    std::optional<KvPlan> first =
        Complete(plan, request_.pins.split_tokens > 0 ? request_.pins.split_tokens : whole);
    if (!first) return;
    if (slack) {
      // Entries as far as they cost no resident block (VQ-LLM, section V).
      const Occupancy occupancy = Resident(*first);
      const int sides = (plan.key.stages.empty() ? 0 : 1) + (plan.value.stages.empty() ? 0 : 1);
      const int each =
          std::max(0, occupancy.slack_shared + first->state_bytes - first->page_bytes - first->query_bytes) /
          std::max(1, sides);
      set(plan.key, key, each);
      set(plan.value, value, each);
      first = Complete(plan, first->split_tokens);
      if (!first) return;
    }
    for (const int split_tokens : Splits(*first)) {
      const std::optional<KvPlan> complete = Complete(plan, split_tokens);
      if (complete) Weigh(*complete);
    }
  }

  Occupancy Resident(const KvPlan& plan) const {
    return ComputeOccupancy(LimitsOf(plan.arch), plan.Threads(), plan.register_budget, plan.shared_bytes);
  }

  /// Tokens of a split: such that all SMs have as many blocks, at one resident block each or at more.
  std::vector<int> Splits(const KvPlan& plan) const {
    if (request_.pins.split_tokens > 0) return {request_.pins.split_tokens};
    const int page = request_.shape.page_tokens;
    const int least = std::max(page, kLeastSplit);
    const int stored = plan.splits * plan.split_tokens;
    const double blocks = static_cast<double>(request_.shape.kv_heads) * plan.query_tiles * request_.rows;
    const int resident = std::max(1, Resident(plan).blocks);
    std::vector<int> tokens;
    const auto add = [&](double slots) {
      const int splits = std::max(1, static_cast<int>(slots / blocks));
      const int split = RoundUp(CeilDiv(stored, splits), page);
      tokens.push_back(std::max(std::min(least, stored), split));
    };
    const double sms = request_.gpu.sms.value;
    if (request_.level < Level::kO3) {
      add(2 * sms);  // as many as two blocks an SM, whatever the codebooks cost
      return tokens;
    }
    for (int deal = 1; deal <= 2 * resident && deal <= 16; ++deal) add(deal * sms);
    tokens.push_back(RoundUp(stored, page));
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    return tokens;
  }

  void Weigh(const KvPlan& plan) {
    const ModelledTime time = ModelKvTime(plan, PredictKvCounters(plan), request_.gpu);
    // The bound first; of two that are as good, what has less to do besides.
    const double cost = time.lower_us + 0.1 * time.upper_us;
    if (best_ && cost >= best_cost_) return;
    best_ = plan;
    best_cost_ = cost;
  }

  static constexpr int kLeastSplit = 64;
  static constexpr int kMostRegisters = 200;

  const KvRequest& request_;
  KvPlan base_;
  std::optional<KvPlan> best_;
  double best_cost_ = 0;
  std::string why_;
};

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
  if (request.op == KvOp::kPrefill) {
    plan.warps = pins.warps > 0 ? pins.warps : 4;
    plan.key_tile = request.shape.head_dim > 128 ? 32 : 64;
    const int padded = RoundUp(request.shape.head_dim, 16);
    plan.register_budget =
        std::min(224, 88 + padded / 2 + plan.key_tile / 2 + plan.key.layout.SliceChannels());
    CompleteKvPlan(plan, request.gpu);
    return plan;
  }
  return AttentionSearch(request).Best();
}

}  // namespace vqllm
