// Codes that are values: dense fp16 and bf16, and integers less a zero point.
#include "codegen/decode/decoder.h"
#include "codegen/text.h"
#include "vq/base/check.h"
#include "vq/base/half.h"

namespace vqllm::internal {
namespace {

/// 1024 + zero_point in both halves: what is subtracted from 1024 + code.
std::string SymmetricOffset(int bits) {
  const uint32_t half = FloatToHalfBits(1024.0f + static_cast<float>(1 << (bits - 1)));
  return fmt::format("0x{:08x}u", half | half << 16);
}

std::string PairedBody(int bits) {
  if (bits == 3) {
    return R"(
      #pragma unroll
      for (int j = 0; j < 15; ++j) {
        pairs[j] = SubPairs(MaskedHalf(words[3 * unit + j / 5] >> 3 * (j % 5), 0x00070007u), offset);
      }
      // The last pair: one bit of each word, at 15 and 31.
      const unsigned last = (words[3 * unit] >> 15 & 0x00010001u) | (words[3 * unit + 1] >> 14 & 0x00020002u) |
                            (words[3 * unit + 2] >> 13 & 0x00040004u);
      pairs[15] = SubPairs(last | 0x64006400u, offset);
    )";
  }
  return FillText(
      R"(
      #pragma unroll
      for (int j = 0; j < $pairs$; ++j) {
        pairs[j] = SubPairs(MaskedHalf(words[unit] >> $bits$ * j, $mask$), offset);
      }
    )",
      {{"pairs", 16 / bits}, {"bits", bits}, {"mask", bits == 4 ? "0x000f000fu" : "0x00030003u"}});
}

}  // namespace

DecoderText EmitScalar(const Plan& plan) {
  const Format& f = plan.format;
  const UnitShape unit = UnitOf(f);
  DecoderText out;
  if (f.kind == FormatKind::kDense) {
    out.functions = FillText(R"(
      // One unit: eight $type$ weights as they are stored.
      __device__ __forceinline__ void DecodeUnit(const unsigned* words, int unit, unsigned (&pairs)[4]) {
        #pragma unroll
        for (int j = 0; j < 4; ++j) pairs[j] = words[4 * unit + j];
      }
    )",
                             {{"type", unit.bf16 ? "bf16" : "fp16"}});
    return out;
  }
  out.blocks = {"pairs", "pairs_sub"};
  std::string body;
  std::string comment;
  const ScalarPacking packing = PackingOf(f.bits, unit.cols);
  if (packing == ScalarPacking::kPaired) {
    out.blocks.insert("masked_half");
    comment = fmt::format(
        "// One unit: {} codes of {} bits, packed so that a mask gives two neighbours as 1024 + code.",
        unit.cols, f.bits);
    body = PairedBody(f.bits);
  } else if (f.bits == 8 && unit.cols == 8) {
    comment = "// One unit: eight bytes; a byte under 0x64 is the fp16 value 1024 + byte.";
    body = R"(
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned two = __byte_perm(words[2 * unit + j / 2], 0x64646464u, j % 2 == 0 ? 0x4140 : 0x4342);
        pairs[j] = SubPairs(two, offset);
      }
    )";
  } else {
    const bool crossing = 32 % f.bits != 0;
    out.blocks.insert(crossing ? "bits_crossing" : "bits");
    comment = fmt::format(
        "// One unit: {} codes of {} bits side by side; 0x6400 | code is the fp16 value 1024 + code.",
        unit.cols, f.bits);
    body = unit.cols == 1 ? FillText(R"(
      pairs[0] = SubPairs(Bits(words, unit * $bits$, $bits$) | 0x64006400u, offset);
    )",
                                     {{"bits", f.bits}})
                          : FillText(R"(
      #pragma unroll
      for (int j = 0; j < $pairs$; ++j) {
        const unsigned low = Bits(words, (unit * $cols$ + 2 * j) * $bits$, $bits$);
        const unsigned high = Bits(words, (unit * $cols$ + 2 * j + 1) * $bits$, $bits$);
        pairs[j] = SubPairs((low | high << 16) | 0x64006400u, offset);
      }
    )",
                                     {{"pairs", unit.Pairs()}, {"cols", unit.cols}, {"bits", f.bits}});
  }
  const std::string constant = unit.offset
                                   ? ""
                                   : FillText("const unsigned offset = $value$;  // 1024 + zero point, twice",
                                              {{"value", SymmetricOffset(f.bits)}});
  out.functions = FillText(
      R"(
    $comment$
    $head$
      $constant$
      $body$
    }
  )",
      {{"comment", comment},
       {"head", FunctionHead("__device__ __forceinline__ void DecodeUnit",
                             {"const unsigned* words", "int unit", unit.offset ? "unsigned offset" : "",
                              fmt::format("unsigned (&pairs)[{}]", unit.Pairs())})},
       {"constant", constant},
       {"body", body}});
  return out;
}

}  // namespace vqllm::internal
