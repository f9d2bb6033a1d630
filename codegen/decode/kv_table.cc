// The reader of a side with codebooks: where entries lie, and how codes become values.
#include "codegen/decode/kv_table.h"

#include <algorithm>

#include "codegen/text.h"
#include "vq/base/check.h"

namespace vqllm::internal {
namespace {

/// Expression for vector `vector` of the entry of a code.
std::string EntryRead(const KvSidePlan& side, const KvStagePlace& place, const StageTier& tier, int vector,
                      const std::string& name) {
  const KvSideLayout& layout = side.layout;
  const int vectors = KvEntryVectors(layout);
  const std::string at = fmt::format("code * k{}Units + unit", name);
  const auto plus = [](int64_t base) { return base == 0 ? std::string() : fmt::format("{} + ", base); };
  const std::string in_shared =
      fmt::format("entries[{}{}]", plus(place.shared_base + vector * tier.shared * layout.units), at);
  const std::string index = vectors == 1 ? at : fmt::format("({}) * {} + {}", at, vectors, vector);
  const std::string in_global = fmt::format("__ldg(books + {}head * {} + {})", plus(place.book_base),
                                            tier.entries * layout.units * vectors, index);
  if (tier.shared >= tier.entries) return in_shared;
  if (tier.shared == 0) return in_global;
  return fmt::format("code < {} ? {} : {}", tier.shared, in_shared, in_global);
}

std::string DecodeTable(const KvSidePlan& side, const std::string& name, int kv_heads) {
  const KvSideLayout& layout = side.layout;
  const std::vector<KvStagePlace> places = KvStagePlaces(side, kv_heads);
  std::string text;
  for (size_t stage = 0; stage < side.stages.size(); ++stage) {
    const auto read = [&](int vector) {
      return EntryRead(side, places[stage], side.stages[stage], vector, name);
    };
    text += fmt::format("{{\n  {}", KvCodeText(side, places[stage], side.stages[stage]));
    text += KvEntryFloats(layout, read, fmt::format("x[u * {} + ", layout.unit_channels), stage > 0);
    text += "}\n";
  }
  return FillText(R"(
    #pragma unroll
    for (int u = 0; u < $units$; ++u) {
      const int unit = $unit$;
      $stages$
    }
  )",
                  {{"units", layout.slice_units}, {"unit", KvUnitText(side, name)}, {"stages", text}});
}

std::string FillEntries(const KvSidePlan& side, const std::string& name, int kv_heads) {
  const KvSideLayout& layout = side.layout;
  const int vectors = KvEntryVectors(layout);
  std::string text;
  const std::vector<KvStagePlace> places = KvStagePlaces(side, kv_heads);
  for (size_t stage = 0; stage < side.stages.size(); ++stage) {
    const StageTier& tier = side.stages[stage];
    if (tier.shared == 0) continue;
    const int run = tier.shared * layout.units;  // entry after entry: one run of global memory
    for (int vector = 0; vector < vectors; ++vector) {
      const std::string base = fmt::format(
          "{}head * {}",
          places[stage].book_base == 0 ? std::string() : fmt::format("{} + ", places[stage].book_base),
          tier.entries * layout.units * vectors);
      const std::string index = vectors == 1 ? "i" : fmt::format("i * {} + {}", vectors, vector);
      text += fmt::format(
          "for (int i = threadIdx.x; i < {}; i += kThreads) entries[{}i] = __ldg(books + {} + {});\n", run,
          places[stage].shared_base + vector * run == 0
              ? std::string()
              : fmt::format("{} + ", places[stage].shared_base + vector * run),
          base, index);
    }
  }
  return FillText(R"(
    // Copies the low entry numbers of a head into shared memory; a barrier must follow.
    __device__ __forceinline__ void Fill$name$Entries(const $type$* __restrict__ books, int head, $type$* entries) {
      $fill$
    }
  )",
                  {{"name", name}, {"type", KvEntryType(layout)}, {"fill", text}});
}

}  // namespace

std::vector<KvStagePlace> KvStagePlaces(const KvSidePlan& side, int kv_heads) {
  std::vector<KvStagePlace> places;
  KvStagePlace place;
  for (const StageTier& tier : side.stages) {
    places.push_back(place);
    place.bit += tier.code_bits;
    const int entry = side.layout.units * KvEntryVectors(side.layout);
    place.book_base += int64_t{kv_heads} * tier.entries * entry;
    place.shared_base += tier.shared * entry;
    place.entry_base += tier.entries;
  }
  return places;
}

std::string KvEntryType(const KvSideLayout& layout) {
  const int words = std::min(layout.entry_words, 4);
  return words == 4 ? "uint4" : words == 2 ? "uint2" : "unsigned";
}
int KvEntryVectors(const KvSideLayout& layout) { return std::max(1, layout.entry_words / 4); }

bool KvStagesEntries(const KvSidePlan& side) {
  return std::any_of(side.stages.begin(), side.stages.end(), [](const StageTier& t) { return t.shared > 0; });
}
bool KvReadsBooks(const KvSidePlan& side) {
  return std::any_of(side.stages.begin(), side.stages.end(),
                     [](const StageTier& t) { return t.shared < t.entries; });
}

std::string KvEntryFloats(const KvSideLayout& layout, const std::function<std::string(int)>& read,
                          const std::string& target, bool add) {
  const int vector_words = std::min(layout.entry_words, 4);
  const int v = layout.unit_channels;
  std::string text;
  for (int vector = 0; vector < KvEntryVectors(layout); ++vector) {
    text += fmt::format("  const {} entry{} = {};\n", KvEntryType(layout), vector, read(vector));
    for (int w = 0; w < vector_words; ++w) {
      const int channel = (vector * vector_words + w) * 2;
      if (channel >= v) break;
      const std::string component = vector_words == 1 ? std::string() : fmt::format(".{}", "xyzw"[w]);
      text += fmt::format("  const float2 pair{} = HalfFloats(entry{}{});\n", channel / 2, vector, component);
      const char* assign = add ? "+=" : "=";
      text += fmt::format("  {}{}] {} pair{}.x;\n", target, channel, assign, channel / 2);
      if (channel + 1 < v)
        text += fmt::format("  {}{}] {} pair{}.y;\n", target, channel + 1, assign, channel / 2);
    }
  }
  return text;
}

std::string KvUnitText(const KvSidePlan& side, const std::string& name) {
  const KvSideLayout& layout = side.layout;
  const std::string unit = fmt::format("u * k{}Slices + slice", name);
  if (side.turned) return fmt::format("({}) % k{}Units", unit, name);
  return layout.slices * layout.slice_units == layout.units
             ? unit
             : fmt::format("min({}, k{}Units - 1)", unit, name);
}

std::string KvCodeText(const KvSidePlan& side, const KvStagePlace& place, const StageTier& tier) {
  return fmt::format("const int code = static_cast<int>(Bits(words, u * {}{}, {}));\n", side.layout.unit_bits,
                     place.bit == 0 ? std::string() : fmt::format(" + {}", place.bit), tier.code_bits);
}

std::set<std::string> KvTableBlocks(const KvSidePlan& side) {
  bool crossing = false;
  int bit = 0;
  for (int u = 0; u < side.layout.slice_units; ++u) {
    for (const StageTier& tier : side.stages) {
      crossing |= bit % 32 + tier.code_bits > 32;
      bit += tier.code_bits;
    }
  }
  return {"pairs", "floats_f16", crossing ? "bits_crossing" : "bits"};
}

std::string KvTableFunctions(const KvSidePlan& side, const std::string& name, int kv_heads) {
  std::string parameters;
  const std::string type = KvEntryType(side.layout);
  if (KvStagesEntries(side)) parameters += fmt::format("const {}* entries, ", type);
  if (KvReadsBooks(side)) parameters += fmt::format("const {}* __restrict__ books, int head, ", type);
  std::string text =
      FillText(R"(
    __device__ __forceinline__ void Decode$name$(const unsigned (&words)[k$name$Words], int slice, $books$float (&x)[k$name$Channels]) {
      $decode$
    }
  )",
               {{"name", name}, {"books", parameters}, {"decode", DecodeTable(side, name, kv_heads)}});
  if (KvStagesEntries(side)) text += fmt::format("\n{}", FillEntries(side, name, kv_heads));
  return text;
}

}  // namespace vqllm::internal
