#include "codegen/planner.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "codegen/choice.h"
#include "vq/base/check.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

using internal::BuildPlan;
using internal::Choice;
using internal::PieceUnits;

/// Values of one or two members of a choice that are tried together.
struct Setting {
  int Choice::*member;
  int value;
};
using Option = std::vector<Setting>;

/// Choices of one kind: where the search begins, and along which lines it goes.
struct Family {
  struct Line {
    std::vector<Option> options;
    size_t stride = 2;  ///< of the net that the search begins with
  };
  Choice start;
  std::vector<Line> lines;
};

bool IsBest(const Request& request) { return request.level == Level::kBest; }

/// Tier choices of a level, in turn: the next ones count only where none of those before fits.
std::vector<std::vector<Choice>> Tiers(const Request& request) {
  const bool codebook = HasCodebook(request.format);
  const bool may_hold = request.format.kind == FormatKind::kTable && request.op != OpKind::kDequant;
  Choice gc, sc, o1, o2, all;
  sc.shared_share = 1;
  o1.shared_share = -1;
  o2.shared_share = -1;
  o2.held = may_hold ? 32 : 0;
  all.shared_share = 1;
  all.replicate = true;
  if (!codebook) return {{gc}};
  switch (request.level) {
    case Level::kGc:
      return {{gc}};
    case Level::kSc:
      return {{sc, o1}, {gc}};  // what does not fit stays outside
    case Level::kO1:
      return {{o1}, {gc}};
    case Level::kO2:
    case Level::kO3:
    case Level::kO4:
      return {{o2}, {o1}, {gc}};  // registers may not hold entries of all stages
    case Level::kBest:
      return {{all, sc, o1, o2, gc}};
  }
  VQLLM_CHECK(false);
}

/// How weights reach the mma: the paper's shared round trip up to o3, its rule for shuffles at o4 (at most
/// five exchanges; subvectors of eight take four), and no exchange at all where no level binds: that reads
/// and looks up what the others do and does nothing besides, so it need not be weighed.
Fusion FusionOf(const Request& request) {
  if (request.pins.fusion) return *request.pins.fusion;
  if (!HasCodebook(request.format) || IsBest(request)) return Fusion::kZeroShuffle;
  if (request.level != Level::kO4) return Fusion::kShared;
  const Format& f = request.format;
  const bool shuffles =
      f.axis == Axis::kIn && f.subvector <= 8 && std::has_single_bit(static_cast<unsigned>(f.subvector));
  return shuffles ? Fusion::kRegisterShuffle : Fusion::kShared;
}

/// The pin where there is one, else what is worth weighing.
std::vector<int> Options(int pin, std::initializer_list<int> free) {
  return pin > 0 ? std::vector<int>{pin} : std::vector<int>(free);
}

/// Blocks that share outputs. The split along the codebook's axes is what level o3 adds (section VI-A).
std::vector<int> Splits(const Request& request, std::initializer_list<int> free) {
  if (request.pins.split > 0) return {request.pins.split};
  const bool dataflow = IsBest(request) || !HasCodebook(request.format) || request.level == Level::kO3 ||
                        request.level == Level::kO4;
  if (!dataflow || request.m > 128) return {1};
  return std::vector<int>(free);
}

/// Chunk sizes worth weighing: whole words first, few words else.
std::vector<int> ChunkPieces(const Request& request) {
  if (request.stored) return {request.stored->chunk_pieces};
  if (request.pins.chunk_pieces > 0) return {request.pins.chunk_pieces};
  const UnitShape unit = UnitOf(request.format);
  const int piece_units = PieceUnits(request.format, unit);
  const int piece_bits = piece_units * unit.bits;
  std::vector<int> sizes;
  for (int pieces = 1; pieces <= 64; ++pieces) {
    const int bits = pieces * piece_bits;
    const int words = (bits + 31) / 32;
    if (words > internal::kMaxChunkWords ||
        (pieces > 1 && pieces * piece_units * unit.cols > internal::kMaxChunkCols))
      break;
    const double waste = 32.0 * words / bits - 1;
    if (waste < 0.07 || pieces == 1) sizes.push_back(pieces);
  }
  return sizes;
}

std::vector<int> RowSlots(const Request& request, std::initializer_list<int> free) {
  if (request.stored) return {request.stored->row_slots};
  return Options(request.pins.row_slots, free);
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

/// One line of the search; the family starts at the value next to `start`.
void AddLine(Family& family, int Choice::*member, const std::vector<int>& values, int start,
             size_t stride = 2) {
  Family::Line line{{}, stride};
  family.start.*member = values.front();
  for (const int value : values) {
    line.options.push_back({{member, value}});
    if (std::abs(value - start) < std::abs(family.start.*member - start)) family.start.*member = value;
  }
  family.lines.push_back(std::move(line));
}

Family DequantFamily(const Request& request, const Choice& tier) {
  Family family{tier, {}};
  family.start.compute = Compute::kStore;
  AddLine(family, &Choice::chunk_pieces, ChunkPieces(request), 4);
  if (request.stored) AddLine(family, &Choice::row_slots, RowSlots(request, {1}), 1);
  AddLine(family, &Choice::warps_n, Options(request.pins.warps_n, {4, 8}), 4);
  AddLine(family, &Choice::split, Options(request.pins.split, {4, 1}), 1);
  return family;
}

Family FmaFamily(const Request& request, const Choice& tier) {
  Family family{tier, {}};
  family.start.compute = Compute::kFma;
  family.start.token_tile =
      request.pins.token_tile > 0
          ? request.pins.token_tile
          : static_cast<int>(std::min<int64_t>(request.m, UnitOf(request.format).rows > 4 ? 2 : 4));
  AddLine(family, &Choice::chunk_pieces, ChunkPieces(request), 4);
  AddLine(family, &Choice::row_slots, RowSlots(request, {4, 2, 1}), 4);
  AddLine(family, &Choice::warps_n, WarpsOverOutputs(request, {16, 8, 4}), 8);
  AddLine(family, &Choice::split, Splits(request, {8, 4, 2, 1}), 1);
  return family;
}

/// Lookup tables: what pays where many rows share the products of a few entries.
Family TableFamily(const Request& request) {
  Family family;  // entries are read once a table, from where they are
  family.start.compute = Compute::kTable;
  AddLine(family, &Choice::token_tile, Options(request.pins.token_tile, {4, 2, 1}),
          static_cast<int>(std::min<int64_t>(request.m, 4)));
  AddLine(family, &Choice::chunk_pieces, ChunkPieces(request), 16);
  AddLine(family, &Choice::row_slots, RowSlots(request, {8, 4, 2, 1}), 4);
  AddLine(family, &Choice::warps_n, WarpsOverOutputs(request, {16, 8, 4}), 8);
  AddLine(family, &Choice::split, Splits(request, {32, 16, 8, 4, 1}), 32);
  return family;
}

Family MmaFamily(const Request& request, const Choice& tier) {
  const PlanPins& pins = request.pins;
  const int unit_rows = UnitOf(request.format).rows;
  Family family{tier, {}};
  family.start.compute = Compute::kMma;
  family.start.fusion = FusionOf(request);
  std::vector<int> tokens = Options(pins.token_tile, {128, 64, 32, 16, 8});
  if (pins.token_tile == 0)
    std::erase_if(tokens, [&](int tile) { return tile > 8 && tile / 2 >= request.m; });
  AddLine(family, &Choice::token_tile, tokens, static_cast<int>(std::min<int64_t>(request.m, 64)), 1);
  AddLine(family, &Choice::chunk_pieces, ChunkPieces(request), 2, 1);
  // Rows of a lane come in twos: fragment A has g and g + 8.
  std::vector<int> slots = RowSlots(request, {8, 4, 2, 1});
  std::erase_if(slots, [&](int count) { return count * unit_rows % 2 != 0; });
  if (slots.empty()) Fail("plan: row_slots: found {}, allowed for dequant_mma: even numbers", pins.row_slots);
  AddLine(family, &Choice::row_slots, slots, 4, 1);
  std::vector<Option> warps;
  for (const int wn : WarpsOverOutputs(request, {8, 4, 2, 1})) {
    for (const int wk : Options(pins.warps_k, {8, 4, 2, 1})) {
      const bool pinned = pins.warps_n > 0 || pins.warps_k > 0;
      if (wn * wk > 8 || (wn * wk < 3 && !pinned)) continue;
      warps.push_back({{&Choice::warps_n, wn}, {&Choice::warps_k, wk}});
    }
  }
  if (warps.empty())
    Fail("plan: warps: found {} x {}, allowed for dequant_mma: at most 8", pins.warps_n, pins.warps_k);
  for (const Setting& setting : warps[warps.size() / 2]) family.start.*setting.member = setting.value;
  family.lines.push_back({std::move(warps), 1});
  AddLine(family, &Choice::split, Splits(request, {8, 6, 4, 3, 2, 1}), 1);
  AddLine(family, &Choice::x_slots, Options(pins.x_slots, {2, 3}), 2);
  return family;
}

std::vector<Family> FamiliesOf(const Request& request, const std::vector<Choice>& tiers) {
  const Format& f = request.format;
  const UnitShape unit = UnitOf(f);
  const PlanPins& pins = request.pins;
  const auto wants = [&](Compute compute) { return pins.compute.value_or(compute) == compute; };
  const bool mma_able = !unit.bf16 || request.activation == DType::kBF16;
  const bool unfused = pins.fusion.value_or(Fusion::kNone) == Fusion::kNone;
  std::vector<Family> families;
  for (const Choice& tier : tiers) {
    if (request.op == OpKind::kDequant) {
      families.push_back(DequantFamily(request, tier));
      continue;
    }
    if (wants(Compute::kFma) && unfused && (request.m <= 4 || !mma_able || pins.compute))
      families.push_back(FmaFamily(request, tier));
    if (wants(Compute::kMma) && pins.fusion != Fusion::kNone && mma_able && (request.m > 1 || pins.compute))
      families.push_back(MmaFamily(request, tier));
  }
  const bool tables = f.kind == FormatKind::kTable && unit.rows == 1 && request.op != OpKind::kDequant;
  if (tables && unfused && wants(Compute::kTable) && (pins.compute || (IsBest(request) && request.m <= 4)))
    families.push_back(TableFamily(request));
  return families;
}

constexpr double kRefused = std::numeric_limits<double>::infinity();
constexpr double kNear = 1.1;     // of the cheapest cost: as good, for a model that no GPU has calibrated
constexpr double kLittle = 1.05;  // of the ideal: traffic that is no flaw

/// Weighs choices, each once.
class Scales {
 public:
  explicit Scales(const Request& request) : request_(request) {}

  /// Infinite where the GPU cannot run the plan, which is no failure of the request.
  double Weigh(const Choice& choice) {
    const auto [known, fresh] = weights_.try_emplace(choice);
    if (!fresh) return known->second.cost;
    try {
      const Candidate candidate = Evaluate(choice);
      known->second = {Cost(candidate.time), Flaws(candidate.counters)};
    } catch (const Error& error) {
      why_ = error.what();
    }
    return known->second.cost;
  }
  Candidate Evaluate(const Choice& choice) const {
    Candidate candidate;
    candidate.plan = BuildPlan(request_, choice);
    candidate.counters = PredictCounters(candidate.plan);
    candidate.time = ModelTime(candidate.plan, candidate.counters, request_.gpu);
    return candidate;
  }
  /// Those that can run, cheapest first; but of those as good as the cheapest the one with the fewest flaws.
  std::vector<Choice> Ranked() const {
    std::vector<std::pair<Weight, Choice>> ranked;
    for (const auto& [choice, weight] : weights_) {
      if (weight.cost != kRefused) ranked.emplace_back(weight, choice);
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.first.cost < b.first.cost; });
    const auto near_end = std::find_if(ranked.begin(), ranked.end(), [&](const auto& other) {
      return other.first.cost > kNear * ranked.front().first.cost;
    });
    const auto sound = std::min_element(
        ranked.begin(), near_end, [](const auto& a, const auto& b) { return a.first.flaws < b.first.flaws; });
    if (sound != near_end) std::rotate(ranked.begin(), sound, sound + 1);
    std::vector<Choice> choices;
    for (const auto& [weight, choice] : ranked) choices.push_back(choice);
    return choices;
  }
  const std::string& why() const { return why_; }
  bool Found() const {
    return std::any_of(weights_.begin(), weights_.end(),
                       [](const auto& weighed) { return weighed.second.cost != kRefused; });
  }

 private:
  /// The bound decides; the bracket's upper end tells near equals apart.
  static double Cost(const ModelledTime& time) { return time.lower_us + 0.1 * time.upper_us; }

  /// Bank conflicts, and bytes that need not move.
  int Flaws(const PlanCounters& counters) const {
    return (counters.SharedWavefronts() > kLittle * counters.SharedWavefrontsIdeal()) +
           (counters.DramBytes(request_.gpu) > kLittle * counters.compulsory_bytes);
  }

  struct Weight {
    double cost = kRefused;
    int flaws = 0;
  };
  const Request& request_;
  std::map<Choice, Weight> weights_;
  std::string why_ = "no choice matches the pins";
};

Choice With(Choice choice, const Option& option) {
  for (const Setting& setting : option) choice.*setting.member = setting.value;
  return choice;
}

/// Every combination of the lines from `line` on.
void WeighAll(const Family& family, size_t line, const Choice& choice, Scales& scales) {
  if (line == family.lines.size()) {
    scales.Weigh(choice);
    return;
  }
  for (const Option& option : family.lines[line].options)
    WeighAll(family, line + 1, With(choice, option), scales);
}

/// Goes from `start` along one line after the other to the cheapest option, until none helps.
Choice DescendFrom(const Choice& start, const Family& family, Scales& scales) {
  Choice best = start;
  double cost = scales.Weigh(best);
  while (true) {
    const double before = cost;
    for (const Family::Line& line : family.lines) {
      const Choice from = best;
      for (const Option& option : line.options) {
        const Choice next = With(from, option);
        const double weighed = scales.Weigh(next);
        if (weighed < cost) {
          cost = weighed;
          best = next;
        }
      }
    }
    if (cost == before) return best;
  }
}

/// And along two lines at once: half the warps with twice the rows keep a block what it is.
void DescendByPairs(Choice best, const Family& family, Scales& scales) {
  while (true) {
    const double before = scales.Weigh(best);
    for (size_t first = 0; first < family.lines.size(); ++first) {
      for (size_t second = first + 1; second < family.lines.size(); ++second) {
        const Choice from = best;
        for (const Option& one : family.lines[first].options) {
          for (const Option& other : family.lines[second].options) {
            const Choice next = With(With(from, one), other);
            if (scales.Weigh(next) < scales.Weigh(best)) best = next;
          }
        }
      }
    }
    if (scales.Weigh(best) == before) return;
    best = DescendFrom(best, family, scales);
  }
}

/// A net over the family: of every line the first option, the third and so on.
void WeighNet(const Family& family, size_t line, Choice choice, Scales& scales, Choice& best) {
  if (line == family.lines.size()) {
    if (scales.Weigh(choice) < scales.Weigh(best)) best = choice;
    return;
  }
  const auto& [options, stride] = family.lines[line];
  for (size_t i = 0; i < options.size(); i += stride)
    WeighNet(family, line + 1, With(choice, options[i]), scales, best);
}

/// The choice with the tiers of another.
Choice WithTiers(Choice choice, const Choice& tiers) {
  choice.held = tiers.held;
  choice.shared_share = tiers.shared_share;
  choice.replicate = tiers.replicate;
  return choice;
}

/// Searches families one after the other. Costs have many valleys (few rows a block or many, one token tile
/// or another), so the first of a kind goes down from the best knot of a net, and from its start. The others
/// of the kind differ in tiers only: they go down from where it ended.
class Descent {
 public:
  explicit Descent(Scales& scales) : scales_(scales) {}
  void Search(const Family& family) {
    End& end = ends_.try_emplace(family.start.compute, End{family.start, family}).first->second;
    const bool first = scales_.Weigh(end.choice) == kRefused || !end.netted;
    Take(DescendFrom(WithTiers(end.choice, family.start), family, scales_), family, end);
    Take(DescendFrom(family.start, family, scales_), family, end);
    if (!first) return;
    const auto& [options, stride] = family.lines.front();
    for (size_t i = 0; i < options.size(); i += stride) {
      Choice knot = With(family.start, options[i]);
      WeighNet(family, 1, knot, scales_, knot);
      Take(DescendFrom(knot, family, scales_), family, end);
    }
    end.netted = true;
  }
  void Finish() {
    const auto cheapest = std::min_element(ends_.begin(), ends_.end(), [&](const auto& a, const auto& b) {
      return scales_.Weigh(a.second.choice) < scales_.Weigh(b.second.choice);
    });
    if (cheapest != ends_.end()) DescendByPairs(cheapest->second.choice, cheapest->second.family, scales_);
  }

 private:
  struct End {
    Choice choice;
    Family family;
    bool netted = false;
  };
  void Take(const Choice& other, const Family& family, End& end) {
    if (scales_.Weigh(other) >= scales_.Weigh(end.choice)) return;
    end.choice = other;
    end.family = family;
  }

  Scales& scales_;
  std::map<Compute, End> ends_;
};

bool SamePlan(const Plan& a, const Plan& b) {
  return a.layout == b.layout && a.stages == b.stages && a.launches == b.launches && a.compute == b.compute &&
         a.fusion == b.fusion && a.x_slots == b.x_slots && a.step_groups == b.step_groups &&
         a.warps_k == b.warps_k;
}

}  // namespace

PlanResult MakePlan(const Request& request, int keep, Search search) {
  Validate(request);
  if (request.format.kind == FormatKind::kDense && request.format.dtype == DType::kF32)
    Fail("plan: format {}: dtype: found fp32, allowed: fp16, bf16", request.format.name);
  Scales scales(request);
  Descent descent(scales);
  std::vector<Choice> ranked;
  for (const std::vector<Choice>& tiers : Tiers(request)) {
    const std::vector<Family> families = FamiliesOf(request, tiers);
    if (search == Search::kDescent) {
      for (const Family& family : families) descent.Search(family);
      descent.Finish();
    }
    if (search == Search::kAll || !scales.Found()) {
      for (const Family& family : families) WeighAll(family, 0, family.start, scales);
    }
    ranked = scales.Ranked();
    if (!ranked.empty()) break;
  }
  if (ranked.empty())
    Fail("plan: {} {}x{}x{} {}: nothing fits: {}", ToString(request.op), request.m, request.n, request.k,
         request.format.name, scales.why());
  PlanResult result;
  result.considered = static_cast<int>(ranked.size());
  result.best = scales.Evaluate(ranked.front());
  for (size_t i = 1; i < ranked.size() && static_cast<int>(result.runners_up.size()) < keep; ++i) {
    // Tiers that come out alike give the same plan more than once.
    Candidate other = scales.Evaluate(ranked[i]);
    const auto same = [&](const Candidate& shown) { return SamePlan(shown.plan, other.plan); };
    if (same(result.best) || std::any_of(result.runners_up.begin(), result.runners_up.end(), same)) continue;
    result.runners_up.push_back(std::move(other));
  }
  return result;
}

}  // namespace vqllm
