#include "codegen/choice.h"

#include <algorithm>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/tensor.h"

namespace vqllm::internal {
namespace {

constexpr int kMaxPlanned = 200;     // registers a thread that a plan may ask for
constexpr int kXBudget = 32 * 1024;  // bytes of activations that a block of the fma kernel stages at once

int FragmentUnits(int unit_cols) { return unit_cols % 4 == 0 ? 1 : unit_cols % 2 == 0 ? 2 : 4; }

int64_t SegmentCols(const Request& request) {
  const Scope& scope = request.format.scope;
  const bool cut = request.format.kind == FormatKind::kTable &&
                   (scope.kind == ScopeKind::kTile || scope.kind == ScopeKind::kInGroup);
  return cut && scope.cols < request.k ? scope.cols : 0;
}

/// True where codebooks of the scope may be staged segment by segment with this layout.
bool CanSegment(const Request& request, const WeightLayout& layout, int block_rows) {
  const Scope& scope = request.format.scope;
  if (request.format.kind != FormatKind::kTable) return false;
  if (scope.kind == ScopeKind::kHeadChannel) return false;
  if (scope.kind == ScopeKind::kTensor) return true;
  if (SegmentCols(request) > 0 &&
      scope.cols % (layout.pad_groups ? layout.ChunkCols() * layout.lanes_k : layout.ChunkCols()) != 0)
    return false;
  return scope.kind != ScopeKind::kTile || scope.rows >= request.n || scope.rows % block_rows == 0;
}

int RegisterEstimate(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const UnitShape unit = UnitOf(plan.format);
  const int fragment = layout.FragmentUnits();
  int registers = 40 + layout.row_slots * layout.chunk_words;
  const int accumulators =
      plan.compute == Compute::kMma ? layout.row_slots * unit.rows * plan.token_tile / 4 : 0;
  for (const StageTier& tier : plan.stages) registers += tier.held > 0 ? unit.Pairs() : 0;
  // Pointers of the tiers, and the entries of all stages under way.
  if (plan.format.kind == FormatKind::kTable)
    registers += plan.format.stages() * (2 + EntryWords(plan.format.subvector) / 2);
  const int x = fragment * layout.unit_cols / 2;
  if (plan.compute == Compute::kFma) {
    registers += plan.token_tile * (2 * x + layout.row_slots * unit.rows * 2) + 2 * unit.Pairs() +
                 3 * layout.row_slots;
  } else if (plan.compute == Compute::kTable) {
    // An entry and its activations while the table is made; sums of the rows after.
    registers += 2 * unit.Pairs() + plan.token_tile * 2 * layout.row_slots + 2 * layout.row_slots;
  } else if (plan.compute == Compute::kMma) {
    // Fragments A and B, two values a register; addresses of the scales of each row.
    registers += layout.row_slots * fragment * unit.Pairs() + 2 * x;
    registers += plan.format.stages() * layout.row_slots;
    if (plan.format.scale == ScaleKind::kGroup) registers += 4 * layout.row_slots;
  } else {
    registers += 2 * unit.Pairs() + 16;
  }
  // Addresses, loop counters and what ptxas keeps in flight grow with the kernel: a third more keeps all of
  // the registry free of spills. The accumulators are there once.
  registers = registers * 4 / 3 + accumulators;
  // Of lookups in global memory ptxas starts as many of a chunk as it finds registers for: entries and
  // addresses. Fitted to its reports on the registry, where half of them all came to be in flight.
  int waiting = 0;
  for (const StageTier& tier : plan.stages) {
    if (std::max(tier.held, tier.shared) < tier.entries)
      waiting += layout.row_slots * layout.ChunkUnits() * (unit.Pairs() + 2);
  }
  if (plan.format.kind == FormatKind::kTable && plan.compute != Compute::kTable)
    registers = std::max(registers, 56 + waiting / 2 + accumulators);
  return (registers + 7) / 8 * 8;
}

void FillTiers(const Request& request, const Choice& choice, Plan& plan) {
  const Format& f = request.format;
  plan.stages.clear();
  if (!HasCodebook(f)) return;
  const bool lattice = f.kind == FormatKind::kLattice;
  const int entry_words = lattice ? 1 : EntryWords(f.subvector);
  const int stages = lattice ? 1 : f.stages();
  const ArchLimits& limits = LimitsOf(request.gpu.arch);
  const bool shared_allowed = !IndexesCodebooks(plan);
  // A level below best shows what its tiers do, where a plan can have them.
  if (!shared_allowed && request.level != Level::kBest && (choice.held > 0 || choice.shared_share != 0))
    Fail("plan: tiers: found codebooks that change within a block, allowed: one at a time");
  // The slack of one block (VQ-LLM, section V-C): what it can take without losing a resident neighbour.
  int slack = 0;
  if (choice.shared_share < 0 && shared_allowed) {
    Plan bare = plan;
    CompletePlan(bare, request.gpu);
    slack = ComputeOccupancy(limits, bare.Threads(), bare.register_budget, bare.shared_bytes).slack_shared;
  }
  for (int stage = 0; stage < stages; ++stage) {
    StageTier tier;
    tier.entries = lattice ? 256 : f.entries[static_cast<size_t>(stage)];
    tier.code_bits = lattice ? 16 : f.CodeBits(stage);
    if (shared_allowed) {
      if (!lattice && (tier.entries >= 32 || choice.held > 0))
        tier.held = std::min(choice.held, tier.entries);
      tier.shared = choice.shared_share < 0 ? std::min(tier.entries, slack / stages / (4 * entry_words))
                                            : static_cast<int>(choice.shared_share * tier.entries);
      if (request.pins.held > 0 && !lattice) tier.held = std::min(request.pins.held, tier.entries);
      if (request.pins.shared > 0) tier.shared = std::min(request.pins.shared, tier.entries);
      if (tier.held >= tier.entries) tier.shared = 0;
    }
    if (choice.replicate && tier.shared > 0) tier.replicas = 32 / std::min(entry_words, 4);
    if (request.pins.replicas > 0 && tier.shared > 0) tier.replicas = request.pins.replicas;
    plan.stages.push_back(tier);
  }
}

}  // namespace

int PieceUnits(const Format& f, const UnitShape& unit) {
  if (unit.rows > 1) return 8;
  int units = FragmentUnits(unit.cols);
  while (units * unit.cols < 8 && 8 % (units * unit.cols) == 0 && f.kind == FormatKind::kTable) units *= 2;
  if (f.scale == ScaleKind::kGroup && f.kind == FormatKind::kInt) {
    while (units * unit.cols < 32 && f.group % (2 * units * unit.cols) == 0) units *= 2;
  }
  return units;
}

Plan BuildPlan(const Request& request, const Choice& choice) {
  const Format& f = request.format;
  const UnitShape unit = UnitOf(f);
  Plan plan;
  plan.op = request.op;
  plan.format = f;
  plan.m = request.op == OpKind::kDequant ? 1 : static_cast<int>(request.m);
  plan.n = static_cast<int>(request.n);
  plan.k = static_cast<int>(request.k);
  plan.activation = request.activation;
  plan.bias = request.bias;
  plan.gpu = request.gpu.name;
  plan.arch = request.gpu.arch;
  plan.level = request.level;
  plan.pins = request.pins;
  plan.compute = choice.compute;
  plan.fusion = choice.fusion;
  plan.warps_n = choice.warps_n;
  plan.warps_k = choice.warps_k;
  plan.split = choice.split;
  plan.token_tile = choice.token_tile;
  plan.x_slots = choice.compute == Compute::kMma ? std::max(2, choice.x_slots) : 1;

  WeightLayout& layout = plan.layout;
  layout.unit_rows = unit.rows;
  layout.unit_cols = unit.cols;
  layout.unit_bits = unit.bits;
  layout.piece_units = PieceUnits(f, unit);
  layout.chunk_pieces = choice.chunk_pieces;
  layout.row_slots = choice.row_slots;
  int64_t segment_cols = SegmentCols(request);
  if (choice.compute == Compute::kMma) {
    if (choice.token_tile % 8 != 0)
      Fail("plan: token_tile: found {}, allowed for {}: multiples of 8", choice.token_tile,
           ToString(choice.compute));
    layout.lanes_row = 8;
    layout.lanes_k = 4;
    layout.pad_groups = true;
  } else if (choice.compute == Compute::kTable) {
    layout.lanes_row = 32;
    layout.lanes_k = 1;
  } else {
    // As many lanes along k as there are chunks in a segment.
    const int64_t chunks =
        (std::max<int64_t>(segment_cols > 0 ? segment_cols : request.k, 1) + layout.ChunkCols() - 1) /
        layout.ChunkCols();
    layout.lanes_k = 32;
    while (layout.lanes_k > 1 && layout.lanes_k / 2 >= chunks) layout.lanes_k /= 2;
    layout.lanes_row = 32 / layout.lanes_k;
  }
  const bool scoped = f.kind == FormatKind::kTable && f.scope.kind != ScopeKind::kTensor;
  plan.segmented = scoped && request.level != Level::kGc &&
                   CanSegment(request, layout, choice.warps_n * layout.TileRows());
  if (!plan.segmented) segment_cols = 0;
  if (choice.compute == Compute::kTable) {
    if (scoped && !plan.segmented)
      Fail("plan: lookup_table: found codebooks that change within a block, allowed: one at a time");
    if (f.scale == ScaleKind::kGroup && f.group % layout.ChunkCols() != 0)
      Fail("plan: lookup_table: found {} columns a chunk, allowed: divisors of the group {}",
           layout.ChunkCols(), f.group);
  }
  CompleteLayout(layout, request.n, request.k, segment_cols);
  if (request.stored && layout != *request.stored) Fail("plan: the codes lie in another order");
  if (layout.chunk_words > kMaxChunkWords)
    Fail("plan: chunk: found {} words, allowed: {}", layout.chunk_words, kMaxChunkWords);

  if (choice.compute == Compute::kMma) {
    plan.step_groups = choice.warps_k;
  } else {
    const int group_bytes = 2 * choice.token_tile * layout.lanes_k * layout.ChunkCols();
    plan.step_groups = choice.compute == Compute::kStore ? 1 : std::max(1, kXBudget / group_bytes);
    // Steps that waste no staged columns.
    const int groups = static_cast<int>((layout.segment_chunks + layout.lanes_k - 1) / layout.lanes_k);
    const int steps = (groups + plan.step_groups - 1) / plan.step_groups;
    plan.step_groups = (groups + steps - 1) / steps;
    if (choice.split > 1 && layout.segments == 1 && choice.compute != Compute::kStore)
      plan.step_groups = std::min(plan.step_groups, (groups + choice.split - 1) / choice.split);
  }
  if (HasCodebook(f)) {
    Choice none = choice;
    none.held = 0;
    none.shared_share = 0;
    FillTiers(request, none, plan);
    plan.register_budget = RegisterEstimate(plan);
    FillTiers(request, choice, plan);
  }
  plan.register_budget = RegisterEstimate(plan);
  if (plan.register_budget > kMaxPlanned) {
    Fail("plan: registers: found {} a thread, allowed: {}", plan.register_budget, kMaxPlanned);
  }
  CompletePlan(plan, request.gpu);
  return plan;
}

}  // namespace vqllm::internal
