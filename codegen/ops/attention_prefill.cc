// Attention of many tokens on tensor cores: a block has a tile of queries and decodes tiles of keys and
// values into shared memory, stored tokens first, then exact copies.
#include <cmath>

#include "codegen/decode/kv_reader.h"
#include "codegen/ops/kv.h"
#include "codegen/text.h"
#include "vq/base/error.h"
#include "vq/base/math.h"

namespace vqllm::internal {
namespace {

/// Tokens of one kind: from the pages, or the exact copies.
struct Stream {
  const char* name;
  std::string key;  // readers
  std::string value;
  const KvSidePlan& key_side;
  const KvSidePlan& value_side;
  bool exact;
};

bool Bf16(const KvPlan& plan) { return plan.activation == DType::kBF16; }
std::string Pack(const KvPlan& plan) { return Bf16(plan) ? "PackBfloat16" : "PackHalves"; }
bool TurnsKeys(const KvPlan& plan) { return plan.shape.keys_before_rope && plan.shape.rope_dim > 0; }

/// Writes the slices of one side of a tile of tokens.
std::string StageSide(const KvPlan& plan, const Stream& stream, bool keys) {
  const std::string& reader = keys ? stream.key : stream.value;
  const KvSidePlan& side = keys ? stream.key_side : stream.value_side;
  const KvSideLayout& layout = side.layout;
  const char* lower = keys ? "key" : "value";
  const std::string place =
      stream.exact ? KvExactToken(plan)
                   : "const int position = t;\n"
                     "const long long page = __ldg(pages + static_cast<long long>(blockIdx.z) * kPages + "
                     "position / kPageTokens);\n"
                     "const long long token = (page * kKvHeads + head) * kPageTokens + position % "
                     "kPageTokens;\n";
  const std::string record = stream.exact
                                 ? fmt::format("exact + (2 * token + {}) * kExactRecord", keys ? 0 : 1)
                                 : fmt::format("{}s + token * k{}Record", lower, reader);
  const bool cut = layout.slices * layout.SliceChannels() > plan.shape.head_dim;
  const bool pairs = layout.unit_channels % 2 == 0;
  const std::string store =
      pairs ? FillText(
                  R"(
      #pragma unroll
      for (int c = 0; c < k$name$Channels; c += 2) {
        const int channel = $name$Channel(slice, c);
        $guard$reinterpret_cast<unsigned*>(tile + n * kPitch + channel)[0] = $pack$(x[c], x[c + 1]);
      }
    )",
                  {{"name", reader}, {"guard", cut ? "if (channel < kHeadDim) " : ""}, {"pack", Pack(plan)}})
            : FillText(R"(
      #pragma unroll
      for (int c = 0; c < k$name$Channels; ++c) {
        const int channel = $name$Channel(slice, c);
        $guard$tile[n * kPitch + channel] = $round$(x[c]);
      }
    )",
                       {{"name", reader},
                        {"guard", cut ? "if (channel < kHeadDim) " : ""},
                        {"round", RoundCall(plan.activation)}});
  return FillText(R"(
    for (int i = threadIdx.x; i < kKeyTile * k$name$Slices; i += kThreads) {
      const int n = i / k$name$Slices;
      const int slice = i % k$name$Slices;
      const int t = min(start + n, span.end - 1);
      $element$* tile = $tile$;
      $place$
      unsigned words[k$name$Words];
      float x[k$name$Channels];
      Load$name$($record$, slice, words);
      Decode$name$(words, $arguments$x);
      $store$
    }
  )",
                  {{"name", reader},
                   {"element", ElementType(plan.activation)},
                   {"tile", keys ? "key_tile" : "value_tile"},
                   {"place", place},
                   {"record", record},
                   {"arguments", KvDecodeArguments(side, lower, "slice")},
                   {"store", store}});
}

/// Turns the staged keys to their positions, pair by pair.
std::string TurnTile(const KvPlan& plan, const Stream& stream) {
  if (!TurnsKeys(plan)) return "";
  const std::string position = stream.exact ? KvExactToken(plan) : std::string("const int position = t;\n");
  return FillText(R"(
    __syncthreads();
    for (int i = threadIdx.x; i < kKeyTile * kRopeHalf; i += kThreads) {
      const int n = i / kRopeHalf;
      const int t = min(start + n, span.end - 1);
      $position$
      $element$* pair = key_tile + n * kPitch + i % kRopeHalf;
      const float2 turn = __ldg(rope + static_cast<long long>(position) * kRopeHalf + i % kRopeHalf);
      const float a = ToFloat(pair[0]);
      const float b = ToFloat(pair[kRopeHalf]);
      pair[0] = $round$(fmaf(-b, turn.y, a * turn.x));
      pair[kRopeHalf] = $round$(fmaf(a, turn.y, b * turn.x));
    }
  )",
                  {{"position", position},
                   {"element", ElementType(plan.activation)},
                   {"round", RoundCall(plan.activation)}});
}

/// What the query at `at` sees of the token at `position`, besides t < span.end.
std::string Visible(const KvPlan& plan, const Stream& stream) {
  const KvShape& shape = plan.shape;
  std::string seen = " && position <= at[r]";
  const std::string sliding = shape.sliding_window > 0 ? "position > at[r] - kSliding" : "";
  if (!stream.exact) {
    if (shape.window > 0) seen = " && position <= at[r] - kWindow";
    return sliding.empty() ? seen : seen + " && " + sliding;
  }
  if (!plan.ReadsRecent()) return seen;
  std::string recent =
      shape.exact_chunk ? "(position > at[r] - kWindow || position >= fresh)" : "position > at[r] - kWindow";
  if (!sliding.empty()) recent += " && " + sliding;
  return seen + (shape.sinks > 0 ? fmt::format(" && (position < kSinks || ({}))", recent) : " && " + recent);
}

std::string StreamFunction(const KvPlan& plan, const Stream& stream) {
  const std::string element = ElementType(plan.activation);
  std::string parameters = stream.exact ? "const unsigned* __restrict__ exact"
                                        : "const int* __restrict__ pages, const unsigned* __restrict__ keys, "
                                          "const unsigned* __restrict__ values";
  const auto books = [&](const KvSidePlan& side, const char* name) {
    if (side.layout.format.kind != FormatKind::kTable) return;
    const std::string type = KvEntryType(side.layout);
    if (KvStagesEntries(side)) parameters += fmt::format(", const {}* {}_entries", type, name);
    if (KvReadsBooks(side)) parameters += fmt::format(", const {}* __restrict__ {}_books", type, name);
  };
  books(stream.key_side, "key");
  books(stream.value_side, "value");
  if (TurnsKeys(plan)) parameters += ", const float2* __restrict__ rope";
  std::string prologue;
  if (stream.exact && plan.ReadsRecent()) {
    if (plan.shape.sinks > 0) prologue += "const int sinks = min(kSinks, max(row.z, 0));\n";
    prologue += "const int recent = FirstRecent(row, first_token);\n";
    if (plan.shape.exact_chunk) prologue += "const int fresh = row.z - row.y;\n";
  }
  return FillText(
      R"(
    // Tiles of $what$ past the queries of the block.
    __device__ __forceinline__ void Attend$name$(int4 row, int head, int first_token, Span span, $parameters$,
                                                 $element$* key_tile, $element$* value_tile, const $element$* query_tile,
                                                 const int (&at)[2], float (&acc)[kChannelTiles][4], float (&top)[2], float (&sum)[2]) {
      const int lane = threadIdx.x % 32;
      const int warp = threadIdx.x / 32;
      $prologue$
      for (int start = span.begin; start < span.end; start += kKeyTile) {
        __syncthreads();  // all warps are done with the last tile
        $stage_keys$
        $stage_values$
        $turn$
        __syncthreads();

        // Scores: queries are the 16 rows of an mma, tokens its 8 columns.
        float score[kTokenTiles][4] = {};
        #pragma unroll 2
        for (int k = 0; k < kPadded; k += 16) {
          unsigned a[4];
          LoadMatrices(a, query_tile + (warp * 16 + lane % 16) * kPitch + k + lane / 16 * 8);
          #pragma unroll
          for (int n = 0; n < kTokenTiles; n += 2) {
            unsigned b[4];
            LoadMatrices(b, key_tile + (n * 8 + lane / 16 * 8 + lane % 8) * kPitch + k + lane / 8 % 2 * 8);
            Mma(score[n], a[0], a[1], a[2], a[3], b[0], b[1]);
            Mma(score[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
          }
        }

        // Softmax of rows lane / 4 and lane / 4 + 8; four lanes share a row.
        float largest[2] = {top[0], top[1]};
        #pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          #pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int r = e / 2;
            const int t = start + n * 8 + lane % 4 * 2 + e % 2;
            $position$
            score[n][e] = t < span.end$visible$ ? score[n][e] * kScale : Unseen();
            largest[r] = fmaxf(largest[r], score[n][e]);
          }
        }
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
          largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 1));
          largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 2));
          const float keep = exp2f(top[r] - SoftmaxBase(largest[r]));
          top[r] = largest[r];
          sum[r] *= keep;
          #pragma unroll
          for (int n = 0; n < kChannelTiles; ++n) {
            acc[n][2 * r] *= keep;
            acc[n][2 * r + 1] *= keep;
          }
        }
        #pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          #pragma unroll
          for (int e = 0; e < 4; ++e) {
            score[n][e] = exp2f(score[n][e] - SoftmaxBase(top[e / 2]));
            sum[e / 2] += score[n][e];
          }
        }

        // Values: the scores of 16 tokens are fragment a as they lie.
        #pragma unroll
        for (int k = 0; k < kTokenTiles; k += 2) {
          const unsigned a0 = $pack$(score[k][0], score[k][1]);
          const unsigned a1 = $pack$(score[k][2], score[k][3]);
          const unsigned a2 = $pack$(score[k + 1][0], score[k + 1][1]);
          const unsigned a3 = $pack$(score[k + 1][2], score[k + 1][3]);
          #pragma unroll
          for (int n = 0; n < kChannelTiles; n += 2) {
            unsigned b[4];
            LoadMatricesTransposed(b, value_tile + (k * 8 + lane % 16) * kPitch + n * 8 + lane / 16 * 8);
            Mma(acc[n], a0, a1, a2, a3, b[0], b[1]);
            Mma(acc[n + 1], a0, a1, a2, a3, b[2], b[3]);
          }
        }
      }
    }
  )",
      {{"what", stream.exact ? "exact copies" : "stored tokens"},
       {"name", stream.name},
       {"parameters", parameters},
       {"element", element},
       {"prologue", prologue},
       {"stage_keys", StageSide(plan, stream, true)},
       {"stage_values", StageSide(plan, stream, false)},
       {"turn", TurnTile(plan, stream)},
       {"position", stream.exact ? KvExactPosition(plan) : std::string("const int position = t;")},
       {"visible", Visible(plan, stream)},
       {"pack", Pack(plan)}});
}

/// The spans of tokens that some query of a block sees.
std::string Spans(const KvPlan& plan) {
  const KvShape& shape = plan.shape;
  const std::string sinks = shape.sinks > 0 ? "kSinks" : "0";
  const std::string oldest = shape.sliding_window > 0
                                 ? fmt::format("max({}, row.z - row.y + first_token - kSliding + 1)", sinks)
                                 : sinks;
  std::string newest = "row.z - row.y + last_token + 1";
  if (shape.window > 0) newest += " - kWindow";
  if (shape.exact_chunk) newest = fmt::format("min({}, row.z - row.y)", newest);
  std::string text = FillText(R"(
    struct Span {
      int begin;
      int end;
    };

    // Stored positions that queries first_token to last_token of a row read, all together; empty where end <= begin.
    __device__ __forceinline__ Span StoredSpan(int4 row, int first_token, int last_token) {
      return {$oldest$, $newest$};
    }
  )",
                              {{"oldest", oldest}, {"newest", newest}});
  if (!plan.ReadsExact()) return text;
  text += "\n";
  if (plan.ReadsRecent()) {
    std::string first =
        fmt::format("row.z - row.y + first_token{}", shape.window > 0 ? " - kWindow + 1" : "");
    if (shape.exact_chunk)
      first = shape.window > 0 ? fmt::format("min({}, row.z - row.y)", first) : "row.z - row.y";
    if (shape.sliding_window > 0)
      first = fmt::format("max({}, row.z - row.y + first_token - kSliding + 1)", first);
    text += FillText(R"(
      // The oldest recent token that queries from first_token on read as an exact copy.
      __device__ __forceinline__ int FirstRecent(int4 row, int first_token) { return max($sinks$, $first$); }
    )",
                     {{"sinks", sinks}, {"first", first}});
    text += "\n";
  }
  const std::string recent = "max(0, row.z - row.y + last_token + 1 - FirstRecent(row, first_token))";
  text += FillText(R"(
    // Exact copies are counted from 0: $order$.
    __device__ __forceinline__ Span ExactSpan(int4 row, int first_token, int last_token) {
      return {0, $count$};
    }
  )",
                   {{"order", !plan.ReadsRecent() ? "the sinks"
                              : shape.sinks > 0   ? "sinks first, then recent tokens"
                                                  : "recent tokens"},
                    {"count", !plan.ReadsRecent() ? std::string("min(kSinks, max(row.z, 0))")
                              : shape.sinks > 0   ? "min(kSinks, max(row.z, 0)) + " + recent
                                                  : recent}});
  return text;
}

std::string Constants(const KvPlan& plan) {
  return FillText(R"(
    constexpr int kGroup = $group$;  // query heads of a KV head
    constexpr int kHeads = kKvHeads * kGroup;
    constexpr int kQueries = $q_tokens$ * kGroup;  // of a row and KV head, at most: token by token, head by head
    constexpr int kWarps = $warps$;
    constexpr int kThreads = 32 * kWarps;
    constexpr int kTile = 16 * kWarps;  // queries of a block
    constexpr int kKeyTile = $key_tile$;  // tokens that are decoded at once
    constexpr float kScale = $scale$f;  // log2(e) / sqrt(kHeadDim): exponents are to base 2

    constexpr int kPadded = $padded$;  // channels of a row in shared memory; zeros behind kHeadDim
    constexpr int kPitch = kPadded + 8;  // 16 bytes more: eight rows of a matrix meet all banks
    constexpr int kTokenTiles = kKeyTile / 8;
    constexpr int kChannelTiles = kPadded / 8;

    static_assert(kPadded % 16 == 0 && kKeyTile % 16 == 0, "whole steps of an mma");
  )",
                  {{"group", plan.group},
                   {"q_tokens", plan.q_tokens},
                   {"warps", plan.warps},
                   {"key_tile", plan.key_tile},
                   {"scale", fmt::format("{:.9e}", 1.4426950408889634 / std::sqrt(plan.shape.head_dim))},
                   {"padded", RoundUp(plan.shape.head_dim, 16)}});
}

std::string Kernel(const KvPlan& plan) {
  const std::string element = ElementType(plan.activation);
  const KvBooksText books = KvBooks(plan);
  std::string stored =
      "row, head, first_token, StoredSpan(row, first_token, last_token), pages, keys, values" +
      books.arguments;
  std::string exact = "row, head, first_token, ExactSpan(row, first_token, last_token), exact";
  if (TurnsKeys(plan)) {
    stored += ", rope";
    exact += ", rope";
  }
  const std::string rest = ", key_tile, value_tile, query_tile, at, acc, top, sum";
  const bool padded = plan.shape.head_dim % 16 != 0;
  const std::string zeros = padded ? FillText(R"(
    // Zeros behind the channels of every row.
    for (int i = threadIdx.x; i < (kTile + 2 * kKeyTile) * (kPadded - kHeadDim); i += kThreads)
      query_tile[i / (kPadded - kHeadDim) * kPitch + kHeadDim + i % (kPadded - kHeadDim)] = $round$(0.0f);
  )",
                                              {{"round", RoundCall(plan.activation)}})
                                   : "";
  return FillText(
      R"(
    extern "C" __global__ void __launch_bounds__(kThreads, $min_blocks$)
    attention_prefill($parameters$) {
      extern __shared__ __align__(16) unsigned char shared[];
      $element$* query_tile = reinterpret_cast<$element$*>(shared + $query_at$);
      $element$* key_tile = query_tile + kTile * kPitch;
      $element$* value_tile = key_tile + kKeyTile * kPitch;

      // 1. The row, KV head and queries of this block: query i is token i / kGroup, head i % kGroup of the group.
      const int4 row = rows[blockIdx.z];
      const int head = blockIdx.x;
      const int first_query = blockIdx.y * kTile;
      const int first_token = first_query / kGroup;
      if (first_token >= row.y) return;
      const int last_token = min(row.y, (first_query + kTile - 1) / kGroup + 1) - 1;
      $books$

      // 2. Queries, rotated to their positions.
      $zeros$
      for (int i = threadIdx.x; i < kTile * kHeadDim; i += kThreads) {
        const int index = first_query + i / kHeadDim;
        const int channel = i % kHeadDim;
        const int token = index / kGroup;
        const int position = row.z - row.y + token;
        float value = 0;
        if (token < row.y && position >= 0) {
          const $element$* from = q + (static_cast<long long>(row.x + token) * kHeads + head * kGroup + index % kGroup) * kHeadDim;
          value = $read$;
        }
        query_tile[i / kHeadDim * kPitch + channel] = $round$(value);
      }

      // 3. Tokens past queries.
      const int lane = threadIdx.x % 32;
      const int first_row = threadIdx.x / 32 * 16 + lane / 4;
      int at[2];  // positions of this lane's two rows
      for (int r = 0; r < 2; ++r) at[r] = row.z - row.y + (first_query + first_row + 8 * r) / kGroup;
      float acc[kChannelTiles][4] = {};
      float top[2] = {Unseen(), Unseen()};
      float sum[2] = {};
      AttendStored($stored$);
      $exact$

      // 4. Sums over the four lanes of a row, and the answer.
      #pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        const int index = first_query + first_row + 8 * r;
        const int token = index / kGroup;
        if (token >= row.y) continue;
        $element$* to = out + (static_cast<long long>(row.x + token) * kHeads + head * kGroup + index % kGroup) * kHeadDim;
        const float factor = sum[r] == 0 ? 0.0f : 1 / sum[r];
        #pragma unroll
        for (int n = 0; n < kChannelTiles; ++n) {
          const int channel = n * 8 + lane % 4 * 2;
          $guard$reinterpret_cast<unsigned*>(to + channel)[0] = $pack$(acc[n][2 * r] * factor, acc[n][2 * r + 1] * factor);
        }
      }
    }
  )",
      {{"min_blocks", plan.min_blocks},
       {"parameters", KvParameters(plan, 0)},
       {"element", element},
       {"query_at", plan.QueryAt()},
       {"books", books.fill},
       {"zeros", zeros},
       {"read", fmt::format("{}", plan.shape.rope_dim > 0 ? "Rotated(from, channel, rope, position)"
                                                          : "ToFloat(from[channel])")},
       {"round", RoundCall(plan.activation)},
       {"stored", stored + rest},
       {"exact", plan.ReadsExact() ? fmt::format("AttendExact({}{});", exact, rest) : std::string()},
       {"guard", padded ? "if (channel < kHeadDim) " : ""},
       {"pack", Pack(plan)}});
}

}  // namespace

KernelText EmitAttentionPrefill(const KvPlan& plan) {
  const KvReaderText key = EmitKvReader(plan.key, "Key", plan.shape.kv_heads);
  const KvReaderText value = EmitKvReader(plan.value, "Value", plan.shape.kv_heads);
  KernelText out;
  out.blocks = {"softmax", "load_matrices_4", "load_matrices_transposed", Bf16(plan) ? "mma_bf16" : "mma_f16",
                Bf16(plan) ? "pack_bf16" : "pack_f16"};
  out.blocks.insert(key.blocks.begin(), key.blocks.end());
  out.blocks.insert(value.blocks.begin(), value.blocks.end());
  out.constants =
      fmt::format("{}\n{}\n{}{}", KvConstants(plan), Constants(plan), key.constants, value.constants);
  out.functions =
      fmt::format("{}\n{}\n{}\n{}\n{}", KvRotation(plan), Spans(plan), key.functions, value.functions,
                  StreamFunction(plan, {.name = "Stored",
                                        .key = "Key",
                                        .value = "Value",
                                        .key_side = plan.key,
                                        .value_side = plan.value,
                                        .exact = false}));
  if (plan.ReadsExact()) {
    const KvSidePlan side = ExactSide(plan);
    const KvReaderText exact = EmitKvReader(side, "Exact", plan.shape.kv_heads);
    out.blocks.insert(exact.blocks.begin(), exact.blocks.end());
    out.constants += exact.constants;
    out.functions += fmt::format("\n{}\n{}", exact.functions,
                                 StreamFunction(plan, {.name = "Exact",
                                                       .key = "Exact",
                                                       .value = "Exact",
                                                       .key_side = side,
                                                       .value_side = side,
                                                       .exact = true}));
  }
  out.kernels = Kernel(plan);
  return out;
}

}  // namespace vqllm::internal
