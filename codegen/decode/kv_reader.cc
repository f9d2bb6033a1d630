#include "codegen/decode/kv_reader.h"

#include <numeric>

#include "codegen/decode/kv_table.h"
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

std::string LoadCodes(const KvSideLayout& layout, bool turned) {
  const int bits = layout.SliceBits();
  if (turned) {
    // The codes of a slice stand in its word again and again, so that a shift turns their order.
    unsigned repeats = 0;
    for (int at = 0; at < 32; at += bits) repeats |= 1u << at;
    const std::string word =
        bits == 32 ? "const unsigned codes = __ldcs(record + first);\n"
                   : fmt::format(
                         "const unsigned codes = (__ldcs(record + first * {0} / 32) >> first * {0} % 32 & "
                         "{1:#x}u) * {2:#x}u;\n",
                         bits, (1u << bits) - 1, repeats);
    return fmt::format(
        "const int first = slice % {0};\n{1}words[0] = __funnelshift_r(codes, codes, slice / {0} * {2});\n",
        layout.slices, word, layout.unit_bits);
  }
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

}  // namespace

int KvFloatVector(const KvSideLayout& layout) {
  int floats = 4;
  while (layout.unit_channels % floats != 0 || layout.head_dim % floats != 0) floats /= 2;
  return floats;
}
std::string KvFloatType(int floats) { return floats == 1 ? "float" : fmt::format("float{}", floats); }
std::string KvFloatComponent(int floats, int at) {
  return floats == 1 ? std::string() : fmt::format(".{}", kComponents[at]);
}

std::string KvDecodeArguments(const KvSidePlan& side, const std::string& lower_name,
                              const std::string& slice) {
  std::string arguments = side.layout.format.kind == FormatKind::kTable ? slice + ", " : "";
  if (KvStagesEntries(side)) arguments += fmt::format("{}_entries, ", lower_name);
  if (KvReadsBooks(side)) arguments += fmt::format("{}_books, head, ", lower_name);
  return arguments;
}

KvReaderText EmitKvRecord(const KvSideLayout& layout, const std::string& name, bool turned) {
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
          : fmt::format("(i / {0} * k{1}Slices + slice){2} * {0} + i % {0}", layout.unit_channels, name,
                        turned ? fmt::format(" % k{}Units", name) : std::string());
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
  KvReaderText out = EmitKvRecord(layout, name, side.turned);
  out.constants += FillText(R"(
    constexpr int k$name$Channels = $channels$;  // of a slice
    constexpr int k$name$Words = $words$;  // that a lane holds of a token
  )",
                            {{"name", name}, {"channels", layout.SliceChannels()}, {"words", Words(layout)}});
  std::string decode;
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
    case FormatKind::kTable:
      out.blocks = KvTableBlocks(side);
      break;
    case FormatKind::kLattice:
      VQLLM_CHECK(false);
  }
  out.functions += "\n";
  out.functions += FillText(
      R"(
    __device__ __forceinline__ void Load$name$(const unsigned* __restrict__ record, int slice, unsigned (&words)[k$name$Words]) {
      $load$
      $numbers$
    }
  )",
      {{"name", name}, {"load", LoadCodes(layout, side.turned)}, {"numbers", LoadNumbers(layout, name)}});
  out.functions += "\n";
  if (f.kind == FormatKind::kTable) {
    const bool decodes = side.compute == KvCompute::kDequantise;
    if (!decodes) {
      int entries = 0;
      for (const StageTier& tier : side.stages) entries += tier.entries;
      out.constants += fmt::format("constexpr int k{}Entries = {};  // of all stages\n", name, entries);
      out.constants +=
          fmt::format("constexpr int k{}Steps = {};  // units of a slice\n", name, layout.slice_units);
    }
    out.functions += decodes ? KvTableFunctions(side, name, kv_heads) : KvCodeFunctions(side, name, kv_heads);
    return out;
  }
  out.functions += FillText(R"(
    __device__ __forceinline__ void Decode$name$(const unsigned (&words)[k$name$Words], float (&x)[k$name$Channels]) {
      $decode$
    }
  )",
                            {{"name", name}, {"decode", decode}});
  return out;
}

}  // namespace vqllm::internal
