// Decode attention: which tokens a block reads, and the order of its steps.
#include <cmath>

#include "codegen/decode/kv_reader.h"
#include "codegen/ops/attention_parts.h"
#include "codegen/ops/kv.h"
#include "codegen/text.h"
#include "vq/base/error.h"

namespace vqllm::internal {
namespace {

std::string QueryConstants(const KvPlan& plan) {
  return FillText(
      R"(
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
    $headroom$

    static_assert(kTile * kQueryTiles >= kQueries, "every query has a block");
    static_assert(kSplitTokens % kPageTokens == 0, "splits begin at pages");
  )",
      {{"group", plan.group},
       {"q_tokens", plan.q_tokens},
       {"tile", plan.tile},
       {"tiles", plan.query_tiles},
       {"scale", fmt::format("{:.9e}", 1.4426950408889634 / std::sqrt(plan.shape.head_dim))},
       {"split_tokens", plan.split_tokens},
       {"splits", plan.AllSplits()},
       {"exact", plan.ReadsExact() ? ": the exact copies first, then the stored tokens" : ""},
       {"warps", plan.warps},
       {"slots", plan.slots},
       {"lanes", plan.lanes},
       {"headroom",
        plan.value.Codes()
            ? "constexpr float kHeadroom = 40;  // how far scores may be above the base, to base 2"
            : ""}});
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

/// The queries of a block as fp32 in shared memory; a barrier must follow.
std::string StageQueries(const KvPlan& plan) {
  return FillText(R"(
    // Queries, rotated to their positions; 0 where the tile has more than the row.
    float* queries = reinterpret_cast<float*>(shared + $at$);
    for (int i = threadIdx.x; i < kTile * kHeadDim; i += kThreads) {
      const int index = first_query + i / kHeadDim;
      const int channel = i % kHeadDim;
      const int token = index / kGroup;
      const int position = row.z - row.y + token;
      float value = 0;
      if (index < kQueries && token < row.y && position >= 0) {
        const $element$* from = q + (static_cast<long long>(row.x + token) * kHeads + head * kGroup + index % kGroup) * kHeadDim;
        value = $read$ * kScale;
      }
      queries[i] = value;
    }
  )",
                  {{"at", plan.QueryAt()},
                   {"element", ElementType(plan.activation)},
                   {"read", plan.shape.rope_dim > 0 ? "Rotated(from, channel, rope, position)"
                                                    : "ToFloat(from[channel])"}});
}

std::string Kernel(const KvPlan& plan) {
  const bool merges = plan.Merges();
  const KvBooksText books = KvBooks(plan);
  std::string arguments = "queries, row, head, first_query, span, keys, values, page_ids" + books.arguments;
  std::string exact_arguments = "queries, row, head, first_query, ExactSpan(row), exact";
  if (plan.shape.keys_before_rope && plan.shape.rope_dim > 0) {
    arguments += ", rope";
    exact_arguments += ", rope";
  }
  std::string stored =
      FillText(R"(
    const Span span = StoredSpan(row, $split$);
    $leave$
    $queries$
    $barrier$
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
                {"queries", StageQueries(plan)},
                {"barrier", plan.key.Codes() ? "__syncthreads();  // products take all queries" : ""},
                {"books", books.fill},
                {"pages_at", plan.PageAt()},
                {"arguments", arguments}});
  if (plan.ReadsExact()) {
    stored = FillText(R"(
      if (split == 0) {
        $queries$
        __syncthreads();
        AttendExact($exact$, state);
      } else {
        $stored$
      }
    )",
                      {{"queries", StageQueries(plan)}, {"exact", exact_arguments}, {"stored", stored}});
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
      float* state = reinterpret_cast<float*>(shared$state_at$);

      // 1. The row, KV head, queries and tokens of this block.
      const int4 row = rows[blockIdx.z];
      const int head = blockIdx.x / kQueryTiles;
      const int first_query = blockIdx.x % kQueryTiles * kTile;
      $split$

      // 2. Tokens past queries.
      $stored$
      __syncthreads();

      // 3. The states of $what$, in their order.
      for (int i = threadIdx.x; i < kTile * kHeadDim; i += kThreads) {
        const int query = i / kHeadDim;
        const int channel = i % kHeadDim;
        const int index = first_query + query;
        const int token = index / kGroup;
        if (index >= kQueries || token >= row.y) continue;
        const float* tops = state + kWarps * kTile * kHeadDim + query;
        const float* sums = tops + kWarps * kTile;
        float top = tops[0];
        for (int w = 1; w < $states$; ++w) top = fmaxf(top, tops[w * kTile]);
        const float base = SoftmaxBase(top);
        float total = 0;
        float value = 0;
        for (int w = 0; w < $states$; ++w) {
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
                   {"state_at", plan.StateAt() > 0 ? fmt::format(" + {}", plan.StateAt()) : std::string()},
                   {"what", plan.value.Codes() ? "warps, or the one of all lanes' counts" : "warps"},
                   {"states", !plan.value.Codes() ? "kWarps"
                              : plan.ReadsExact() ? "(split == 0 ? kWarps : 1)"
                                                  : "1"},
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
                  AttentionStreamFunction(plan, {.name = "Stored",
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
                     AttentionStreamFunction(plan, {.name = "Exact",
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
