// Decode attention, values in the code domain: out = sum over entries of (sum of the probabilities of the
// tokens with that code) * entry.
#include "codegen/decode/kv_table.h"
#include "codegen/ops/attention_parts.h"
#include "codegen/text.h"
#include "vq/base/error.h"

namespace vqllm::internal {

std::string ClearCounts() {
  return R"(
    float* counts = all_counts + threadIdx.x;
    for (int x = 0; x < kTile * kValueSteps * kValueEntries; ++x) counts[x * kThreads] = 0;
  )";
}

std::string CountTokens() {
  // Exponents are taken against the largest score of some earlier moment: rescaling a histogram costs as much
  // as its size. A base that is 2^40 behind leaves sums of 2^22 values of fp16 within fp32.
  return R"(
    #pragma unroll
    for (int i = 0; i < kTile; ++i) {
      float largest = score[0][i];
      #pragma unroll
      for (int s = 1; s < kSlots; ++s) largest = fmaxf(largest, score[s][i]);
      if (largest > top[i] + kHeadroom) {
        const float keep = exp2f(top[i] - largest);
        sum[i] *= keep;
        if (top[i] > Unseen()) {
          for (int x = i * kValueSteps * kValueEntries; x < (i + 1) * kValueSteps * kValueEntries; ++x) counts[x * kThreads] *= keep;
        }
        top[i] = largest;
      }
      const float base = SoftmaxBase(top[i]);
      #pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        score[s][i] = exp2f(score[s][i] - base);
        sum[i] += score[s][i];
      }
    }
    #pragma unroll
    for (int s = 0; s < kSlots; ++s) CountValues(value_words[s], score[s], counts);
  )";
}

std::string KeepCounts(const KvPlan& plan) {
  const KvSideLayout& layout = plan.value.layout;
  const std::vector<KvStagePlace> places = KvStagePlaces(plan.value, plan.shape.kv_heads);
  const int entry_halves = 2 * layout.entry_words;
  std::string stages;
  for (size_t stage = 0; stage < places.size(); ++stage) {
    const int entries = plan.value.stages[stage].entries;
    const int64_t base = places[stage].book_base * entry_halves / KvEntryVectors(layout);
    stages += FillText(R"(
      for (int code = 0; code < $entries$; ++code) {
        const float count = mine[($entry_base$ + code) * kThreads];
        // An entry that no token has may be infinite.
        if (count > 0)
          value = fmaf(count, __half2float(__ldg(halves + $base$ + (static_cast<long long>(head) * $entries$ + code) * $step$ + unit * $halves$ + channel % $v$)), value);
      }
    )",
                       {{"entries", entries},
                        {"entry_base", places[stage].entry_base},
                        {"base", base},
                        {"step", layout.units * entry_halves},
                        {"halves", entry_halves},
                        {"v", layout.unit_channels}});
  }
  int floats = 4;
  while (plan.warps * plan.TokenLanes() % floats != 0) floats /= 2;
  std::string sums;
  for (int at = 0; at < floats; ++at) {
    const std::string part = fmt::format("(first + {})", at);
    const std::string step =
        plan.value.turned
            ? fmt::format(
                  "(unit / kValueSlices + kValueSteps - {} % kTokenLanes % kValueSteps) % kValueSteps", part)
            : "unit / kValueSlices";
    sums += fmt::format(
        "total = fmaf(factor{}, all_counts[((i * kValueSteps + {}) * kValueEntries + entry) * kThreads + {} "
        "* kLanes "
        "+ unit % kValueSlices], total);\n",
        KvFloatComponent(floats, at), step, part);
  }
  return FillText(
      R"(
    // All parts, the groups of lanes with a softmax of their own, get the same base.
    constexpr int kParts = kWarps * kTokenLanes;
    float* factors = state + (kWarps * kTile * (kHeadDim + 2) + 3) / 4 * 4;  // [query][part], at first the bases
    float* part_sums = factors + kTile * kParts;
    if (lane % kLanes == 0) {
      #pragma unroll
      for (int i = 0; i < kTile; ++i) {
        factors[i * kParts + threadIdx.x / kLanes] = top[i];
        part_sums[i * kParts + threadIdx.x / kLanes] = sum[i];
      }
    }
    __syncthreads();
    if (threadIdx.x < kTile) {
      float* mine = factors + threadIdx.x * kParts;
      float largest = mine[0];
      #pragma unroll 1
      for (int part = 1; part < kParts; ++part) largest = fmaxf(largest, mine[part]);
      float total = 0;
      #pragma unroll 1
      for (int part = 0; part < kParts; ++part) {
        mine[part] = exp2f(mine[part] - SoftmaxBase(largest));
        total = fmaf(mine[part], part_sums[threadIdx.x * kParts + part], total);
      }
      state[kWarps * kTile * kHeadDim + threadIdx.x] = largest;
      state[kWarps * kTile * (kHeadDim + 1) + threadIdx.x] = total;
    }
    __syncthreads();

    // Counts of all parts, in their order, in the place of those of the first one.
    for (int x = threadIdx.x; x < kTile * kValueEntries * kValueUnits; x += kThreads) {
      const int unit = x % kValueUnits;
      const int entry = x / kValueUnits % kValueEntries;
      const int i = x / kValueUnits / kValueEntries;
      float total = 0;
      #pragma unroll
      for (int first = 0; first < kParts; first += $floats$) {
        const $vector$ factor = reinterpret_cast<const $vector$*>(factors + i * kParts + first)[0];
        $sums$
      }
      all_counts[((i * kValueSteps + unit / kValueSlices) * kValueEntries + entry) * kThreads + unit % kValueSlices] = total;
    }
    __syncthreads();

    // Counts meet entries.
    const __half* halves = reinterpret_cast<const __half*>(value_books);
    for (int x = threadIdx.x; x < kTile * kHeadDim; x += kThreads) {
      const int channel = x % kHeadDim;
      const int i = x / kHeadDim;
      const int unit = channel / $v$;
      const float* mine = all_counts + (i * kValueSteps + unit / kValueSlices) * kValueEntries * kThreads + unit % kValueSlices;
      float value = 0;
      $stages$
      state[x] = value;
    }
  )",
      {{"floats", floats},
       {"vector", KvFloatType(floats)},
       {"sums", sums},
       {"v", layout.unit_channels},
       {"stages", stages}});
}

}  // namespace vqllm::internal
