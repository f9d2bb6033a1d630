// Vector blocks shared by the matrix kernels; included once a target (no pragma once) between the toggles of
// Highway.
#if defined(VQLLM_KERNELS_CPU_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VQLLM_KERNELS_CPU_LINEAR_INL_H_
#undef VQLLM_KERNELS_CPU_LINEAR_INL_H_
#else
#define VQLLM_KERNELS_CPU_LINEAR_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// Around namespaces in place of Highway's two macros. Every machine with VBMI2, by which Highway knows
// AVX3_DL, has VNNI; Highway 1.0.3 does not tell the compiler. One list of features: clang keeps a single
// one.
#undef VQLLM_BEFORE_NAMESPACE
#undef VQLLM_AFTER_NAMESPACE
#undef VQLLM_ATTR  // in place of HWY_ATTR, on lambdas
#if HWY_TARGET == HWY_AVX3_DL
#define VQLLM_BEFORE_NAMESPACE()                    \
  HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni") \
  static_assert(true, "a semicolon follows")
#define VQLLM_ATTR __attribute__((target(HWY_TARGET_STR ",avx512vnni")))
#else
#define VQLLM_BEFORE_NAMESPACE() HWY_BEFORE_NAMESPACE()
#define VQLLM_ATTR HWY_ATTR
#endif
#define VQLLM_AFTER_NAMESPACE() HWY_AFTER_NAMESPACE()

VQLLM_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

using F32 = hn::ScalableTag<float>;
using I32 = hn::ScalableTag<int32_t>;
using U32 = hn::ScalableTag<uint32_t>;
using U16 = hn::ScalableTag<uint16_t>;
using I16 = hn::ScalableTag<int16_t>;
using U8 = hn::ScalableTag<uint8_t>;
using I8 = hn::ScalableTag<int8_t>;
using VF = hn::Vec<F32>;
using VI = hn::Vec<I32>;
using VU8 = hn::Vec<U8>;

// Outputs that lie together: one lane each in a 512-bit vector, several vectors on narrower machines.
inline constexpr int64_t kStrip = 16;
inline constexpr int kLanes = static_cast<int>(HWY_LANES(float));
/// Vectors that cover a strip.
inline constexpr int kParts = static_cast<int>(kStrip) / kLanes;
inline constexpr int kBytes = kLanes * 4;

/// Logical shift of every byte, then a mask: `mask` must clear what crosses from the neighbour.
template <int kShift>
HWY_INLINE VU8 ShiftAnd(VU8 v, VU8 mask) {
  const U16 u16;
  if constexpr (kShift == 0) return hn::And(v, mask);
  return hn::And(hn::BitCast(U8(), hn::ShiftRight<kShift>(hn::BitCast(u16, v))), mask);
}

/// Adds to each 32-bit lane the four products of its unsigned bytes in w with the signed bytes of x, which
/// are the same in every lane. kBits: the width of the values in w; below 8 the sums of two products fit 16
/// bits.
template <int kBits>
HWY_INLINE VI Dot4(VI sum, VU8 w, const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  [[maybe_unused]] const VI xs = hn::Set(I32(), four);  // where the target multiplies bytes
#if HWY_TARGET == HWY_AVX3_DL
  return VI{_mm512_dpbusd_epi32(sum.raw, w.raw, xs.raw)};
#else
#if HWY_TARGET == HWY_AVX3
  if constexpr (kBits < 8) {
    const __m512i pairs = _mm512_maddubs_epi16(w.raw, xs.raw);
    return hn::Add(sum, VI{_mm512_madd_epi16(pairs, _mm512_set1_epi16(1))});
  }
#elif HWY_TARGET == HWY_AVX2
  if constexpr (kBits < 8) {
    const __m256i pairs = _mm256_maddubs_epi16(w.raw, xs.raw);
    return hn::Add(sum, VI{_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))});
  }
#endif
  const VI w32 = hn::BitCast(I32(), w);
  const VI byte = hn::Set(I32(), 255);
  sum = hn::Add(sum, hn::Mul(hn::And(w32, byte), hn::Set(I32(), x[0])));
  sum = hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<8>(w32), byte), hn::Set(I32(), x[1])));
  sum = hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<16>(w32), byte), hn::Set(I32(), x[2])));
  return hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<24>(w32), byte), hn::Set(I32(), x[3])));
#endif
}

/// kLanes binary16 values as floats.
HWY_INLINE VF LoadHalves(const uint16_t* bits) {
  const hn::Rebind<hwy::float16_t, F32> half;
  const hn::Rebind<uint16_t, F32> u16;
  return hn::PromoteTo(F32(), hn::BitCast(half, hn::LoadU(u16, bits)));
}

/// kLanes unsigned bytes as 32-bit integers.
HWY_INLINE VI LoadBytes(const uint8_t* bytes) {
  return hn::PromoteTo(I32(), hn::LoadU(hn::Rebind<uint8_t, F32>(), bytes));
}

/// The largest magnitude of n floats; NaN where one of them is NaN or infinite.
HWY_INLINE float FiniteMax(const float* x, int64_t n) {
  const F32 f;
  VF largest = hn::Zero(f);
  VF poison = hn::Zero(f);  // 0 * infinity and 0 * NaN are NaN
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = hn::LoadU(f, x + i);
    largest = hn::Max(largest, hn::Abs(v));
    poison = hn::MulAdd(v, hn::Zero(f), poison);
  }
  float most = hn::GetLane(hn::MaxOfLanes(f, largest));
  float bad = hn::GetLane(hn::SumOfLanes(f, poison));
  for (; i < n; ++i) {
    most = std::fabs(x[i]) > most ? std::fabs(x[i]) : most;
    bad += 0.0f * x[i];
  }
  return bad == 0.0f ? most : std::numeric_limits<float>::quiet_NaN();
}

/// How values of at most `most` in magnitude become integers of at most `range`: value * to, and back by
/// integer * from. Where most is NaN so is `from`, and everything computed with it. Values below 1e-30 count
/// as 0, whose reciprocal would overflow.
struct Rounding {
  float to;
  float from;
};
HWY_INLINE Rounding RoundingFor(float most, float range) {
  if (!(most >= 1e-30f)) return {0.0f, most == most ? 0.0f : most};
  return {range / most, most / range};
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
VQLLM_AFTER_NAMESPACE();

#endif  // include guard
