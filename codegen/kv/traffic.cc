// What the frame of kernel attention asks of memory: follows codegen/ops/attention.cc and attention_merge.cc.
#include "codegen/kv/traffic.h"

#include <algorithm>
#include <vector>

#include "codegen/decode/kv_reader.h"
#include "vq/base/math.h"

namespace vqllm {
namespace {

using internal::ThreadsBelow;

/// Distinct sectors of ranges in any order.
class Sectors {
 public:
  void Add(int64_t at, int64_t bytes) {
    if (bytes > 0) ranges_.emplace_back(at / kSectorBytes, (at + bytes - 1) / kSectorBytes);
  }
  double Count() {
    std::sort(ranges_.begin(), ranges_.end());
    int64_t count = 0;
    int64_t next = 0;  // sectors below are counted
    for (const auto& [first, last] : ranges_) {
      count += std::max<int64_t>(0, last - std::max(first, next) + 1);
      next = std::max(next, last + 1);
    }
    return static_cast<double>(count);
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;
};

/// Stored tokens [begin, end) of a split: see StoredSpan.
struct Span {
  int begin = 0;
  int end = 0;
};
Span SpanOf(const KvPlan& plan, int length, int split) {
  const int oldest =
      plan.shape.sliding_window > 0 ? std::max(0, length - plan.q_tokens - plan.shape.sliding_window + 1) : 0;
  const int start = oldest / plan.shape.page_tokens * plan.shape.page_tokens + split * plan.split_tokens;
  return {std::max(oldest, start), std::min(length - plan.shape.window, start + plan.split_tokens)};
}

/// Row of activations of token `t` of sequence `row`, as proofs lay them out.
int64_t ActivationRow(const KvPlan& plan, size_t row, int t) {
  return 1 + static_cast<int64_t>(row) * plan.q_tokens + t;
}

/// One tile of queries of a sequence.
struct Block {
  size_t row = 0;
  int length = 0;
  int tile = 0;
  int split = 0;

  /// Query `i` of the tile: its token and head of the group; token -1 where there is none.
  int Token(const KvPlan& plan, int i) const {
    const int index = tile * plan.tile + i;
    return index < plan.queries ? index / plan.group : -1;
  }
  int Head(const KvPlan& plan, int i) const { return (tile * plan.tile + i) % plan.group; }
};

/// Rotated queries into shared memory; blocks of all KV heads are alike but for their place.
void QueryTraffic(const KvPlan& plan, const Block& block, Traffic& t) {
  const int dim = plan.shape.head_dim;
  const int half = plan.shape.rope_dim / 2;
  const int count = plan.tile * dim;
  for (int first = 0; first < count; first += 32) {
    const int lanes = std::min(32, count - first);
    const auto access = [&](auto&& at) {
      return WarpAccess::Of([&](int lane) -> int64_t {
        if (lane >= lanes) return -1;
        const int i = (first + lane) / dim;
        const int token = block.Token(plan, i);
        const int position = block.length - plan.q_tokens + token;
        return token < 0 || position < 0 ? -1 : at(i, token, position, (first + lane) % dim);
      });
    };
    const auto element = [&](int i, int token, int channel) {
      return 2 *
             ((ActivationRow(plan, block.row, token) * plan.Heads() + block.Head(plan, i)) * dim + channel);
    };
    const Loop heads = {plan.shape.kv_heads, int64_t{2} * plan.group * dim};
    t.GlobalLoad(access([&](int i, int token, int, int c) { return element(i, token, c); }), 2, {heads});
    if (half > 0) {
      t.GlobalLoad(access([&](int i, int token, int, int c) -> int64_t {
                     return c >= 2 * half ? -1 : element(i, token, c < half ? c + half : c - half);
                   }),
                   2, {heads});
      t.GlobalLoad(access([&](int, int, int position, int c) -> int64_t {
                     return c >= 2 * half ? -1 : 8 * (int64_t{position} * half + c % half);
                   }),
                   8, {{plan.shape.kv_heads, 0}});
    }
    t.SharedStore(WarpAccess::Of([&](int lane) { return lane < lanes ? 4 * (first + lane) : -1; }), 4,
                  plan.shape.kv_heads);
  }
}

/// FillKeyEntries and FillValueEntries of one block; codebooks of heads are alike.
void FillTraffic(const KvSidePlan& side, Traffic& t) {
  if (side.stages.empty()) return;
  const int bytes = std::min(16, 4 * side.layout.entry_words);
  const int vectors = 4 * side.layout.entry_words / bytes;
  for (const StageTier& tier : side.stages) {
    const int run = tier.shared * side.layout.units;
    const bool alike = run % 32 == 0;  // one request stands for all
    const int64_t count = alike ? run / 32 : 1;
    for (int first = 0; first < run; first += alike ? run : 32) {
      const auto lanes = [&](int64_t stride) {
        return WarpAccess::Of([&](int lane) { return first + lane < run ? (first + lane) * stride : -1; });
      };
      t.GlobalLoad(lanes(int64_t{bytes} * vectors), bytes,
                   {{vectors, bytes}, {count, int64_t{32} * bytes * vectors}});
      t.SharedStore(lanes(bytes), bytes, static_cast<double>(vectors * count));
    }
  }
}

/// Step 3: the states of warps become a part or the answer.
void WriteTraffic(const KvPlan& plan, const Block& block, Traffic& t) {
  const int dim = plan.shape.head_dim;
  const int states = plan.value.Codes() ? 1 : plan.warps;
  const int splits = plan.AllSplits();
  for (int first = 0; first < plan.tile * dim; first += 32) {
    const auto access = [&](auto&& at) {
      return WarpAccess::Of([&](int lane) -> int64_t {
        const int x = first + lane;
        const int token = x < plan.tile * dim ? block.Token(plan, x / dim) : -1;
        return token < 0 ? -1 : at(x / dim, token, x % dim);
      });
    };
    const double heads = plan.shape.kv_heads;
    t.SharedLoad(access([&](int i, int, int) { return 4 * i; }), 4,
                 heads * states * 2);  // largest scores, sums
    t.SharedLoad(access([&](int i, int, int c) { return 4 * (i * dim + c); }), 4, heads * states);
    if (!plan.Merges()) {
      t.GlobalStore(
          access([&](int i, int token, int c) {
            return 2 *
                   ((ActivationRow(plan, block.row, token) * plan.Heads() + block.Head(plan, i)) * dim + c);
          }),
          2, {{plan.shape.kv_heads, int64_t{2} * plan.group * dim}});
      continue;
    }
    const auto slot = [&](int i, int token) {
      return ((static_cast<int64_t>(block.row) * plan.q_tokens + token) * plan.Heads() +
              block.Head(plan, i)) *
                 splits +
             block.split;
    };
    t.GlobalStore(access([&](int i, int token, int c) { return 4 * (slot(i, token) * dim + c); }), 4,
                  {{plan.shape.kv_heads, int64_t{4} * plan.group * splits * dim}});
    t.GlobalStore(access([&](int i, int token, int c) { return c == 0 ? 4 * slot(i, token) : -1; }), 4,
                  {{plan.shape.kv_heads, int64_t{4} * plan.group * splits}});
  }
}

/// First touch by the blocks of all KV heads at one tile and split.
void BlockTouch(const KvPlan& plan, const Block& block, const Span& span, Traffic& t) {
  const int dim = plan.shape.head_dim;
  const int splits = plan.AllSplits();
  double& loads = t[Metric::kLoadSectorsPerBlock];
  double& stores = t[Metric::kStoreSectorsPerBlock];
  for (int head = 0; head < plan.shape.kv_heads; ++head) {
    Sectors q, rope, out, partial, lse;
    for (int i = 0; i < plan.tile; ++i) {
      const int token = block.Token(plan, i);
      if (token < 0) continue;
      const int64_t row =
          ActivationRow(plan, block.row, token) * plan.Heads() + head * plan.group + block.Head(plan, i);
      const int position = block.length - plan.q_tokens + token;
      out.Add(2 * row * dim, 2 * dim);
      const int64_t slot = ((static_cast<int64_t>(block.row) * plan.q_tokens + token) * plan.Heads() +
                            head * plan.group + block.Head(plan, i)) *
                               splits +
                           block.split;
      partial.Add(4 * slot * dim, 4 * dim);
      lse.Add(4 * slot, 4);
      if (position < 0) continue;
      q.Add(2 * row * dim, 2 * dim);
      if (plan.shape.rope_dim > 0)
        rope.Add(int64_t{4} * position * plan.shape.rope_dim, int64_t{4} * plan.shape.rope_dim);
    }
    loads += 1 + q.Count() + rope.Count();
    stores += plan.Merges() ? partial.Count() + lse.Count() : out.Count();
  }
  if (span.begin >= span.end) return;
  const int page = plan.shape.page_tokens;
  Sectors pages;
  const int64_t first = static_cast<int64_t>(block.row) * plan.shape.Pages() + span.begin / page;
  pages.Add(4 * first, int64_t{4} * (CeilDiv(span.end, page) - span.begin / page));
  double sectors = pages.Count();
  const int tokens = span.end - span.begin;
  for (const KvSidePlan* side : {&plan.key, &plan.value}) {
    sectors +=
        static_cast<double>(CeilDiv(int64_t{4} * side->layout.RecordWords() * (tokens % page), kSectorBytes));
    sectors += static_cast<double>(tokens / page) *
               static_cast<double>(4 * side->layout.RecordWords() * page / kSectorBytes);
    sectors += side->Codes() ? internal::BookSectors(*side, 1e9) : internal::BookSectors(*side, tokens);
  }
  loads += plan.shape.kv_heads * sectors;
}

/// Kernel merge_splits for one sequence, `active` splits of which have written.
void MergeTraffic(const KvPlan& plan, size_t row, int active, Traffic& t) {
  const int dim = plan.shape.head_dim;
  const int splits = plan.AllSplits();
  for (int token = 0; token < plan.q_tokens; ++token) {
    const int64_t first = (static_cast<int64_t>(row) * plan.q_tokens + token) * plan.Heads() * splits;
    const Loop heads = {plan.Heads(), splits};
    for (int channel = 0; channel < dim; channel += 32) {
      const auto lanes = [&](auto&& at) {
        return WarpAccess::Of(
            [&](int lane) -> int64_t { return channel + lane < dim ? at(channel + lane) : -1; });
      };
      t.GlobalLoad(lanes([&](int) { return 4 * first; }), 4, {{heads.count, 4 * heads.stride}, {active, 4}});
      t.GlobalLoad(lanes([&](int c) { return 4 * (first * dim + c); }), 4,
                   {{heads.count, 4 * heads.stride * dim}, {active, int64_t{4} * dim}});
      t.GlobalStore(
          lanes([&](int c) { return 2 * (ActivationRow(plan, row, token) * plan.Heads() * dim + c); }), 2,
          {{heads.count, int64_t{2} * dim}});
      t.GlobalLoad(WarpAccess::Of([](int) { return 0; }), 16, {{heads.count, 0}});
    }
    const ByteRange lse[] = {{4 * first, int64_t{4} * active}};
    const ByteRange parts[] = {{4 * first * dim, int64_t{4} * active * dim}};
    const ByteRange out[] = {{2 * ActivationRow(plan, row, token) * plan.Heads() * dim, int64_t{2} * dim}};
    t.Touch(Metric::kLoadSectorsPerBlock, lse, {{heads.count, 4 * heads.stride}});
    t.Touch(Metric::kLoadSectorsPerBlock, parts, {{heads.count, 4 * heads.stride * dim}});
    t.Touch(Metric::kStoreSectorsPerBlock, out, {{heads.count, int64_t{2} * dim}});
    t[Metric::kLoadSectorsPerBlock] += plan.Heads();
    t[Metric::kBlocks] += plan.Heads();
  }
}

/// First touch of the launches by all sequences.
void LaunchTouch(const KvPlan& plan, std::span<const int> lengths, const std::vector<int>& active,
                 Traffic& t) {
  const int dim = plan.shape.head_dim;
  const int page = plan.shape.page_tokens;
  const int splits = plan.AllSplits();
  Sectors rows, q, rope, pages, out, partial, lse;
  double tokens = 0;
  double records = 0;
  for (size_t row = 0; row < lengths.size(); ++row) {
    const int length = lengths[row];
    rows.Add(static_cast<int64_t>(16 * row), 16);
    for (int token = 0; token < plan.q_tokens; ++token) {
      const int64_t at = 2 * ActivationRow(plan, row, token) * plan.Heads() * dim;
      out.Add(at, int64_t{2} * plan.Heads() * dim);
      const int position = length - plan.q_tokens + token;
      if (position < 0 || (plan.Merges() && active[row] == 0)) continue;
      q.Add(at, int64_t{2} * plan.Heads() * dim);
      if (plan.shape.rope_dim > 0)
        rope.Add(int64_t{4} * position * plan.shape.rope_dim, int64_t{4} * plan.shape.rope_dim);
    }
    if (plan.Merges() && active[row] > 0) {
      for (int64_t query = 0; query < int64_t{plan.q_tokens} * plan.Heads(); ++query) {
        const int64_t slot = (static_cast<int64_t>(row) * plan.q_tokens * plan.Heads() + query) * splits;
        partial.Add(4 * slot * dim, int64_t{4} * dim * active[row]);
        lse.Add(4 * slot, int64_t{4} * active[row]);
      }
    }
    if (length > 0) {
      const Span first = SpanOf(plan, length, 0);
      const int begin = first.begin / page;
      const int end = length - plan.shape.window;
      if (end > first.begin) {
        pages.Add(4 * (static_cast<int64_t>(row) * plan.shape.Pages() + begin),
                  int64_t{4} * (CeilDiv(end, page) - begin));
        const int seen = end - first.begin;
        tokens += seen;
        for (const KvSidePlan* side : {&plan.key, &plan.value})
          records += static_cast<double>(plan.shape.kv_heads) *
                     (static_cast<double>(seen / page) *
                          static_cast<double>(4 * side->layout.RecordWords() * page / kSectorBytes) +
                      CeilDiv(4 * side->layout.RecordWords() * (seen % page), kSectorBytes));
      }
    }
  }
  double books = 0;
  for (const KvSidePlan* side : {&plan.key, &plan.value})
    books +=
        tokens == 0 ? 0 : internal::BookSectors(*side, side->Codes() ? 1e9 : tokens) * plan.shape.kv_heads;
  t[Metric::kLoadSectorsPerLaunch] +=
      rows.Count() + q.Count() + rope.Count() + pages.Count() + records + books;
  t[Metric::kStoreSectorsPerLaunch] += plan.Merges() ? partial.Count() + lse.Count() : out.Count();
  if (!plan.Merges()) return;
  t[Metric::kLoadSectorsPerLaunch] += rows.Count() + partial.Count() + lse.Count();
  t[Metric::kStoreSectorsPerLaunch] += out.Count();
}

/// All blocks of one sequence at one split.
void SplitTraffic(const KvPlan& plan, size_t row, int length, int split, Traffic& t) {
  const double heads = plan.shape.kv_heads;
  const Span span = SpanOf(plan, length, split);
  const double tiles = plan.query_tiles;
  t.GlobalLoad(WarpAccess::Of([](int) { return 0; }), 16,
               {{int64_t{plan.shape.kv_heads} * plan.query_tiles * plan.warps, 0}});
  t[Metric::kBlocks] += heads * tiles;
  if (span.begin >= span.end && plan.Merges()) {
    t[Metric::kLoadSectorsPerBlock] += heads * tiles;
    return;
  }
  // What does not depend on the queries of a block.
  Traffic block;
  FillTraffic(plan.key, block);
  FillTraffic(plan.value, block);
  if (plan.key.Codes()) block += internal::FillTableTraffic(plan);
  const int page = plan.shape.page_tokens;
  const int first_page = span.begin / page;
  const int pages = std::max(0, CeilDiv(span.end, page) - first_page);
  for (int first = 0; first < pages; first += 32) {
    const auto lanes = [&](int64_t base) {
      return WarpAccess::Of(
          [&](int lane) -> int64_t { return first + lane < pages ? 4 * (base + first + lane) : -1; });
    };
    block.GlobalLoad(lanes(static_cast<int64_t>(row) * plan.shape.Pages() + first_page), 4, {});
    block.SharedStore(lanes(0), 4, 1);
  }
  block += internal::StreamTraffic(plan, span.begin, std::max(span.begin, span.end));
  block += plan.value.Codes() ? internal::KeepCountsTraffic(plan) : internal::KeepStateTraffic(plan);
  block[Metric::kBarriers] += plan.warps * (plan.key.Codes() ? 3 : 2);
  t.AddTimes(block, heads * tiles);
  for (int tile = 0; tile < plan.query_tiles; ++tile) {
    const Block of = {row, length, tile, split};
    QueryTraffic(plan, of, t);
    WriteTraffic(plan, of, t);
    BlockTouch(plan, of, span, t);
  }
}

}  // namespace

bool PredictsKvTraffic(const KvPlan& plan) {
  return plan.op == KvOp::kAttention && !plan.ReadsExact() && !plan.shape.keys_before_rope &&
         (plan.shape.sliding_window == 0 || plan.q_tokens == 1);
}

Traffic KvTraffic(const KvPlan& plan, std::span<const int> lengths) {
  Traffic t;
  std::vector<int> active;
  for (size_t row = 0; row < lengths.size(); ++row) {
    int written = 0;
    for (int split = 0; split < plan.splits; ++split) {
      SplitTraffic(plan, row, lengths[row], split, t);
      const Span span = SpanOf(plan, lengths[row], split);
      written += span.begin < span.end ? 1 : 0;
    }
    active.push_back(written);
    if (plan.Merges()) MergeTraffic(plan, row, written, t);
  }
  LaunchTouch(plan, lengths, active, t);
  return t;
}

Traffic EstimateKvTraffic(const KvPlan& plan) {
  Traffic t;
  const int one[] = {plan.shape.context};
  SplitTraffic(plan, 0, one[0], plan.splits - 1, t);
  if (plan.splits > 1) {
    Traffic full;
    SplitTraffic(plan, 0, one[0], 0, full);
    t.AddTimes(full, plan.splits - 1);
  }
  if (plan.Merges()) MergeTraffic(plan, 0, plan.splits, t);
  LaunchTouch(plan, one, {plan.splits}, t);
  Traffic all;
  all.AddTimes(t, plan.rows);
  // Sequences share codebooks.
  for (const KvSidePlan* side : {&plan.key, &plan.value}) {
    const auto books = [&](double tokens) {
      return internal::BookSectors(*side, side->Codes() ? 1e9 : tokens) * plan.shape.kv_heads;
    };
    all[Metric::kLoadSectorsPerLaunch] +=
        books(one[0] * static_cast<double>(plan.rows)) - plan.rows * books(one[0]);
  }
  return all;
}

namespace internal {

Traffic KeepStateTraffic(const KvPlan& plan) {
  Traffic t;
  const KvSideLayout& layout = plan.value.layout;
  const int dim = plan.shape.head_dim;
  const int floats = internal::KvFloatVector(layout);
  for (int c = 0; c < layout.SliceChannels(); c += floats) {
    const WarpAccess to = WarpAccess::Of([&](int lane) -> int64_t {
      const int slice = lane % plan.lanes;
      if (lane >= plan.lanes || slice >= layout.slices) return -1;
      const int channel = layout.UnitChannel(slice, c / layout.unit_channels) + c % layout.unit_channels;
      return channel < dim ? 4 * channel : -1;
    });
    t.SharedStore(to, 4 * floats, plan.warps * plan.tile);
  }
  t.SharedStore(WarpAccess::Of([](int lane) { return lane == 0 ? 0 : -1; }), 4, 2.0 * plan.warps * plan.tile);
  t[Metric::kBarriers] += plan.warps;
  return t;
}

}  // namespace internal
}  // namespace vqllm
