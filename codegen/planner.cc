#include "codegen/planner.h"

#include <algorithm>
#include <bit>
#include <set>

#include "codegen/decode/decoder.h"
#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/tensor.h"

namespace vqllm {
namespace {

constexpr int kMaxChunkWords = 16;  // registers that a row slot of codes may take
constexpr int kMaxChunkCols = 256;
constexpr int kMaxPlanned = 200;     // registers a thread that a plan may ask for
constexpr int kXBudget = 32 * 1024;  // bytes of activations that a block of the fma kernel stages at once

/// The free choices of one candidate.
struct Choice {
  Compute compute = Compute::kFma;
  Fusion fusion = Fusion::kNone;
  int warps_n = 4;
  int warps_k = 1;
  int row_slots = 1;
  int chunk_pieces = 1;
  int token_tile = 1;
  int split = 1;
  int x_slots = 1;
  int held = 0;
  double shared_share = 0;  ///< of the entries; < 0: as the slack allows
  bool replicate = false;
};

int FragmentUnits(int unit_cols) { return unit_cols % 4 == 0 ? 1 : unit_cols % 2 == 0 ? 2 : 4; }

/// Neighbouring units that a lane takes together: whole vectors of activations, and for group scales as many
/// as one scale covers, up to 32 columns.
int PieceUnits(const Format& f, const UnitShape& unit) {
  if (unit.rows > 1) return 8;
  int units = FragmentUnits(unit.cols);
  while (units * unit.cols < 8 && 8 % (units * unit.cols) == 0 && f.kind == FormatKind::kTable) units *= 2;
  if (f.scale == ScaleKind::kGroup && f.kind == FormatKind::kInt) {
    while (units * unit.cols < 32 && f.group % (2 * units * unit.cols) == 0) units *= 2;
  }
  return units;
}

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
    // Fragments A and B, two values a register; the accumulators; addresses of the scales of each row.
    registers += layout.row_slots * fragment * unit.Pairs() + 2 * x;
    registers += layout.row_slots * unit.rows * plan.token_tile / 4;
    registers += plan.format.stages() * layout.row_slots;
    if (plan.format.scale == ScaleKind::kGroup) registers += 4 * layout.row_slots;
  } else {
    registers += 2 * unit.Pairs() + 16;
  }
  // Addresses, loop counters and what ptxas keeps in flight grow with the kernel: a third more keeps all of
  // the registry free of spills.
  registers = registers * 4 / 3;
  // Of lookups in global memory ptxas starts as many of a chunk as it finds registers for: entries and
  // addresses. Fitted to its reports on the registry, where half of them all came to be in flight.
  int waiting = 0;
  for (const StageTier& tier : plan.stages) {
    if (std::max(tier.held, tier.shared) < tier.entries)
      waiting += layout.row_slots * layout.ChunkUnits() * (unit.Pairs() + 2);
  }
  if (plan.format.kind == FormatKind::kTable && plan.compute != Compute::kTable)
    registers = std::max(registers, 56 + waiting / 2 + layout.row_slots * unit.rows * plan.token_tile / 4);
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
      if (tier.held >= tier.entries) tier.shared = 0;
    }
    if (choice.replicate && tier.shared > 0) tier.replicas = 32 / std::min(entry_words, 4);
    if (request.pins.replicas > 0 && tier.shared > 0) tier.replicas = request.pins.replicas;
    plan.stages.push_back(tier);
  }
}

Plan Build(const Request& request, const Choice& choice) {
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

/// Tier choices of a level, in turn: the next ones count only where none of those before fits.
std::vector<std::vector<Choice>> Tiers(const Request& request) {
  const bool codebook = HasCodebook(request.format);
  const bool mma_held = request.format.kind == FormatKind::kTable && request.op != OpKind::kDequant;
  Choice gc, sc, o1, o2, all;
  sc.shared_share = 1;
  o1.shared_share = -1;
  o2.shared_share = -1;
  o2.held = mma_held ? 32 : 0;
  all.shared_share = 1;
  all.replicate = true;
  if (!codebook) return {{gc}};
  switch (request.level) {
    case Level::kGc:
      return {{gc}};
    case Level::kSc:
      return {{sc, o1}};  // what does not fit stays outside
    case Level::kO1:
      return {{o1}};
    case Level::kO2:
    case Level::kO3:
    case Level::kO4:
      return {{o2}, {o1}};  // registers may not hold entries of all stages
    case Level::kBest:
      return {{gc, sc, o1, o2, all}};
  }
  VQLLM_CHECK(false);
}

/// How weights reach the mma: the paper's shared round trip up to o3, its rule for shuffles at o4 (at most
/// five exchanges; subvectors of eight take four), and no exchange at all where no level binds: that reads
/// and looks up what the others do and does nothing besides, so it need not be weighed.
Fusion FusionOf(const Request& request) {
  if (request.pins.fusion) return *request.pins.fusion;
  if (!HasCodebook(request.format) || request.level == Level::kBest) return Fusion::kZeroShuffle;
  if (request.level != Level::kO4) return Fusion::kShared;
  const Format& f = request.format;
  const bool shuffles =
      f.axis == Axis::kIn && f.subvector <= 8 && std::has_single_bit(static_cast<unsigned>(f.subvector));
  return shuffles ? Fusion::kRegisterShuffle : Fusion::kShared;
}

int Pinned(int pin, int free) { return pin > 0 ? pin : free; }
/// The pin where there is one, else what is worth weighing.
std::vector<int> Options(int pin, std::initializer_list<int> free) {
  return pin > 0 ? std::vector<int>{pin} : std::vector<int>(free);
}

/// Chunk sizes worth weighing: whole words first, few words else.
std::vector<int> ChunkPieces(const Request& request, const UnitShape& unit, int piece_units) {
  if (request.pins.chunk_pieces > 0) return {request.pins.chunk_pieces};
  const int piece_bits = piece_units * unit.bits;
  std::vector<int> sizes;
  for (int pieces = 1; pieces <= 64; ++pieces) {
    const int bits = pieces * piece_bits;
    const int words = (bits + 31) / 32;
    if (words > kMaxChunkWords || (pieces > 1 && pieces * piece_units * unit.cols > kMaxChunkCols)) break;
    const double waste = 32.0 * words / bits - 1;
    if (waste < 0.07 || pieces == 1) sizes.push_back(pieces);
  }
  return sizes;
}

/// Warps of a block over outputs: also those that fill a tile of codebooks whose rows are no power of two.
std::vector<int> WarpsOverOutputs(const Request& request, std::initializer_list<int> free) {
  std::vector<int> warps = Options(request.pins.warps_n, free);
  const Scope& scope = request.format.scope;
  if (request.pins.warps_n == 0 && scope.kind == ScopeKind::kTile && scope.rows % 3 == 0) {
    warps.push_back(3);
    warps.push_back(6);
  }
  return warps;
}

void EnumerateFma(const Request& request, Choice base, std::vector<Choice>& choices) {
  const PlanPins& pins = request.pins;
  base.compute = Compute::kFma;
  base.fusion = Fusion::kNone;
  base.token_tile =
      Pinned(pins.token_tile,
             static_cast<int>(std::min<int64_t>(request.m, UnitOf(request.format).rows > 4 ? 2 : 4)));
  for (const int warps : WarpsOverOutputs(request, {4, 8, 16})) {
    for (const int slots : Options(pins.row_slots, {1, 2, 4})) {
      for (const int split : Options(pins.split, {1, 2, 4, 8})) {
        base.warps_n = warps;
        base.row_slots = slots;
        base.split = split;
        choices.push_back(base);
      }
    }
  }
}

/// Lookup tables: what pays where many rows share the products of a few entries.
void EnumerateTable(const Request& request, Choice base, std::vector<Choice>& choices) {
  const PlanPins& pins = request.pins;
  base.compute = Compute::kTable;
  base.fusion = Fusion::kNone;
  // Entries are read once a table, from where they are.
  base.held = 0;
  base.shared_share = 0;
  base.replicate = false;
  base.token_tile = Pinned(pins.token_tile, static_cast<int>(std::min<int64_t>(request.m, 4)));
  for (const int warps : WarpsOverOutputs(request, {4, 8, 16})) {
    for (const int slots : Options(pins.row_slots, {1, 2, 4, 8})) {
      for (const int split : Options(pins.split, {1, 4, 8, 16, 32})) {
        base.warps_n = warps;
        base.row_slots = slots;
        base.split = split;
        choices.push_back(base);
      }
    }
  }
}

void EnumerateMma(const Request& request, Choice base, std::vector<Choice>& choices) {
  const PlanPins& pins = request.pins;
  const int unit_rows = UnitOf(request.format).rows;
  base.compute = Compute::kMma;
  base.fusion = FusionOf(request);
  for (const int tokens : Options(pins.token_tile, {8, 16, 32, 64, 128})) {
    if (pins.token_tile == 0 && tokens > 8 && tokens / 2 >= request.m) continue;
    // Rows of a lane come in twos: fragment A has g and g + 8.
    for (const int slots : Options(pins.row_slots, {1, 2, 4})) {
      if (slots * unit_rows % 2 != 0 || (pins.row_slots == 0 && slots == 1 && unit_rows == 1)) continue;
      for (const int wn : WarpsOverOutputs(request, {1, 2, 4, 8})) {
        for (const int wk : Options(pins.warps_k, {1, 2, 4, 8})) {
          if (wn * wk < 3 || wn * wk > 8) continue;
          for (const int split : Options(pins.split, {1, 2, 4})) {
            if (split > 1 && request.m > 128) continue;
            for (const int x_slots : Options(pins.x_slots, {2, 3})) {
              base.token_tile = tokens;
              base.row_slots = slots;
              base.warps_n = wn;
              base.warps_k = wk;
              base.split = split;
              base.x_slots = x_slots;
              choices.push_back(base);
            }
          }
        }
      }
    }
  }
}

std::vector<Choice> Enumerate(const Request& request, const std::vector<Choice>& tiers) {
  std::vector<Choice> choices;
  const Format& f = request.format;
  const UnitShape unit = UnitOf(f);
  const PlanPins& pins = request.pins;
  const bool mma_able = !unit.bf16 || request.activation == DType::kBF16;
  const bool wants_fma = pins.compute.value_or(Compute::kFma) == Compute::kFma &&
                         pins.fusion.value_or(Fusion::kNone) == Fusion::kNone;
  const bool wants_table =
      f.kind == FormatKind::kTable && unit.rows == 1 && request.op != OpKind::kDequant &&
      (pins.compute ? pins.compute == Compute::kTable : request.level == Level::kBest && request.m <= 4);
  const bool wants_mma =
      pins.compute.value_or(Compute::kMma) == Compute::kMma && pins.fusion != Fusion::kNone;
  for (const Choice& tier : tiers) {
    for (const int pieces : ChunkPieces(request, unit, PieceUnits(f, unit))) {
      Choice base = tier;
      base.chunk_pieces = pieces;
      if (request.op == OpKind::kDequant) {
        base.compute = Compute::kStore;
        for (const int warps : Options(pins.warps_n, {4, 8})) {
          base.warps_n = warps;
          for (const int split : Options(pins.split, {1, 4})) {
            base.split = split;
            choices.push_back(base);
          }
        }
        continue;
      }
      if (wants_fma && (request.m <= 4 || !mma_able || pins.compute)) EnumerateFma(request, base, choices);
      if (wants_table && &tier == &tiers.front()) EnumerateTable(request, base, choices);
      if (wants_mma && mma_able && (request.m > 1 || pins.compute)) EnumerateMma(request, base, choices);
    }
  }
  return choices;
}

}  // namespace

PlanResult MakePlan(const Request& request, int keep) {
  Validate(request);
  if (request.format.kind == FormatKind::kDense && request.format.dtype == DType::kF32)
    Fail("plan: format {}: dtype: found fp32, allowed: fp16, bf16", request.format.name);
  std::vector<Candidate> valid;
  std::string why = "no choice matches the pins";
  for (const std::vector<Choice>& tiers : Tiers(request)) {
    for (const Choice& choice : Enumerate(request, tiers)) {
      try {
        Candidate candidate;
        candidate.plan = Build(request, choice);
        candidate.counters = PredictCounters(candidate.plan);
        candidate.time = ModelTime(candidate.plan, candidate.counters, request.gpu);
        valid.push_back(std::move(candidate));
      } catch (const Error& error) {  // a candidate that the GPU cannot run is not a failure of the request
        why = error.what();
      }
    }
    if (!valid.empty()) break;
  }
  if (valid.empty())
    Fail("plan: {} {}x{}x{} {}: nothing fits: {}", ToString(request.op), request.m, request.n, request.k,
         request.format.name, why);
  const auto cheaper = [](const Candidate& a, const Candidate& b) {
    const double cost_a = a.time.lower_us + 0.1 * a.time.upper_us;
    const double cost_b = b.time.lower_us + 0.1 * b.time.upper_us;
    return cost_a < cost_b;
  };
  std::stable_sort(valid.begin(), valid.end(), cheaper);
  PlanResult result;
  result.considered = static_cast<int>(valid.size());
  result.best = valid.front();
  // Levels of tiers that come out alike give the same plan more than once.
  std::set<std::string> shown = {ToJson(result.best.plan)};
  for (size_t i = 1; i < valid.size() && static_cast<int>(result.runners_up.size()) < keep; ++i) {
    if (shown.insert(ToJson(valid[i].plan)).second) result.runners_up.push_back(valid[i]);
  }
  return result;
}

}  // namespace vqllm
