// What streaming tokens past queries asks of memory: follows codegen/ops/attention_stream.cc and
// codegen/decode/kv_*.
#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "codegen/decode/kv_reader.h"
#include "codegen/kv/lookup.h"
#include "codegen/kv/traffic.h"
#include "vq/base/math.h"

namespace vqllm::internal {
namespace {

/// One load of Load<Name>: byte of each lane within a record.
struct RecordRead {
  std::array<int64_t, 32> at{};
  int bytes = 4;
};

int SliceOf(const KvPlan& plan, const KvSideLayout& layout, int lane) {
  return std::min(lane % plan.lanes, layout.slices - 1);
}

std::vector<RecordRead> ReadsOf(const KvPlan& plan, const KvSidePlan& side) {
  const KvSideLayout& layout = side.layout;
  const int bits = layout.SliceBits();
  std::vector<RecordRead> reads;
  const auto add = [&](int bytes, auto&& at) {
    RecordRead read;
    read.bytes = bytes;
    for (int lane = 0; lane < 32; ++lane)
      read.at[static_cast<size_t>(lane)] = at(SliceOf(plan, layout, lane));
    reads.push_back(read);
  };
  if (bits % 32 == 0) {
    const int words = bits / 32;
    int vector = 4;
    while (words % vector != 0 || layout.RecordWords() % vector != 0) vector /= 2;
    for (int at = 0; at < words; at += vector)
      add(4 * vector, [&](int slice) { return 4 * (slice * words + at); });
  } else if (32 % bits == 0) {
    add(4, [&](int slice) { return slice * bits / 32 * 4; });
  } else {
    for (int w = 0; w <= (bits + 31) / 32; ++w)
      add(4, [&](int slice) { return 4 * std::min(slice * bits / 32 + w, layout.code_words - 1); });
  }
  if (layout.format.kind != FormatKind::kInt) return reads;
  const Format& f = layout.format;
  const int group = f.scale == ScaleKind::kGroup ? std::min(f.group, layout.head_dim) : layout.head_dim;
  const int span = group < layout.head_dim ? std::gcd(layout.unit_channels, group) : layout.unit_channels;
  const int size = f.symmetric ? 2 : 4;
  for (int u = 0; u < layout.slice_units; ++u) {
    for (int c = 0; c < layout.unit_channels; c += span) {
      add(size, [&](int slice) {
        return 4 * layout.code_words +
               size * (std::min(layout.UnitChannel(slice, u) + c, layout.head_dim - 1) / group);
      });
      if (layout.groups == 1) return reads;  // one number, one load
    }
  }
  return reads;
}

/// The loads of one side of all tokens [begin, end), as a block makes them.
void RecordTraffic(const KvPlan& plan, const KvSidePlan& side, int begin, int end, Traffic& t) {
  const int token_lanes = plan.TokenLanes();
  const int64_t record = 4 * side.layout.RecordWords();
  const int page = plan.shape.page_tokens;
  const int step = plan.warps * plan.slots * token_lanes;
  // Groups of tokens that one load reads differ by where they begin in a page, and by how far they reach
  // beyond the end.
  std::map<std::pair<int, int>, int> kinds;
  for (int start = begin; start < end; start += step) {
    for (int first = start; first < start + step; first += token_lanes) {
      const int tokens = std::clamp(end - first, 1, token_lanes);
      ++kinds[{(first < end ? first : end - 1) % std::max(page, token_lanes), tokens}];
    }
  }
  for (const RecordRead& read : ReadsOf(plan, side)) {
    for (const auto& [kind, count] : kinds) {
      const int begins = kind.first;
      const int tokens = kind.second;
      const WarpAccess access = WarpAccess::Of([&](int lane) {
        const int token = begins + std::min(lane / plan.lanes, tokens - 1);
        return (token / page * int64_t{plan.shape.kv_heads} * page + token % page) * record +
               read.at[static_cast<size_t>(lane)];
      });
      t.GlobalLoad(access, read.bytes, {{count, 0}});
    }
  }
}

/// The units of a step. Lanes that a guard holds back are left out, and so are those behind the last slice
/// where the lane that they repeat is in the same conflict group of `group` lanes.
LaneUnits UnitsOf(const KvPlan& plan, const KvSidePlan& side, int u, bool guarded, int group) {
  const KvSideLayout& layout = side.layout;
  LaneUnits units;
  for (int lane = 0; lane < 32; ++lane) {
    int slice = SliceOf(plan, layout, lane);
    if (side.turned) slice += lane / plan.lanes % layout.slice_units * layout.slices;
    int unit = u * layout.slices + slice;
    if (side.turned) unit %= layout.units;
    const bool behind = lane % plan.lanes >= layout.slices;
    const bool repeats = behind && (lane % group != 0 || guarded);
    const bool out = guarded && unit >= layout.units;
    units[static_cast<size_t>(lane)] = repeats || out ? -1 : std::min(unit, layout.units - 1);
  }
  return units;
}

void Add(const LookupCost& cost, double times, Traffic& t) {
  t[Metric::kSharedLoadRequests] += times * cost.shared_requests;
  t[Metric::kSharedLoadWavefronts] += times * cost.wavefronts;
  t[Metric::kSharedLoadWavefrontsIdeal] += times * cost.ideal;
  t[Metric::kGlobalLoadRequests] += times * cost.global_requests;
  t[Metric::kGlobalLoadSectors] += times * cost.sectors;
  t.global_lines += times * cost.lines;
}

/// Lookups of `decoded` groups of tokens.
void LookupTraffic(const KvPlan& plan, const KvSidePlan& side, double decoded, Traffic& t) {
  const KvSideLayout& layout = side.layout;
  for (const StageTier& stage : side.stages) {
    for (int u = 0; u < layout.slice_units; ++u) {
      if (side.Codes()) {
        StageTier table = stage;
        table.shared = table.entries;
        Add(ExpectedUnitLookup(table, layout.units, 4, 4, UnitsOf(plan, side, u, true, 32)),
            decoded * plan.tile, t);
        continue;
      }
      const int bytes = std::min(16, 4 * layout.entry_words);
      const int used = ((layout.unit_channels + 1) / 2 * 4 + bytes - 1) / bytes;
      Add(ExpectedUnitLookup(stage, layout.units, bytes, 4 * layout.entry_words,
                             UnitsOf(plan, side, u, false, 128 / bytes)),
          decoded * used, t);
    }
  }
}

/// Queries of a lane's channels, read by each warp.
void QueryReads(const KvPlan& plan, Traffic& t) {
  const KvSideLayout& layout = plan.key.layout;
  const int floats = KvFloatVector(layout);
  for (int i = 0; i < plan.tile; ++i) {
    for (int c = 0; c < layout.SliceChannels(); c += floats) {
      t.SharedLoad(WarpAccess::Of([&](int lane) -> int64_t {
                     int slice = SliceOf(plan, layout, lane);
                     if (plan.key.turned) slice += lane / plan.lanes % layout.slice_units * layout.slices;
                     int unit = c / layout.unit_channels * layout.slices + slice;
                     if (plan.key.turned) unit %= layout.units;
                     const int channel = unit * layout.unit_channels + c % layout.unit_channels;
                     const bool owned = lane % plan.lanes < layout.slices && channel < plan.shape.head_dim;
                     return owned ? 4 * (i * plan.shape.head_dim + channel) : -1;
                   }),
                   4 * floats, plan.warps);
    }
  }
}

}  // namespace

double BookSectors(const KvSidePlan& side, double tokens) {
  const KvSideLayout& layout = side.layout;
  const double entry = 4 * layout.entry_words;
  double sectors = 0;
  for (const StageTier& tier : side.stages) {
    const double columns = std::max(1.0, layout.units * entry / kSectorBytes);
    sectors += tier.shared * columns;
    sectors += columns * ExpectedDistinct(tier.shared, tier.entries, tier.entries, 1,
                                          tokens * layout.units / std::min<double>(columns, layout.units));
  }
  return sectors;
}

Traffic StreamTraffic(const KvPlan& plan, int begin, int end) {
  Traffic t;
  if (!plan.key.Codes()) QueryReads(plan, t);
  const int step = plan.warps * plan.slots * plan.TokenLanes();
  const double groups = CeilDiv(end - begin, step) * plan.warps * plan.slots;
  // The page of a token: lanes of one page read one word, and neighbouring pages are in neighbouring banks.
  t.SharedLoad(WarpAccess::Of([](int) { return 0; }), 4, groups);
  RecordTraffic(plan, plan.key, begin, end, t);
  RecordTraffic(plan, plan.value, begin, end, t);
  LookupTraffic(plan, plan.key, groups, t);
  if (!plan.value.Codes()) {
    LookupTraffic(plan, plan.value, groups, t);
    return t;
  }
  // Counts are read and written: a lane's own word, a bank for each lane.
  const double cells = static_cast<double>(plan.tile) * plan.value.layout.slice_units;
  const WarpAccess row = WarpAccess::Of([](int lane) { return 4 * lane; });
  t.SharedStore(row, 4, plan.warps * cells * plan.value.Entries());
  const double counted = groups * cells * static_cast<double>(plan.value.stages.size());
  t.SharedLoad(row, 4, counted);
  t.SharedStore(row, 4, counted);
  return t;
}

}  // namespace vqllm::internal
