#pragma once

#include <bit>
#include <cstdint>

namespace vqllm {

/// IEEE 754 binary16 bits -> float; exact, NaN payloads kept.
constexpr float HalfBitsToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero or subnormal
  return sign ? -magnitude : magnitude;
}

/// float -> binary16 bits, round to nearest even; overflow gives infinity, NaN stays NaN.
constexpr uint16_t FloatToHalfBits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {                                               // below 2^-14: subnormal half
    // Adding 0.5 puts the last kept bit of the half at the last bit of the float, which rounds to nearest
    // even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// bfloat16 bits -> float; exact.
constexpr float BFloat16BitsToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// float -> bfloat16 bits, round to nearest even; NaN stays NaN.
constexpr uint16_t FloatToBFloat16Bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// A stored binary16. Arithmetic is done in float.
struct Half {
  uint16_t bits = 0;
  constexpr Half() = default;
  constexpr explicit Half(float value) : bits(FloatToHalfBits(value)) {}
  constexpr operator float() const { return HalfBitsToFloat(bits); }
  static constexpr Half FromBits(uint16_t bits) {
    Half half;
    half.bits = bits;
    return half;
  }
};

/// A stored bfloat16. Arithmetic is done in float.
struct BFloat16 {
  uint16_t bits = 0;
  constexpr BFloat16() = default;
  constexpr explicit BFloat16(float value) : bits(FloatToBFloat16Bits(value)) {}
  constexpr operator float() const { return BFloat16BitsToFloat(bits); }
  static constexpr BFloat16 FromBits(uint16_t bits) {
    BFloat16 value;
    value.bits = bits;
    return value;
  }
};

static_assert(sizeof(Half) == 2 && sizeof(BFloat16) == 2);

}  // namespace vqllm
