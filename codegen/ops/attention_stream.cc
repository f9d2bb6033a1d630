// Decode attention, token by token: queries stay in registers, tokens stream past them, each group of lanes
// that shares a token keeps an online softmax of its own.
#include "codegen/decode/kv_reader.h"
#include "codegen/ops/attention_parts.h"
#include "codegen/ops/kv.h"
#include "codegen/text.h"
#include "vq/base/error.h"

namespace vqllm::internal {
namespace {

bool TurnsKeys(const KvPlan& plan) { return plan.shape.keys_before_rope && plan.shape.rope_dim > 0; }
bool HasTable(const KvSidePlan& side) { return side.layout.format.kind == FormatKind::kTable; }

/// Slice of a lane on one side; lanes behind the last slice repeat it, with queries of 0.
std::string SliceText(const KvPlan& plan, const KvSidePlan& side, const std::string& reader,
                      const std::string& name) {
  const std::string turn =
      side.turned ? fmt::format(" + token_lane % {} * k{}Slices", side.layout.slice_units, reader) : "";
  if (side.layout.slices == plan.lanes) return fmt::format("const int {} = lane % kLanes{};\n", name, turn);
  return fmt::format("const int {} = min(lane % kLanes, k{}Slices - 1){};\n", name, reader, turn);
}

/// The queries of a lane's channels.
std::string LoadQueries(const KvPlan& plan, const AttentionStream& stream) {
  if (stream.key_side.Codes()) return "";
  const KvSideLayout& layout = stream.key_side.layout;
  std::string owned;
  if (layout.slices < plan.lanes) owned = fmt::format("lane % kLanes < k{}Slices", stream.key);
  if (layout.slices * layout.SliceChannels() > plan.shape.head_dim)
    owned += fmt::format("{}channel < kHeadDim", owned.empty() ? "" : " && ");
  const int floats = KvFloatVector(layout);
  const std::string vector = KvFloatType(floats);
  std::string parts;
  for (int at = 0; at < floats; ++at)
    parts += fmt::format("query[i][c + {}] = near{};\n", at, KvFloatComponent(floats, at));
  // What turning a key multiplies its channel with, besides the query: the other channel of the pair.
  const std::string partner =
      FillText(R"(
    #pragma unroll
    for (int part = 0; part < $floats$; ++part) {
    const int at = $key$Channel(key_slice, c + part);
    const int other = at < kRopeHalf ? at + kRopeHalf : at - kRopeHalf;
    partner[i][c + part] = $owned$at < 2 * kRopeHalf ? (at < kRopeHalf ? 1.0f : -1.0f) * queries[i * kHeadDim + other] : 0.0f;
    }
  )",
               {{"key", stream.key}, {"floats", floats}, {"owned", owned.empty() ? "" : owned + " && "}});
  return FillText(
      R"(
    float query[kTile][k$key$Channels];
    $partner$
    #pragma unroll
    for (int i = 0; i < kTile; ++i) {
      #pragma unroll
      for (int c = 0; c < k$key$Channels; c += $floats$) {
        const int channel = $key$Channel(key_slice, c);
        const $vector$ near = $owned$reinterpret_cast<const $vector$*>(queries + i * kHeadDim + channel)[0]$else$;
        $parts$
        $read_partner$
      }
    }
  )",
      {{"key", stream.key},
       {"owned", owned.empty() ? "" : owned + " ? "},
       {"floats", floats},
       {"vector", vector},
       {"parts", parts},
       {"else", owned.empty() ? ""
                              : fmt::format(" : {}", floats == 4   ? "make_float4(0, 0, 0, 0)"
                                                     : floats == 2 ? "make_float2(0, 0)"
                                                                   : "0.0f")},
       {"partner", TurnsKeys(plan) ? fmt::format("float partner[kTile][k{}Channels];", stream.key) : ""},
       {"read_partner", TurnsKeys(plan) ? partner : ""}});
}

/// Statements that make `position` and `record` of token `t` of the stream; t lies within it.
std::string TokenPlace(const KvPlan& plan, const AttentionStream& stream) {
  if (!stream.exact) {
    return R"(
      const int position = t;
      const long long token = static_cast<long long>(page_ids[(t - first_page * kPageTokens) / kPageTokens]) * (kKvHeads * kPageTokens) + head * kPageTokens + t % kPageTokens;
    )";
  }
  return KvExactToken(plan);
}

std::string LoadTokens(const KvPlan& plan, const AttentionStream& stream) {
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
std::string Visible(const KvPlan& plan, const AttentionStream& stream) {
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
std::string Limits(const KvPlan& plan, const AttentionStream& stream) {
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
std::string Scores(const KvPlan& plan, const AttentionStream& stream) {
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
  const bool idle = stream.key_side.layout.slices < plan.lanes;
  const std::string decoded = FillText(R"(
    float x[k$key$Channels];
    Decode$key$(key_words[s], $arguments$x);
    $dot$
  )",
                                       {{"key", stream.key},
                                        {"arguments", KvDecodeArguments(stream.key_side, "key", "key_slice")},
                                        {"dot", TurnsKeys(plan) ? turned : plain}});
  const std::string products = fmt::format("{}AddKeyProducts(key_words[s], key_slice, key_table, score[s]);",
                                           idle ? "if (lane % kLanes < kKeySlices) " : "");
  return FillText(
      R"(
    float score[kSlots][kTile] = {};
    #pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      $add$
      #pragma unroll
      for (int i = 0; i < kTile; ++i) {
        const float sum = SumLanes(score[s][i], kLanes);
        score[s][i] = $visible$ ? sum : Unseen();
      }
    }
  )",
      {{"add", stream.key_side.Codes() ? products : decoded}, {"visible", Visible(plan, stream)}});
}

std::string Values(const KvPlan& plan, const AttentionStream& stream) {
  if (stream.value_side.Codes()) return CountTokens();
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

}  // namespace

std::string AttentionStreamFunction(const KvPlan& plan, const AttentionStream& stream) {
  std::string parameters = "const float* queries, int4 row, int head, int first_query, Span span";
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
    if (stream.key_side.Codes()) {
      parameters += ", const float* key_table";
    } else {
      add(stream.key_side, "key");
    }
    add(stream.value_side, "value");
    if (stream.value_side.Codes()) parameters += ", float* all_counts";
  }
  if (TurnsKeys(plan)) parameters += ", const float2* __restrict__ rope";
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
      $sums$
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
                   {"sums", stream.value_side.Codes()
                                ? ClearCounts()
                                : fmt::format("float acc[kTile][k{}Channels] = {{}};", stream.value)},
                   {"load", LoadTokens(plan, stream)},
                   {"scores", Scores(plan, stream)},
                   {"values", Values(plan, stream)},
                   {"keep", stream.value_side.Codes() ? KeepCounts(plan) : KeepState(plan, stream)}});
}

}  // namespace vqllm::internal
