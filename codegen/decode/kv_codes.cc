// A side whose codes are not decoded: keys by a table of products, values by a histogram of probabilities.
#include "codegen/decode/kv_table.h"
#include "codegen/text.h"
#include "vq/base/error.h"

namespace vqllm::internal {
namespace {

std::string Plus(int64_t base) { return base == 0 ? std::string() : fmt::format("{} + ", base); }

/// Text for each stage.
std::string Stages(const KvSidePlan& side, int kv_heads,
                   const std::function<std::string(const KvStagePlace&, const StageTier&)>& text) {
  const std::vector<KvStagePlace> places = KvStagePlaces(side, kv_heads);
  std::string all;
  for (size_t stage = 0; stage < side.stages.size(); ++stage) all += text(places[stage], side.stages[stage]);
  return all;
}

std::string FillTable(const KvSidePlan& side, int kv_heads) {
  const KvSideLayout& layout = side.layout;
  const std::string stages = Stages(side, kv_heads, [&](const KvStagePlace& place, const StageTier& tier) {
    const int vectors = KvEntryVectors(layout);
    const auto read = [&](int vector) {
      return fmt::format("__ldg(books + {}(head * {} + code * kKeyUnits + unit) * {} + {})",
                         Plus(place.book_base), tier.entries * layout.units, vectors, vector);
    };
    return FillText(R"(
      for (int code = threadIdx.x / kKeyUnits; code < $entries$; code += kThreads / kKeyUnits) {
        float x[$channels$];
        $read$
        #pragma unroll
        for (int i = 0; i < kTile; ++i) {
          float sum = 0;
          #pragma unroll
          for (int c = 0; c < $channels$; ++c) sum = fmaf(x[c], query[i][c], sum);
          table[(i * kKeyEntries + $base$code) * kKeyUnits + unit] = sum;
        }
      }
    )",
                    {{"entries", tier.entries},
                     {"channels", layout.unit_channels},
                     {"read", KvEntryFloats(layout, read, "x[", false)},
                     {"base", Plus(place.entry_base)}});
  });
  const int floats = KvFloatVector(layout);
  std::string parts;
  for (int at = 0; at < floats; ++at)
    parts += fmt::format("query[i][c + {}] = part{};\n", at, KvFloatComponent(floats, at));
  return FillText(R"(
    // Products of the queries with every entry, [query][entry][unit]; a barrier must follow.
    __device__ __forceinline__ void FillKeyTable(const $type$* __restrict__ books, int head, const float* queries, float* table) {
      if (threadIdx.x >= kThreads / kKeyUnits * kKeyUnits) return;
      const int unit = threadIdx.x % kKeyUnits;
      float query[kTile][$channels$];
      #pragma unroll
      for (int i = 0; i < kTile; ++i) {
        #pragma unroll
        for (int c = 0; c < $channels$; c += $floats$) {
          const $vector$ part = reinterpret_cast<const $vector$*>(queries + i * kHeadDim + unit * $channels$ + c)[0];
          $parts$
        }
      }
      $stages$
    }
  )",
                  {{"type", KvEntryType(layout)},
                   {"channels", layout.unit_channels},
                   {"floats", floats},
                   {"vector", KvFloatType(floats)},
                   {"parts", parts},
                   {"stages", stages}});
}

std::string AddProducts(const KvSidePlan& side, int kv_heads) {
  const KvSideLayout& layout = side.layout;
  const std::string stages = Stages(side, kv_heads, [&](const KvStagePlace& place, const StageTier& tier) {
    return FillText(R"(
      {
        $code$
        #pragma unroll
        for (int i = 0; i < kTile; ++i) score[i] += table[(i * kKeyEntries + $base$code) * kKeyUnits + unit];
      }
    )",
                    {{"code", KvCodeText(side, place, tier)}, {"base", Plus(place.entry_base)}});
  });
  const bool ragged = layout.slices * layout.slice_units > layout.units;
  return FillText(R"(
    __device__ __forceinline__ void AddKeyProducts(const unsigned (&words)[kKeyWords], int slice, const float* table, float (&score)[kTile]) {
      #pragma unroll
      for (int u = 0; u < $units$; ++u) {
        const int unit = $unit$;
        $guard$
        $stages$
      }
    }
  )",
                  {{"units", layout.slice_units},
                   {"unit", ragged ? std::string("u * kKeySlices + slice") : KvUnitText(side, "Key")},
                   {"guard", ragged ? "if (unit >= kKeyUnits) continue;" : ""},
                   {"stages", stages}});
}

std::string Count(const KvSidePlan& side, int kv_heads) {
  const std::string stages = Stages(side, kv_heads, [&](const KvStagePlace& place, const StageTier& tier) {
    return FillText(R"(
      {
        $code$
        #pragma unroll
        for (int i = 0; i < kTile; ++i) counts[((i * kValueSteps + u) * kValueEntries + $base$code) * kThreads] += weight[i];
      }
    )",
                    {{"code", KvCodeText(side, place, tier)}, {"base", Plus(place.entry_base)}});
  });
  return FillText(R"(
    // A lane has counts of its own: no two threads meet, and neighbours stand in neighbouring banks.
    __device__ __forceinline__ void CountValues(const unsigned (&words)[kValueWords], const float (&weight)[kTile], float* counts) {
      #pragma unroll
      for (int u = 0; u < kValueSteps; ++u) {
        $stages$
      }
    }
  )",
                  {{"stages", stages}});
}

}  // namespace

std::string KvCodeFunctions(const KvSidePlan& side, const std::string& name, int kv_heads) {
  if (name == "Value") return Count(side, kv_heads);
  return fmt::format("{}\n{}", FillTable(side, kv_heads), AddProducts(side, kv_heads));
}

}  // namespace vqllm::internal
