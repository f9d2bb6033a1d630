// What work on codes asks of memory beside the stream: follows codegen/decode/kv_codes.cc and
// codegen/ops/attention_counts.cc.
#include <algorithm>
#include <numeric>

#include "codegen/decode/kv_reader.h"
#include "codegen/kv/traffic.h"

namespace vqllm::internal {

Traffic FillTableTraffic(const KvPlan& plan) {
  Traffic t;
  const KvSideLayout& layout = plan.key.layout;
  const int rows = plan.Threads() / layout.units;  // entries that a block takes at once
  const int threads = rows * layout.units;
  const int floats = KvFloatVector(layout);
  const int bytes = std::min(16, 4 * layout.entry_words);
  const int used = ((layout.unit_channels + 1) / 2 * 4 + bytes - 1) / bytes;
  for (int warp = 0; warp * 32 < threads; ++warp) {
    for (int i = 0; i < plan.tile; ++i) {
      for (int c = 0; c < layout.unit_channels; c += floats) {
        t.SharedLoad(ThreadsBelow(warp, threads,
                                  [&](int thread) {
                                    return 4 * (i * plan.shape.head_dim +
                                                thread % layout.units * layout.unit_channels + c);
                                  }),
                     4 * floats, 1);
      }
    }
    for (const StageTier& tier : plan.key.stages) {
      // Whole warps all the way: one request stands for all.
      if (threads == plan.Threads() && tier.entries % rows == 0) {
        if (warp > 0) continue;
        const int64_t count = int64_t{tier.entries} * layout.units / 32;
        const auto lanes = [&](int64_t stride) {
          return WarpAccess::Of([&](int lane) { return lane * stride; });
        };
        t.GlobalLoad(lanes(4 * layout.entry_words), bytes,
                     {{used, bytes}, {count, int64_t{32} * 4 * layout.entry_words}});
        t.SharedStore(lanes(4), 4, static_cast<double>(plan.tile * count));
        continue;
      }
      for (int first = 0; first < tier.entries; first += rows) {
        const int busy = std::min(rows, tier.entries - first) * layout.units;
        if (warp * 32 >= std::min(threads, busy)) continue;
        const auto lanes = [&](int64_t stride) {
          return ThreadsBelow(warp, busy,
                              [&](int thread) { return (int64_t{first} * layout.units + thread) * stride; });
        };
        t.GlobalLoad(lanes(4 * layout.entry_words), bytes, {{used, bytes}});
        t.SharedStore(lanes(4), 4, plan.tile);
      }
    }
  }
  return t;
}

Traffic KeepCountsTraffic(const KvPlan& plan) {
  Traffic t;
  const KvSideLayout& layout = plan.value.layout;
  const int parts = plan.warps * plan.TokenLanes();
  const int entries = plan.value.Entries();
  const int threads = plan.Threads();
  const auto cell = [&](int i, int step, int entry, int thread) {
    return 4 * ((int64_t{i} * layout.slice_units + step) * entries + entry) * threads + 4 * thread;
  };
  // Bases and sums of the parts.
  for (int i = 0; i < plan.tile; ++i)
    t.SharedStore(WarpAccess::Of([&](int lane) -> int64_t {
                    return lane % plan.lanes == 0 ? 4 * (lane / plan.lanes) : -1;
                  }),
                  4, 2.0 * plan.warps);
  const WarpAccess queries =
      WarpAccess::Of([&](int lane) { return lane < plan.tile ? 4 * lane * parts : -1; });
  t.SharedLoad(queries, 4, 3.0 * parts);  // the largest base; a base and a sum of each part
  int floats = 4;
  while (parts % floats != 0) floats /= 2;
  t.SharedStore(queries, 4, parts);
  t.SharedStore(WarpAccess::Of([&](int lane) { return lane < plan.tile ? 4 * lane : -1; }), 4, 2);
  // Counts of all parts.
  const int cells = plan.tile * entries * layout.units;
  // A row of units further lie the same banks.
  const int period = std::lcm(layout.units, 32);
  const int distinct = cells % period == 0 ? period : cells;
  const double times = static_cast<double>(cells / distinct);
  for (int first = 0; first < distinct; first += 32) {
    const auto access = [&](auto&& at) {
      return WarpAccess::Of([&](int lane) -> int64_t {
        const int x = first + lane;
        return x < cells ? at(x / layout.units / entries, x / layout.units % entries, x % layout.units) : -1;
      });
    };
    for (int part = 0; part < parts; ++part) {
      const int turn = plan.value.turned ? part % plan.TokenLanes() % layout.slice_units : 0;
      if (part % floats == 0)
        t.SharedLoad(access([&](int i, int, int) { return 4 * (i * parts + part); }), 4 * floats, times);
      t.SharedLoad(access([&](int i, int entry, int unit) {
                     return cell(i, (unit / layout.slices + layout.slice_units - turn) % layout.slice_units,
                                 entry, part * plan.lanes + unit % layout.slices);
                   }),
                   4, times);
    }
    t.SharedStore(access([&](int i, int entry, int unit) {
                    return cell(i, unit / layout.slices, entry, unit % layout.slices);
                  }),
                  4, times);
  }
  // Counts meet entries: random codes leave none of them empty but where there are few tokens.
  const int channels = plan.tile * plan.shape.head_dim;
  for (int first = 0; first < channels; first += 32) {
    const auto access = [&](auto&& at) {
      return WarpAccess::Of([&](int lane) -> int64_t {
        const int x = first + lane;
        return x < channels ? at(x / plan.shape.head_dim, x % plan.shape.head_dim) : -1;
      });
    };
    t.SharedLoad(access([&](int i, int channel) {
                   const int unit = channel / layout.unit_channels;
                   return cell(i, unit / layout.slices, 0, unit % layout.slices);
                 }),
                 4, entries);
    const int64_t row = int64_t{4} * layout.units * layout.entry_words;
    t.GlobalLoad(access([&](int, int channel) {
                   return int64_t{4} * (channel / layout.unit_channels) * layout.entry_words +
                          2 * (channel % layout.unit_channels);
                 }),
                 2, {{entries, row}});
    t.SharedStore(WarpAccess::Of([&](int lane) { return first + lane < channels ? 4 * (first + lane) : -1; }),
                  4, 1);
  }
  t[Metric::kBarriers] += 3.0 * plan.warps;
  return t;
}

}  // namespace vqllm::internal
