#include "codegen/decode/kv_reader.h"

#include <algorithm>
#include <numeric>

#include "codegen/text.h"
#include "vq/base/check.h"

namespace vqllm::internal {
namespace {

constexpr const char* kComponents[] = {"x", "y", "z", "w"};

std::string VectorType(int words) { return words == 4 ? "uint4" : words == 2 ? "uint2" : "unsigned"; }

/// Words of codes that a lane holds, and behind them one of each number of integers.
int CodeWords(const KvSideLayout& layout) { return (layout.SliceBits() + 31) / 32; }
int NumberSpan(const KvSideLayout& layout) {
  const Format& f = layout.format;
  return f.scale == ScaleKind::kGroup && f.group < layout.head_dim ? std::gcd(layout.unit_channels, f.group)
                                                                   : layout.unit_channels;
}
int UnitNumbers(const KvSideLayout& layout) {
  return layout.format.kind == FormatKind::kInt ? layout.unit_channels / NumberSpan(layout) : 0;
}
int Words(const KvSideLayout& layout) { return CodeWords(layout) + layout.slice_units * UnitNumbers(layout); }

/// Reads the words of a slice that begins and ends at whole words, in the widest vectors that fit.
std::string LoadWholeWords(const KvSideLayout& layout) {
  const int words = CodeWords(layout);
  int vector = 4;
  while (words % vector != 0 || layout.RecordWords() % vector != 0) vector /= 2;
  std::string text;
  for (int at = 0; at < words; at += vector) {
    const std::string place = at == 0 ? std::string() : fmt::format(" + {}", at / vector);
    const std::string type = VectorType(vector);
    if (vector == 1) {
      text += fmt::format("words[{}] = __ldcs(record + slice * {}{});\n", at, words, place);
      continue;
    }
    text +=
        fmt::format("const {0} part{1} = __ldcs(reinterpret_cast<const {0}*>(record) + slice * {2}{3});\n",
                    type, at, words / vector, place);
    for (int w = 0; w < vector; ++w)
      text += fmt::format("words[{}] = part{}.{};\n", at + w, at, kComponents[w]);
  }
  return text;
}

std::string LoadCodes(const KvSideLayout& layout) {
  const int bits = layout.SliceBits();
  if (bits % 32 == 0) return LoadWholeWords(layout);
  if (32 % bits == 0)
    return fmt::format("words[0] = __ldcs(record + slice * {0} / 32) >> slice * {0} % 32;\n", bits);
  // A slice begins at any bit; its words are shifted together from those that it lies in.
  std::string text =
      fmt::format("const int first = slice * {0} / 32;\nconst int shift = slice * {0} % 32;\n", bits);
  const int last = layout.code_words - 1;
  for (int w = 0; w <= CodeWords(layout); ++w)
    text += fmt::format("const unsigned part{0} = __ldcs(record + min(first + {0}, {1}));\n", w, last);
  for (int w = 0; w < CodeWords(layout); ++w)
    text += fmt::format("words[{0}] = __funnelshift_r(part{0}, part{1}, shift);\n", w, w + 1);
  return text;
}

/// The numbers of integers, one word each: scale in the low half, offset in the high one.
std::string LoadNumbers(const KvSideLayout& layout, const std::string& name) {
  const Format& f = layout.format;
  const int group = f.scale == ScaleKind::kGroup ? std::min(f.group, layout.head_dim) : layout.head_dim;
  std::string text;
  for (int u = 0; u < layout.slice_units; ++u) {
    for (int n = 0; n < UnitNumbers(layout); ++n) {
      const std::string index = layout.groups == 1
                                    ? "0"
                                    : fmt::format("min({}Channel(slice, {}), kHeadDim - 1) / {}", name,
                                                  u * layout.unit_channels + n * NumberSpan(layout), group);
      const int word = CodeWords(layout) + u * UnitNumbers(layout) + n;
      text +=
          f.symmetric
              ? fmt::format("words[{}] = __ldg(reinterpret_cast<const unsigned short*>(record + {}) + {});\n",
                            word, layout.code_words, index)
              : fmt::format("words[{}] = __ldg(record + {} + {});\n", word, layout.code_words, index);
    }
  }
  return text;
}

std::string DecodeDense(const KvSideLayout& layout) {
  const char* floats = layout.format.dtype == DType::kBF16 ? "Bfloat16Floats" : "HalfFloats";
  return FillText(R"(
    #pragma unroll
    for (int i = 0; i < $words$; ++i) {
      const float2 pair = $floats$(words[i]);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  )",
                  {{"words", CodeWords(layout)}, {"floats", floats}});
}

std::string DecodeIntegers(const KvSideLayout& layout) {
  const Format& f = layout.format;
  std::string text;
  for (int u = 0; u < layout.slice_units; ++u) {
    for (int n = 0; n < UnitNumbers(layout); ++n) {
      const int id = u * UnitNumbers(layout) + n;
      text += fmt::format("const float2 number{} = HalfFloats(words[{}]);\n", id, CodeWords(layout) + id);
      if (f.symmetric)
        text += fmt::format("const float offset{0} = -number{0}.x * {1};\n", id, 1 << (f.bits - 1));
    }
    const int first = u * layout.unit_channels;
    const auto value = [&](int i, const std::string& code) {
      const int id = u * UnitNumbers(layout) + i / NumberSpan(layout);
      const std::string offset = f.symmetric ? fmt::format("offset{}", id) : fmt::format("number{}.y", id);
      text += fmt::format("x[{}] = fmaf({}, number{}.x, {});\n", first + i, code, id, offset);
    };
    if (f.bits == 4) {
      for (int pair = 0; pair < 4; ++pair) {
        const std::string shifted =
            pair == 0 ? fmt::format("words[{}]", u) : fmt::format("words[{}] >> {}", u, 4 * pair);
        const std::string codes = fmt::format("codes{}_{}", u, pair);
        text += fmt::format("const float2 {} = HalfFloats(MaskedHalf({}, 0x000f000fu));\n", codes, shifted);
        value(2 * pair, fmt::format("{}.x - 1024", codes));
        value(2 * pair + 1, fmt::format("{}.y - 1024", codes));
      }
    } else {
      for (int i = 0; i < layout.unit_channels; ++i)
        value(i, fmt::format("CodeFloat(words[{}], {})", 2 * u + i / 4, i % 4));
    }
  }
  return text;
}

struct StagePlace {
  int bit = 0;            // of the code in its unit
  int64_t book_base = 0;  // vectors before the stage in global memory
  int shared_base = 0;    // in shared memory
};

std::vector<StagePlace> Places(const KvSidePlan& side, int kv_heads) {
  std::vector<StagePlace> places;
  StagePlace place;
  for (const StageTier& tier : side.stages) {
    places.push_back(place);
    place.bit += tier.code_bits;
    const int entry = side.layout.units * KvEntryVectors(side.layout);
    place.book_base += int64_t{kv_heads} * tier.entries * entry;
    place.shared_base += tier.shared * entry;
  }
  return places;
}

/// Expression for vector `vector` of the entry of a code.
std::string EntryRead(const KvSidePlan& side, const StagePlace& place, const StageTier& tier, int vector,
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
  const int vectors = KvEntryVectors(layout);
  const int vector_words = std::min(layout.entry_words, 4);
  const int v = layout.unit_channels;
  const std::vector<StagePlace> places = Places(side, kv_heads);
  std::string text;
  for (size_t stage = 0; stage < side.stages.size(); ++stage) {
    const StageTier& tier = side.stages[stage];
    text += "{\n";
    text += fmt::format("  const int code = static_cast<int>(Bits(words, u * {}{}, {}));\n", layout.unit_bits,
                        places[stage].bit == 0 ? std::string() : fmt::format(" + {}", places[stage].bit),
                        tier.code_bits);
    for (int vector = 0; vector < vectors; ++vector) {
      text += fmt::format("  const {} entry{} = {};\n", KvEntryType(layout), vector,
                          EntryRead(side, places[stage], tier, vector, name));
      for (int w = 0; w < vector_words; ++w) {
        const int channel = (vector * vector_words + w) * 2;
        if (channel >= v) break;
        const std::string component = vector_words == 1 ? std::string() : fmt::format(".{}", kComponents[w]);
        text +=
            fmt::format("  const float2 pair{} = HalfFloats(entry{}{});\n", channel / 2, vector, component);
        const char* assign = stage == 0 ? "=" : "+=";
        text += fmt::format("  x[u * {} + {}] {} pair{}.x;\n", v, channel, assign, channel / 2);
        if (channel + 1 < v)
          text += fmt::format("  x[u * {} + {}] {} pair{}.y;\n", v, channel + 1, assign, channel / 2);
      }
    }
    text += "}\n";
  }
  const bool exact = layout.slices * layout.slice_units == layout.units;
  const std::string unit = fmt::format("u * k{}Slices + slice", name);
  return FillText(R"(
    #pragma unroll
    for (int u = 0; u < $units$; ++u) {
      const int unit = $unit$;
      $stages$
    }
  )",
                  {{"units", layout.slice_units},
                   {"unit", exact ? unit : fmt::format("min({}, k{}Units - 1)", unit, name)},
                   {"stages", text}});
}

std::string FillEntries(const KvSidePlan& side, const std::string& name, int kv_heads) {
  const KvSideLayout& layout = side.layout;
  const int vectors = KvEntryVectors(layout);
  std::string text;
  const std::vector<StagePlace> places = Places(side, kv_heads);
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

std::string KvEntryType(const KvSideLayout& layout) { return VectorType(std::min(layout.entry_words, 4)); }
int KvEntryVectors(const KvSideLayout& layout) { return std::max(1, layout.entry_words / 4); }

bool KvStagesEntries(const KvSidePlan& side) {
  return std::any_of(side.stages.begin(), side.stages.end(), [](const StageTier& t) { return t.shared > 0; });
}
bool KvReadsBooks(const KvSidePlan& side) {
  return std::any_of(side.stages.begin(), side.stages.end(),
                     [](const StageTier& t) { return t.shared < t.entries; });
}

std::string KvDecodeArguments(const KvSidePlan& side, const std::string& lower_name,
                              const std::string& slice) {
  std::string arguments = side.layout.format.kind == FormatKind::kTable ? slice + ", " : "";
  if (KvStagesEntries(side)) arguments += fmt::format("{}_entries, ", lower_name);
  if (KvReadsBooks(side)) arguments += fmt::format("{}_books, head, ", lower_name);
  return arguments;
}

KvReaderText EmitKvRecord(const KvSideLayout& layout, const std::string& name) {
  KvReaderText out;
  out.constants = FillText(R"(
    constexpr int k$name$Record = $record$;  // words of a token of a head
    constexpr int k$name$Slices = $slices$;  // of a token: what a lane decodes
  )",
                           {{"name", name}, {"record", layout.RecordWords()}, {"slices", layout.slices}});
  if (layout.format.kind == FormatKind::kTable)
    out.constants +=
        fmt::format("constexpr int k{}Units = {};  // subvectors of a head\n", name, layout.units);
  const std::string channel =
      layout.slice_units == 1
          ? fmt::format("slice * {} + i", layout.unit_channels)
          : fmt::format("(i / {0} * k{1}Slices + slice) * {0} + i % {0}", layout.unit_channels, name);
  out.functions = FillText(R"(
    // Channel of float `i` of a slice.
    __device__ __forceinline__ int $name$Channel(int slice, int i) { return $channel$; }
  )",
                           {{"name", name}, {"channel", channel}});
  return out;
}

KvReaderText EmitKvReader(const KvSidePlan& side, const std::string& name, int kv_heads) {
  const KvSideLayout& layout = side.layout;
  const Format& f = layout.format;
  KvReaderText out = EmitKvRecord(layout, name);
  out.constants += FillText(R"(
    constexpr int k$name$Channels = $channels$;  // of a slice
    constexpr int k$name$Words = $words$;  // that a lane holds of a token
  )",
                            {{"name", name}, {"channels", layout.SliceChannels()}, {"words", Words(layout)}});
  std::string decode;
  std::string book_parameters;
  switch (f.kind) {
    case FormatKind::kDense:
      out.blocks = f.dtype == DType::kBF16 ? std::set<std::string>{"floats_bf16"}
                                           : std::set<std::string>{"pairs", "floats_f16"};
      decode = DecodeDense(layout);
      break;
    case FormatKind::kInt:
      out.blocks = {"pairs", "floats_f16", f.bits == 4 ? "masked_half" : "code_float"};
      decode = DecodeIntegers(layout);
      break;
    case FormatKind::kTable: {
      bool crossing = false;
      int bit = 0;
      for (int u = 0; u < layout.slice_units; ++u) {
        for (const StageTier& tier : side.stages) {
          crossing |= bit % 32 + tier.code_bits > 32;
          bit += tier.code_bits;
        }
      }
      out.blocks = {"pairs", "floats_f16", crossing ? "bits_crossing" : "bits"};
      decode = DecodeTable(side, name, kv_heads);
      const std::string type = KvEntryType(layout);
      if (KvStagesEntries(side)) book_parameters += fmt::format("const {}* entries, ", type);
      if (KvReadsBooks(side))
        book_parameters += fmt::format("const {}* __restrict__ books, int head, ", type);
      break;
    }
    case FormatKind::kLattice:
      VQLLM_CHECK(false);
  }
  out.functions += "\n";
  out.functions += FillText(R"(
    __device__ __forceinline__ void Load$name$(const unsigned* __restrict__ record, int slice, unsigned (&words)[k$name$Words]) {
      $load$
      $numbers$
    }

    __device__ __forceinline__ void Decode$name$(const unsigned (&words)[k$name$Words], $slice$$books$float (&x)[k$name$Channels]) {
      $decode$
    }
  )",
                            {{"name", name},
                             {"load", LoadCodes(layout)},
                             {"numbers", LoadNumbers(layout, name)},
                             {"slice", f.kind == FormatKind::kTable ? "int slice, " : ""},
                             {"books", book_parameters},
                             {"decode", decode}});
  if (KvStagesEntries(side)) out.functions += fmt::format("\n{}", FillEntries(side, name, kv_heads));
  return out;
}

}  // namespace vqllm::internal
