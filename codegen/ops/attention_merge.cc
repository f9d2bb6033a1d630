// Decode attention, softmax states: of token lanes, warps and splits, joined in a fixed order.
#include "codegen/decode/kv_reader.h"
#include "codegen/ops/attention_parts.h"
#include "codegen/ops/kv.h"
#include "codegen/text.h"
#include "vq/base/error.h"

namespace vqllm::internal {

std::string KeepState(const KvPlan& plan, const AttentionStream& stream) {
  const KvSideLayout& layout = stream.value_side.layout;
  std::string owned = plan.lanes == 32 ? "" : "token_lane == 0";
  if (layout.slices < plan.lanes)
    owned += fmt::format("{}lane % kLanes < k{}Slices", owned.empty() ? "" : " && ", stream.value);
  const int floats = KvFloatVector(layout);
  std::string store = FillText(
      R"(
    #pragma unroll
    for (int i = 0; i < kTile; ++i) {
      #pragma unroll
      for (int c = 0; c < k$value$Channels; c += $floats$) {
        const int channel = $value$Channel(value_slice$plain$, c);
        $guard$reinterpret_cast<$vector$*>(state + (warp * kTile + i) * kHeadDim + channel)[0] = $acc$;
      }
    }
  )",
      {{"value", stream.value},
       {"floats", floats},
       {"vector", KvFloatType(floats)},
       {"acc", floats == 4   ? "make_float4(acc[i][c], acc[i][c + 1], acc[i][c + 2], acc[i][c + 3])"
               : floats == 2 ? "make_float2(acc[i][c], acc[i][c + 1])"
                             : "acc[i][c]"},
       {"plain", stream.value_side.turned ? fmt::format(" % k{}Slices", stream.value) : std::string()},
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
  // Token lanes took units in different orders; from here on channels stand alike.
  const std::string align =
      FillText(R"(
    #pragma unroll
    for (int by = 1; by < $steps$; by *= 2) {
      #pragma unroll
      for (int i = 0; i < kTile; ++i) {
        float ordered[k$value$Channels];
        #pragma unroll
        for (int c = 0; c < k$value$Channels; ++c)
          ordered[c] = value_slice / k$value$Slices & by ? acc[i][(c + k$value$Channels - by * $v$) % k$value$Channels] : acc[i][c];
        #pragma unroll
        for (int c = 0; c < k$value$Channels; ++c) acc[i][c] = ordered[c];
      }
    }
  )",
               {{"value", stream.value}, {"steps", layout.slice_units}, {"v", layout.unit_channels}});
  return FillText(R"(
    $align$
    $join$
    __syncthreads();  // the states take the place of entries and page numbers
    $store$
    #pragma unroll
    for (int i = 0; i < kTile; ++i) {
      if (lane == i) {
        state[kWarps * kTile * kHeadDim + warp * kTile + i] = top[i];
        state[kWarps * kTile * (kHeadDim + 1) + warp * kTile + i] = sum[i];
      }
    }
  )",
                  {{"align", stream.value_side.turned ? align : std::string()},
                   {"join", plan.lanes < 32 ? join : std::string()},
                   {"store", store}});
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

}  // namespace vqllm::internal
