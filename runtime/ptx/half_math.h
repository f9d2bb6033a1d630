#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "vq/base/half.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

/// Halves of both kinds as their 16 bits. Arithmetic on them rounds once: binary32 has more than twice their
/// precision plus two bits, so rounding a float sum, product or quotient again changes nothing (Figueroa,
/// "When is double rounding innocuous?"); fma needs more care, see FmaOdd.
namespace vqllm::ptx {

struct HalfKind {
  static constexpr uint16_t kNan = 0x7fff;
  static constexpr uint16_t kInfinity = 0x7c00;
  static constexpr uint16_t kLargest = 0x7bff;
  static constexpr uint16_t kOne = 0x3c00;
  static float Load(uint16_t bits) {
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    return HalfBitsToFloat(bits);
#endif
  }
  static uint16_t Round(float value) {
#if defined(__F16C__)
    const uint16_t bits = static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
    const uint16_t bits = FloatToHalfBits(value);
#endif
    return value != value ? kNan : bits;
  }
};

struct BFloat16Kind {
  static constexpr uint16_t kNan = 0x7fff;
  static constexpr uint16_t kInfinity = 0x7f80;
  static constexpr uint16_t kLargest = 0x7f7f;
  static constexpr uint16_t kOne = 0x3f80;
  static float Load(uint16_t bits) { return BFloat16BitsToFloat(bits); }
  static uint16_t Round(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t rounded = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    return value != value ? kNan : rounded;
  }
};

/// 32 or 64 halves at a time, for the loops that conversion bounds.
template <typename Kind, int kCount>
inline void LoadHalves(const uint16_t* bits, float* values) {
#if defined(__F16C__)
  if constexpr (std::is_same_v<Kind, HalfKind>) {
    for (int i = 0; i < kCount; i += 8) {
      _mm256_storeu_ps(values + i,
                       _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits + i))));
    }
    return;
  }
#endif
  for (int i = 0; i < kCount; ++i) values[i] = Kind::Load(bits[i]);
}
template <typename Kind, int kCount>
inline void RoundHalves(const float* values, uint16_t* bits) {
#if defined(__F16C__)
  if constexpr (std::is_same_v<Kind, HalfKind>) {
    const __m128i nan = _mm_set1_epi16(0x7fff);
    const __m128i magnitude = _mm_set1_epi16(0x7fff);
    const __m128i infinity = _mm_set1_epi16(0x7c00);
    for (int i = 0; i < kCount; i += 8) {
      const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT);
      const __m128i is_nan = _mm_cmpgt_epi16(_mm_and_si128(half, magnitude), infinity);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(bits + i), _mm_blendv_epi8(half, nan, is_nan));
    }
    return;
  }
#endif
  for (int i = 0; i < kCount; ++i) bits[i] = Kind::Round(values[i]);
}

/// a * b + c as a float rounded to odd: rounding it to a half afterwards is rounding the exact value once.
/// Products of two halves are exact in double for both kinds.
inline float FmaOdd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  // What the sum lost (Knuth's TwoSum), then the sum with its last bit set where it lost something.
  const double back = sum - product;
  const double lost = (product - (sum - back)) + (addend - back);
  uint64_t bits = std::bit_cast<uint64_t>(sum);
  const bool inexact = lost != 0 && (bits & 1) == 0;  // false for NaN and infinity: lost is NaN or 0
  const bool away = (lost < 0) == (sum < 0);
  bits = inexact && lost == lost && std::fabs(sum) < 1e300 ? (away ? bits + 1 : bits - 1) : bits;
  const double odd = std::bit_cast<double>(bits);
  // And from double to float, again to odd: towards zero, with the last bit set where bits were cut.
  float result = static_cast<float>(odd);
  uint32_t narrow = std::bit_cast<uint32_t>(result);
  if (static_cast<double>(result) != odd && odd == odd && (narrow & 0x7f800000u) != 0x7f800000u) {
    if (std::fabs(static_cast<double>(result)) > std::fabs(odd)) --narrow;
    narrow |= 1;
  } else if ((narrow & 0x7fffffffu) == 0x7f800000u && std::fabs(odd) < 1e300) {
    narrow = (narrow & 0x80000000u) | 0x7f7fffffu;  // rounded up to infinity: the largest is odd already
  }
  return std::bit_cast<float>(narrow);
}

}  // namespace vqllm::ptx
