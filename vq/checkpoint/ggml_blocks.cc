#include "vq/checkpoint/ggml_blocks.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "vq/base/half.h"

// Block layouts: ggml/src/ggml-common.h of llama.cpp. Every product of a 16-bit float with the small integers
// below is exact in float, so each weight is rounded at most once (at the addition of an offset), in any
// order and with or without fused multiply-add: the values equal those of ggml bit for bit.

namespace vqllm {
namespace {

float HalfAt(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return HalfBitsToFloat(bits);
}

void F32(const uint8_t* block, float* w) { std::memcpy(w, block, sizeof(float)); }

void F16(const uint8_t* block, float* w) { *w = HalfAt(block); }

void BF16(const uint8_t* block, float* w) {
  uint16_t bits;
  std::memcpy(&bits, block, sizeof(bits));
  *w = BFloat16BitsToFloat(bits);
}

/// Half scale, then 32 signed bytes.
void Q8_0(const uint8_t* block, float* w) {
  const float scale = HalfAt(block);
  for (int i = 0; i < 32; ++i) w[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
}

/// Half scale, then 16 bytes: low nibbles are weights 0..15, high nibbles 16..31; 8 stands for zero.
void Q4_0(const uint8_t* block, float* w) {
  const float scale = HalfAt(block);
  for (int i = 0; i < 16; ++i) {
    w[i] = static_cast<float>((block[2 + i] & 15) - 8) * scale;
    w[16 + i] = static_cast<float>((block[2 + i] >> 4) - 8) * scale;
  }
}

/// Half scale, half offset, then nibbles as in Q4_0.
void Q4_1(const uint8_t* block, float* w) {
  const float scale = HalfAt(block);
  const float offset = HalfAt(block + 2);
  for (int i = 0; i < 16; ++i) {
    w[i] = static_cast<float>(block[4 + i] & 15) * scale + offset;
    w[16 + i] = static_cast<float>(block[4 + i] >> 4) * scale + offset;
  }
}

/// Half scale and half offset of the block, 8 sub-blocks of 32 with 6-bit factors of both in 12 bytes, 128
/// bytes of nibbles: 32 bytes hold sub-block 2j in their low nibbles and 2j + 1 in their high ones.
void Q4_K(const uint8_t* block, float* w) {
  const float scale = HalfAt(block);
  const float offset = HalfAt(block + 2);
  const uint8_t* factors = block + 4;
  const uint8_t* nibbles = block + 16;
  for (int sub = 0; sub < 8; ++sub) {
    int scale_factor, offset_factor;
    if (sub < 4) {
      scale_factor = factors[sub] & 63;
      offset_factor = factors[sub + 4] & 63;
    } else {  // low 4 bits in the last four bytes, high 2 bits on top of the first eight
      scale_factor = (factors[sub + 4] & 15) | (factors[sub - 4] >> 6) << 4;
      offset_factor = (factors[sub + 4] >> 4) | (factors[sub] >> 6) << 4;
    }
    const float sub_scale = scale * static_cast<float>(scale_factor);
    const float sub_offset = offset * static_cast<float>(offset_factor);
    const uint8_t* codes = nibbles + 32 * (sub / 2);
    for (int i = 0; i < 32; ++i) {
      const int code = sub % 2 == 0 ? codes[i] & 15 : codes[i] >> 4;
      w[32 * sub + i] = sub_scale * static_cast<float>(code) - sub_offset;
    }
  }
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed factors for 16 weights each, half scale.
/// Each half of the block (128 weights) takes 64 low bytes and 32 high bytes; 32 stands for zero.
void Q6_K(const uint8_t* block, float* w) {
  const float scale = HalfAt(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + 64 * half;
    const uint8_t* high = block + 128 + 32 * half;
    const uint8_t* factors = block + 192 + 8 * half;
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) {
        const int low_byte = low[32 * (quarter % 2) + i];
        const int low_bits = quarter < 2 ? low_byte & 15 : low_byte >> 4;
        const int code = (low_bits | (high[i] >> (2 * quarter) & 3) << 4) - 32;
        const float factor = static_cast<float>(static_cast<int8_t>(factors[2 * quarter + i / 16]));
        w[128 * half + 32 * quarter + i] = scale * factor * static_cast<float>(code);
      }
    }
  }
}

constexpr GgmlType kTypes[] = {
    {kGgmlF32, "F32", 1, 4, F32},      {kGgmlF16, "F16", 1, 2, F16},      {kGgmlQ4_0, "Q4_0", 32, 18, Q4_0},
    {3, "Q4_1", 32, 20, Q4_1},         {6, "Q5_0", 32, 22, nullptr},      {7, "Q5_1", 32, 24, nullptr},
    {kGgmlQ8_0, "Q8_0", 32, 34, Q8_0}, {9, "Q8_1", 32, 36, nullptr},      {10, "Q2_K", 256, 84, nullptr},
    {11, "Q3_K", 256, 110, nullptr},   {12, "Q4_K", 256, 144, Q4_K},      {13, "Q5_K", 256, 176, nullptr},
    {14, "Q6_K", 256, 210, Q6_K},      {15, "Q8_K", 256, 292, nullptr},   {16, "IQ2_XXS", 256, 66, nullptr},
    {17, "IQ2_XS", 256, 74, nullptr},  {18, "IQ3_XXS", 256, 98, nullptr}, {19, "IQ1_S", 256, 50, nullptr},
    {20, "IQ4_NL", 32, 18, nullptr},   {21, "IQ3_S", 256, 110, nullptr},  {22, "IQ2_S", 256, 82, nullptr},
    {23, "IQ4_XS", 256, 136, nullptr}, {24, "I8", 1, 1, nullptr},         {25, "I16", 1, 2, nullptr},
    {26, "I32", 1, 4, nullptr},        {27, "I64", 1, 8, nullptr},        {28, "F64", 1, 8, nullptr},
    {29, "IQ1_M", 256, 56, nullptr},   {kGgmlBF16, "BF16", 1, 2, BF16},   {34, "TQ1_0", 256, 54, nullptr},
    {35, "TQ2_0", 256, 66, nullptr},   {39, "MXFP4", 32, 17, nullptr},
};

}  // namespace

const GgmlType* FindGgmlType(uint32_t id) {
  const auto* found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const GgmlType& t) { return t.id == id; });
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace vqllm
