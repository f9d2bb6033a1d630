// Decode attention: queries stay in registers, tokens stream past them, each group of lanes that shares a
// token keeps an online softmax of its own.
#include <cmath>

#include "codegen/decode/kv_reader.h"
#include "codegen/ops/kv.h"
#include "codegen/text.h"
#include "vq/base/error.h"

namespace vqllm::internal {
namespace {

/// Tokens of one kind: from the pages, or the exact copies.
struct Stream {
  const char* name;  // of the function
  const char* what;  // for its comment
  std::string key;   // readers
  std::string value;
  const KvSidePlan& key_side;
  const KvSidePlan& value_side;
  bool exact;
};

bool TurnsKeys(const KvPlan& plan) { return plan.shape.keys_before_rope && plan.shape.rope_dim > 0; }
bool HasTable(const KvSidePlan& side) { return side.layout.format.kind == FormatKind::kTable; }

/// Slice of a lane on one side; lanes behind the last slice repeat it, with queries of 0.
std::string SliceText(const KvPlan& plan, const KvSidePlan& side, const std::string& reader,
                      const std::string& name) {
  if (side.layout.slices == plan.lanes) return fmt::format("const int {} = lane % kLanes;\n", name);
  return fmt::format("const int {} = min(lane % kLanes, k{}Slices - 1);\n", name, reader);
}

std::string LoadQueries(const KvPlan& plan, const Stream& stream) {
  const bool rotates = plan.shape.rope_dim > 0;
  const KvSideLayout& layout = stream.key_side.layout;
  std::string owned = "here";
  if (layout.slices < plan.lanes) owned += fmt::format(" && lane % kLanes < k{}Slices", stream.key);
  if (layout.slices * layout.SliceChannels() > plan.shape.head_dim) owned += " && channel < kHeadDim";
  const std::string partner = FillText(R"(
    // What turning a key multiplies its channel with, besides the query: the other channel of the pair.
    const bool first = channel < kRopeHalf;
    partner[i][c] = $owned$ && channel < 2 * kRopeHalf
                        ? Rotated(from, first ? channel + kRopeHalf : channel - kRopeHalf, rope, position) * (first ? kScale : -kScale)
                        : 0.0f;
  )",
                                       {{"owned", owned}});
  return FillText(
      R"(
    float query[kTile][k$key$Channels];
    $partner$
    #pragma unroll
    for (int i = 0; i < kTile; ++i) {
      const int token = (first_query + i) / kGroup;
      const int position = row.z - row.y + token;
      const bool here = first_query + i < kQueries && token < row.y && position >= 0;
      const $element$* from = q + (static_cast<long long>(row.x + token) * kHeads + head * kGroup + (first_query + i) % kGroup) * kHeadDim;
      #pragma unroll
      for (int c = 0; c < k$key$Channels; ++c) {
        const int channel = $key$Channel(key_slice, c);
        query[i][c] = $owned$ ? $read$ * kScale : 0.0f;
        $read_partner$
      }
    }
  )",
      {{"key", stream.key},
       {"element", ElementType(plan.activation)},
       {"owned", owned},
       {"read", rotates ? "Rotated(from, channel, rope, position)" : "ToFloat(from[channel])"},
       {"partner", TurnsKeys(plan) ? fmt::format("float partner[kTile][k{}Channels];", stream.key) : ""},
       {"read_partner", TurnsKeys(plan) ? partner : ""}});
}

/// Statements that make `position` and `record` of token `t` of the stream; t lies within it.
std::string TokenPlace(const KvPlan& plan, const Stream& stream) {
  if (!stream.exact) {
    return R"(
      const int position = t;
      const long long token = static_cast<long long>(page_ids[(t - first_page * kPageTokens) / kPageTokens]) * (kKvHeads * kPageTokens) + head * kPageTokens + t % kPageTokens;
    )";
  }
  return KvExactToken(plan);
}

std::string LoadTokens(const KvPlan& plan, const Stream& stream) {
  const std::string key = stream.exact ? "exact + 2 * token * kExactRecord" : "keys + token * kKeyRecord";
  const std::string value =
      stream.exact ? "exact + (2 * token + 1) * kExactRecord" : "values + token * kValueRecord";
  return FillText(R"(
    unsigned key_words[kSlots][k$key$Words];
    unsigned value_words[kSlots][k$value$Words];
    int positions[kSlots];
    #pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const int t = min(start + ((warp * kSlots + s) * kTokenLanes + token_lane), span.end - 1);
      $place$
      positions[s] = position;
      Load$key$($key_at$, key_slice, key_words[s]);
      Load$value$($value_at$, value_slice, value_words[s]);
    }
  )",
                  {{"key", stream.key},
                   {"value", stream.value},
                   {"place", TokenPlace(plan, stream)},
                   {"key_at", key},
                   {"value_at", value}});
}

/// What a query sees of a token that the row has.
std::string Visible(const KvPlan& plan, const Stream& stream) {
  std::string seen = "start + ((warp * kSlots + s) * kTokenLanes + token_lane) < span.end";
  if (plan.q_tokens == 1) return seen;
  seen += " && positions[s] <= newest[i]";
  if (stream.exact && plan.shape.window > 0)
    seen += plan.shape.sinks > 0 ? " && (positions[s] < kSinks || positions[s] >= oldest[i])"
                                 : " && positions[s] >= oldest[i]";
  if (!stream.exact && plan.shape.sliding_window > 0) seen += " && positions[s] >= oldest[i]";
  return seen;
}

/// Limits of what each query sees, where the queries of a block stand at several positions.
std::string Limits(const KvPlan& plan, const Stream& stream) {
  if (plan.q_tokens == 1) return "";
  const KvShape& shape = plan.shape;
  std::string oldest;
  if (stream.exact && shape.window > 0) {
    const std::string reach = shape.sliding_window > 0 ? "min(kWindow, kSliding)" : "kWindow";
    oldest = fmt::format("position - {} + 1", reach);
  } else if (!stream.exact && shape.sliding_window > 0) {
    oldest = "position - kSliding + 1";
  }
  const std::string newest = !stream.exact && shape.window > 0 ? "position - kWindow" : "position";
  return FillText(R"(
    $declare$
    int newest[kTile];
    #pragma unroll
    for (int i = 0; i < kTile; ++i) {
      const int position = row.z - row.y + (first_query + i) / kGroup;
      $oldest$
      newest[i] = $newest$;
    }
  )",
                  {{"declare", oldest.empty() ? "" : "int oldest[kTile];"},
                   {"oldest", oldest.empty() ? std::string() : fmt::format("oldest[i] = {};", oldest)},
                   {"newest", newest}});
}

/// score[s][i] = q . key over the lanes of a token.
std::string Scores(const KvPlan& plan, const Stream& stream) {
  const bool rest = plan.shape.rope_dim < plan.shape.head_dim;
  const std::string turned =
      FillText(R"(
    const float2* turns = rope + static_cast<long long>(positions[s]) * kRopeHalf;
    #pragma unroll
    for (int c = 0; c < k$key$Channels; ++c) {
      const int channel = $key$Channel(key_slice, c);
      const float2 turn = $guard$__ldg(turns + channel % kRopeHalf)$rest$;
      const float near = x[c] * turn.x;
      const float far = x[c] * turn.y;
      #pragma unroll
      for (int i = 0; i < kTile; ++i) score[s][i] = fmaf(near, query[i][c], fmaf(far, partner[i][c], score[s][i]));
    }
  )",
               {{"key", stream.key},
                {"guard", rest ? "channel >= 2 * kRopeHalf ? make_float2(1, 0) : " : ""},
                {"rest", ""}});
  const std::string plain = FillText(R"(
    #pragma unroll
    for (int c = 0; c < k$key$Channels; ++c) {
      #pragma unroll
      for (int i = 0; i < kTile; ++i) score[s][i] = fmaf(x[c], query[i][c], score[s][i]);
    }
  )",
                                     {{"key", stream.key}});
  return FillText(R"(
    float score[kSlots][kTile] = {};
    #pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      float x[k$key$Channels];
      Decode$key$(key_words[s], $arguments$x);
      $dot$
      #pragma unroll
      for (int i = 0; i < kTile; ++i) {
        const float sum = SumLanes(score[s][i], kLanes);
        score[s][i] = $visible$ ? sum : Unseen();
      }
    }
  )",
                  {{"key", stream.key},
                   {"arguments", KvDecodeArguments(stream.key_side, "key", "key_slice")},
                   {"dot", TurnsKeys(plan) ? turned : plain},
                   {"visible", Visible(plan, stream)}});
}

std::string Values(const KvPlan& plan, const Stream& stream) {
  // A probability of 0 must not meet a value that the query does not see: it may be infinite.
  const char* add = plan.q_tokens == 1
                        ? "acc[i][c] = fmaf(score[s][i], x[c], acc[i][c]);"
                        : "if (score[s][i] > 0) acc[i][c] = fmaf(score[s][i], x[c], acc[i][c]);";
  return FillText(R"(
    #pragma unroll
    for (int i = 0; i < kTile; ++i) {
      float largest = top[i];
      #pragma unroll
      for (int s = 0; s < kSlots; ++s) largest = fmaxf(largest, score[s][i]);
      const float base = SoftmaxBase(largest);
      const float keep = exp2f(top[i] - base);
      top[i] = largest;
      sum[i] *= keep;
      #pragma unroll
      for (int c = 0; c < k$value$Channels; ++c) acc[i][c] *= keep;
      #pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        score[s][i] = exp2f(score[s][i] - base);
        sum[i] += score[s][i];
      }
    }
    #pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      float x[k$value$Channels];
      Decode$value$(value_words[s], $arguments$x);
      #pragma unroll
      for (int c = 0; c < k$value$Channels; ++c) {
        #pragma unroll
        for (int i = 0; i < kTile; ++i) $add$
      }
    }
  )",
                  {{"value", stream.value},
                   {"arguments", KvDecodeArguments(stream.value_side, "value", "value_slice")},
                   {"add", add}});
}

/// Joins the token lanes of a warp, and leaves the warp's state in shared memory.
std::string KeepState(const KvPlan& plan, const Stream& stream) {
  const KvSideLayout& layout = stream.value_side.layout;
  std::string owned = plan.lanes == 32 ? "" : "token_lane == 0";
  if (layout.slices < plan.lanes)
    owned += fmt::format("{}lane % kLanes < k{}Slices", owned.empty() ? "" : " && ", stream.value);
  std::string store = FillText(
      R"(
    #pragma unroll
    for (int i = 0; i < kTile; ++i) {
      #pragma unroll
      for (int c = 0; c < k$value$Channels; ++c) {
        const int channel = $value$Channel(value_slice, c);
        $guard$state[(warp * kTile + i) * kHeadDim + channel] = acc[i][c];
      }
    }
  )",
      {{"value", stream.value},
       {"guard",
        layout.slices * layout.SliceChannels() > plan.shape.head_dim ? "if (channel < kHeadDim) " : ""}});
  if (!owned.empty()) store = FillText("if ($owned$) {\n  $store$\n}", {{"owned", owned}, {"store", store}});
  const std::string join = FillText(R"(
    #pragma unroll
    for (int distance = kLanes; distance < 32; distance *= 2) {
      #pragma unroll
      for (int i = 0; i < kTile; ++i) {
        const float other = __shfl_xor_sync(0xffffffffu, top[i], distance);
        const float base = SoftmaxBase(fmaxf(top[i], other));
        const float mine = exp2f(top[i] - base);
        const float theirs = exp2f(other - base);
        top[i] = fmaxf(top[i], other);
        sum[i] = sum[i] * mine + __shfl_xor_sync(0xffffffffu, sum[i], distance) * theirs;
        #pragma unroll
        for (int c = 0; c < k$value$Channels; ++c)
          acc[i][c] = acc[i][c] * mine + __shfl_xor_sync(0xffffffffu, acc[i][c], distance) * theirs;
      }
    }
  )",
                                    {{"value", stream.value}});
  return FillText(R"(
    $join$
    __syncthreads();  // the states take the place of entries and page numbers
    $store$
    if (lane == 0) {
      #pragma unroll
      for (int i = 0; i < kTile; ++i) {
        state[kWarps * kTile * kHeadDim + warp * kTile + i] = top[i];
        state[kWarps * kTile * (kHeadDim + 1) + warp * kTile + i] = sum[i];
      }
    }
  )",
                  {{"join", plan.lanes < 32 ? join : std::string()}, {"store", store}});
}

std::string StreamFunction(const KvPlan& plan, const Stream& stream) {
  std::string parameters =
      fmt::format("const {}* __restrict__ q, int4 row, int head, int first_query, Span span",
                  ElementType(plan.activation));
  std::string prologue;
  if (stream.exact) {
    parameters += ", const unsigned* __restrict__ exact";
    if (plan.shape.sinks > 0 && plan.shape.window > 0)
      prologue += "const int sinks = min(kSinks, max(row.z, 0));\n";
    if (plan.shape.window > 0) prologue += "const int recent = FirstRecent(row);\n";
  } else {
    parameters +=
        ", const unsigned* __restrict__ keys, const unsigned* __restrict__ values, const int* page_ids";
    prologue += "const int first_page = span.begin / kPageTokens;\n";
    const auto add = [&](const KvSidePlan& side, const char* name) {
      const std::string type = HasTable(side) ? KvEntryType(side.layout) : "";
      if (KvStagesEntries(side)) parameters += fmt::format(", const {}* {}_entries", type, name);
      if (KvReadsBooks(side)) parameters += fmt::format(", const {}* __restrict__ {}_books", type, name);
    };
    add(stream.key_side, "key");
    add(stream.value_side, "value");
  }
  if (plan.shape.rope_dim > 0) parameters += ", const float2* __restrict__ rope";
  return FillText(R"(
    // Streams $what$ past the queries of the block and leaves each warp's softmax in `state`: sums of
    // values [warp][query][channel], largest scores and sums of exponents [warp][query].
    __device__ __forceinline__ void Attend$name$($parameters$, float* state) {
      const int lane = threadIdx.x % 32;
      const int warp = threadIdx.x / 32;
      const int token_lane = lane / kLanes;
      $key_slice$
      $value_slice$
      $prologue$
      $queries$
      $limits$
      float acc[kTile][k$value$Channels] = {};
      float top[kTile];
      float sum[kTile] = {};
      #pragma unroll
      for (int i = 0; i < kTile; ++i) top[i] = Unseen();
      for (int start = span.begin; start < span.end; start += kWarps * kSlots * kTokenLanes) {
        $load$
        $scores$
        $values$
      }
      $keep$
    }
  )",
                  {{"what", stream.what},
                   {"name", stream.name},
                   {"parameters", parameters},
                   {"key_slice", SliceText(plan, stream.key_side, stream.key, "key_slice")},
                   {"value_slice", SliceText(plan, stream.value_side, stream.value, "value_slice")},
                   {"prologue", prologue},
                   {"queries", LoadQueries(plan, stream)},
                   {"limits", Limits(plan, stream)},
                   {"value", stream.value},
                   {"load", LoadTokens(plan, stream)},
                   {"scores", Scores(plan, stream)},
                   {"values", Values(plan, stream)},
                   {"keep", KeepState(plan, stream)}});
}

std::string QueryConstants(const KvPlan& plan) {
  return FillText(R"(
    constexpr int kGroup = $group$;  // query heads of a KV head
    constexpr int kHeads = kKvHeads * kGroup;
    constexpr int kQueryTokens = $q_tokens$;           // of a row, at most
    constexpr int kQueries = kQueryTokens * kGroup;  // of a row and KV head: token by token, head by head
    constexpr int kTile = $tile$;                  // queries of a block
    constexpr int kQueryTiles = $tiles$;
    constexpr float kScale = $scale$f;  // log2(e) / sqrt(kHeadDim): exponents are to base 2

    constexpr int kSplitTokens = $split_tokens$;  // stored context of a block
    constexpr int kSplits = $splits$;      // blocks that share a query$exact$
    constexpr int kWarps = $warps$;
    constexpr int kThreads = 32 * kWarps;
    constexpr int kSlots = $slots$;       // tokens that a lane has under way at once
    constexpr int kLanes = $lanes$;      // lanes that share a token
    constexpr int kTokenLanes = 32 / kLanes;

    static_assert(kTile * kQueryTiles >= kQueries, "every query has a block");
    static_assert(kSplitTokens % kPageTokens == 0, "splits begin at pages");
  )",
                  {{"group", plan.group},
                   {"q_tokens", plan.q_tokens},
                   {"tile", plan.tile},
                   {"tiles", plan.query_tiles},
                   {"scale", fmt::format("{:.9e}", 1.4426950408889634 / std::sqrt(plan.shape.head_dim))},
                   {"split_tokens", plan.split_tokens},
                   {"splits", plan.splits + (plan.ReadsExact() ? 1 : 0)},
                   {"exact", plan.ReadsExact() ? ": the exact copies first, then the stored tokens" : ""},
                   {"warps", plan.warps},
                   {"slots", plan.slots},
                   {"lanes", plan.lanes}});
}

/// The exact copies that some query of a row reads, as a span of one run of numbers.
std::string ExactSpans(const KvPlan& plan) {
  const KvShape& shape = plan.shape;
  std::string text;
  const std::string reach = shape.sliding_window > 0 ? "min(kWindow, kSliding)" : "kWindow";
  if (shape.window > 0) {
    text += FillText(R"(
      // The oldest recent token that some query of a row reads as an exact copy.
      __device__ __forceinline__ int FirstRecent(int4 row) { return max($sinks$, row.z - row.y - $reach$ + 1); }

    )",
                     {{"sinks", shape.sinks > 0 ? "kSinks" : "0"}, {"reach", reach}});
    text += "\n";
  }
  text += FillText(
      R"(
    // Exact copies are counted from 0: $order$.
    __device__ __forceinline__ Span ExactSpan(int4 row) { return {0, $sinks$$recent$}; }
  )",
      {{"order", shape.sinks > 0 ? (shape.window > 0 ? "sinks first, then recent tokens" : "the sinks")
                                 : "recent tokens"},
       {"sinks", shape.sinks > 0 ? "min(kSinks, max(row.z, 0))" : ""},
       {"recent", shape.window > 0 ? (shape.sinks > 0 ? " + max(0, row.z - FirstRecent(row))"
                                                      : "max(0, row.z - FirstRecent(row))")
                                   : ""}});
  return text;
}

std::string MergeKernel(const KvPlan& plan) {
  const std::string active =
      plan.ReadsExact() ? "if (s > 0) {\n  const Span span = StoredSpan(row, s - 1);\n"
                          "  if (span.begin >= span.end) break;\n}\n"
                        : "const Span span = StoredSpan(row, s);\nif (span.begin >= span.end) break;\n";
  return FillText(R"(
    // Joins the splits of a query in their order: the same bits at every run. Splits behind the end of a row have
    // written nothing.
    extern "C" __global__ void __launch_bounds__($threads$) merge_splits($parameters$) {
      const int4 row = rows[blockIdx.z];
      const int token = blockIdx.y;
      const int channel = threadIdx.x;
      if (token >= row.y$outside$) return;
      const long long first = ((static_cast<long long>(blockIdx.z) * kQueryTokens + token) * kHeads + blockIdx.x) * kSplits;
      float top = Unseen();
      float total = 0;
      float value = 0;
      for (int s = 0; s < kSplits; ++s) {
        $active$
        const float lse = partial_lse[first + s];
        const float largest = fmaxf(top, lse);
        const float base = SoftmaxBase(largest);
        const float keep = exp2f(top - base);
        const float weight = exp2f(lse - base);
        total = total * keep + weight;
        value = value * keep + weight * partial[(first + s) * kHeadDim + channel];
        top = largest;
      }
      out[(static_cast<long long>(row.x + token) * kHeads + blockIdx.x) * kHeadDim + channel] = $round$(total == 0 ? 0.0f : value / total);
    }
  )",
                  {{"threads", plan.launches[1].threads},
                   {"parameters", KvParameters(plan, 1)},
                   {"outside", plan.shape.head_dim % 32 != 0 ? " || channel >= kHeadDim" : ""},
                   {"active", active},
                   {"round", RoundCall(plan.activation)}});
}

std::string Kernel(const KvPlan& plan) {
  const bool merges = plan.Merges();
  std::string books;
  std::string arguments = "q, row, head, first_query, span, keys, values, page_ids";
  int at = 0;
  const auto stage = [&](const KvSidePlan& side, const char* name, const char* reader) {
    if (KvStagesEntries(side)) {
      const std::string type = KvEntryType(side.layout);
      books += fmt::format("{0}* {1}_entries = reinterpret_cast<{0}*>(shared + {2});\n", type, name, at);
      books += fmt::format("Fill{}Entries({}_books, head, {}_entries);\n", reader, name, name);
      arguments += fmt::format(", {}_entries", name);
      for (const StageTier& tier : side.stages)
        at += tier.shared * side.layout.units * 4 * side.layout.entry_words;
      at = (at + 15) / 16 * 16;
    }
    if (KvReadsBooks(side)) arguments += fmt::format(", {}_books", name);
  };
  stage(plan.key, "key", "Key");
  stage(plan.value, "value", "Value");
  std::string exact_arguments = "q, row, head, first_query, ExactSpan(row), exact";
  if (plan.shape.rope_dim > 0) {
    arguments += ", rope";
    exact_arguments += ", rope";
  }
  std::string stored = FillText(R"(
    const Span span = StoredSpan(row, $split$);
    $leave$
    $books$
    int* page_ids = reinterpret_cast<int*>(shared + $pages_at$);
    const int first_page = span.begin / kPageTokens;
    for (int i = first_page + threadIdx.x; i * kPageTokens < span.end; i += kThreads)
      page_ids[i - first_page] = __ldg(pages + static_cast<long long>(blockIdx.z) * kPages + i);
    __syncthreads();
    AttendStored($arguments$, state);
  )",
                                {{"split", plan.ReadsExact() ? "split - 1" : "split"},
                                 {"leave", merges ? "if (span.begin >= span.end) return;" : ""},
                                 {"books", books},
                                 {"pages_at", plan.book_bytes},
                                 {"arguments", arguments}});
  if (plan.ReadsExact()) {
    stored = FillText(R"(
      if (split == 0) {
        AttendExact($exact$, state);
      } else {
        $stored$
      }
    )",
                      {{"exact", exact_arguments}, {"stored", stored}});
  }
  const std::string write = merges ? R"(
        const long long slot = (((static_cast<long long>(blockIdx.z) * kQueryTokens + token) * kHeads + head * kGroup + index % kGroup) * kSplits + split);
        partial[slot * kHeadDim + channel] = total == 0 ? 0.0f : value / total;
        if (channel == 0) partial_lse[slot] = total == 0 ? Unseen() : top + log2f(total);
      )"
                                   : FillText(R"(
        out[(static_cast<long long>(row.x + token) * kHeads + head * kGroup + index % kGroup) * kHeadDim + channel] = $round$(total == 0 ? 0.0f : value / total);
      )",
                                              {{"round", RoundCall(plan.activation)}});
  return FillText(R"(
    extern "C" __global__ void __launch_bounds__(kThreads, $min_blocks$)
    attention($parameters$) {
      extern __shared__ __align__(16) unsigned char shared[];
      float* state = reinterpret_cast<float*>(shared);

      // 1. The row, KV head, queries and tokens of this block.
      const int4 row = rows[blockIdx.z];
      const int head = blockIdx.x / kQueryTiles;
      const int first_query = blockIdx.x % kQueryTiles * kTile;
      $split$

      // 2. Tokens past queries.
      $stored$
      __syncthreads();

      // 3. The warps' states, in their order.
      for (int i = threadIdx.x; i < kTile * kHeadDim; i += kThreads) {
        const int query = i / kHeadDim;
        const int channel = i % kHeadDim;
        const int index = first_query + query;
        const int token = index / kGroup;
        if (index >= kQueries || token >= row.y) continue;
        const float* tops = state + kWarps * kTile * kHeadDim + query;
        const float* sums = tops + kWarps * kTile;
        float top = tops[0];
        for (int w = 1; w < kWarps; ++w) top = fmaxf(top, tops[w * kTile]);
        const float base = SoftmaxBase(top);
        float total = 0;
        float value = 0;
        for (int w = 0; w < kWarps; ++w) {
          const float weight = exp2f(tops[w * kTile] - base);
          total += weight * sums[w * kTile];
          value += weight * state[(w * kTile + query) * kHeadDim + channel];
        }
        $write$
      }
    }
    $merge$
  )",
                  {{"min_blocks", plan.min_blocks},
                   {"parameters", KvParameters(plan, 0)},
                   {"split", merges ? "const int split = blockIdx.y;" : "constexpr int split = 0;"},
                   {"stored", stored},
                   {"write", write},
                   {"merge", merges ? fmt::format("\n{}", MergeKernel(plan)) : std::string()}});
}

}  // namespace

KernelText EmitAttention(const KvPlan& plan) {
  const KvReaderText key = EmitKvReader(plan.key, "Key", plan.shape.kv_heads);
  const KvReaderText value = EmitKvReader(plan.value, "Value", plan.shape.kv_heads);
  KernelText out;
  out.blocks = {"reduce", "softmax"};
  out.blocks.insert(key.blocks.begin(), key.blocks.end());
  out.blocks.insert(value.blocks.begin(), value.blocks.end());
  out.constants = KvConstants(plan) + "\n" + QueryConstants(plan) + "\n" + key.constants + value.constants;
  out.functions = KvRotation(plan) + "\n" + KvSpans(plan) + "\n" + key.functions + "\n" + value.functions +
                  "\n" +
                  StreamFunction(plan, {.name = "Stored",
                                        .what = "stored tokens",
                                        .key = "Key",
                                        .value = "Value",
                                        .key_side = plan.key,
                                        .value_side = plan.value,
                                        .exact = false});
  if (plan.ReadsExact()) {
    const KvSidePlan side = ExactSide(plan);
    const KvReaderText exact = EmitKvReader(side, "Exact", plan.shape.kv_heads);
    out.blocks.insert(exact.blocks.begin(), exact.blocks.end());
    out.constants += exact.constants;
    out.functions += fmt::format("\n{}\n{}\n", ExactSpans(plan), exact.functions) +
                     StreamFunction(plan, {.name = "Exact",
                                           .what = "exact copies",
                                           .key = "Exact",
                                           .value = "Exact",
                                           .key_side = side,
                                           .value_side = side,
                                           .exact = true});
  }
  out.kernels = Kernel(plan);
  return out;
}

}  // namespace vqllm::internal
