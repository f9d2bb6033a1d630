#include "kernels/cpu/kv_encode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vq/base/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_encode.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, kEntryPad>;
using V = hn::Vec<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());

// Points that are compared with the codebook at a time: each vector of entries is loaded once for all.
constexpr int kPoints = 4;

IntGroup EncodeIntGroup(const float* x, int64_t n, int levels, bool symmetric, uint8_t* codes) {
  const F f;
  const float infinity = std::numeric_limits<float>::infinity();
  V lows = hn::Set(f, infinity);
  V highs = hn::Set(f, -infinity);
  V finite = hn::Zero(f);  // stays 0 unless there is a NaN or an infinity
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V v = hn::LoadU(f, x + i);
    lows = hn::Min(lows, v);
    highs = hn::Max(highs, v);
    finite = hn::MulAdd(v, hn::Zero(f), finite);
  }
  float low = hn::GetLane(hn::MinOfLanes(f, lows));
  float high = hn::GetLane(hn::MaxOfLanes(f, highs));
  float check = hn::GetLane(hn::SumOfLanes(f, finite));
  for (int64_t j = i; j < n; ++j) {
    low = std::min(low, x[j]);
    high = std::max(high, x[j]);
    check += x[j] * 0;
  }
  if (check != 0 || std::isnan(check)) {
    std::fill_n(codes, n, uint8_t{0});
    const uint16_t nan = FloatToHalfBits(std::numeric_limits<float>::quiet_NaN());
    return {nan, nan};
  }
  constexpr float kLargestHalf = 65504;
  low = std::clamp(low, -kLargestHalf, kLargestHalf);
  high = std::clamp(high, -kLargestHalf, kLargestHalf);
  IntGroup group;
  float offset;
  if (symmetric) {
    group.scale = FloatToHalfBits(std::max(-low, high) / static_cast<float>(levels / 2));
    offset = -HalfBitsToFloat(group.scale) * static_cast<float>((levels + 1) / 2);
  } else {
    group.scale = FloatToHalfBits((high - low) / static_cast<float>(levels));
    group.offset = FloatToHalfBits(low);
    offset = HalfBitsToFloat(group.offset);
  }
  const float scale = HalfBitsToFloat(group.scale);
  if (scale == 0) {
    // All values round to the offset, which a symmetric group does not have: it is then 0.
    std::fill_n(codes, n, uint8_t{0});
    return group;
  }
  const hn::Rebind<uint8_t, F> bytes;
  const V divisor = hn::Set(f, scale);
  const V start = hn::Set(f, offset);
  const V top = hn::Set(f, static_cast<float>(levels));
  const auto encode = [&](V v) {
    const V steps = hn::Div(hn::Sub(v, start), divisor);
    const V clamped = hn::Min(hn::Max(steps, hn::Zero(f)), top);
    return hn::DemoteTo(bytes, hn::NearestInt(clamped));
  };
  for (i = 0; i + kLanes <= n; i += kLanes) hn::StoreU(encode(hn::LoadU(f, x + i)), bytes, codes + i);
  if (i < n) {
    HWY_ALIGN float tail[kLanes] = {};
    HWY_ALIGN uint8_t out[kLanes];
    std::copy(x + i, x + n, tail);
    hn::StoreU(encode(hn::Load(f, tail)), bytes, out);
    std::copy_n(out, n - i, codes + i);
  }
  return group;
}

template <int kCount>
HWY_INLINE void Nearest(const EntryColumns& columns, const float* points, int64_t stride, int32_t* codes) {
  const F f;
  const hn::RebindToSigned<F> ints;
  V best[kCount];
  hn::Vec<decltype(ints)> index[kCount];
  for (int p = 0; p < kCount; ++p) {
    best[p] = hn::Set(f, -std::numeric_limits<float>::infinity());
    index[p] = hn::Zero(ints);
  }
  auto at = hn::Iota(ints, 0);
  for (int64_t e = 0; e < columns.padded; e += kLanes) {
    V scores[kCount];
    const V norm = hn::LoadU(f, columns.half_norms + e);
    for (int p = 0; p < kCount; ++p) scores[p] = hn::Neg(norm);
    for (int64_t d = 0; d < columns.subvector; ++d) {
      const V entry = hn::LoadU(f, columns.values + d * columns.padded + e);
      for (int p = 0; p < kCount; ++p) {
        scores[p] = hn::MulAdd(hn::Set(f, points[p * stride + d]), entry, scores[p]);
      }
    }
    for (int p = 0; p < kCount; ++p) {
      // Strictly greater: a lane keeps its lowest index.
      const auto better = hn::Gt(scores[p], best[p]);
      best[p] = hn::IfThenElse(better, scores[p], best[p]);
      index[p] = hn::IfThenElse(hn::RebindMask(ints, better), at, index[p]);
    }
    at = hn::Add(at, hn::Set(ints, static_cast<int32_t>(kLanes)));
  }
  for (int p = 0; p < kCount; ++p) {
    const V top = hn::MaxOfLanes(f, best[p]);
    const auto winners = hn::RebindMask(ints, hn::Eq(best[p], top));
    const auto lowest = hn::IfThenElse(winners, index[p], hn::Set(ints, std::numeric_limits<int32_t>::max()));
    codes[p] = hn::GetLane(hn::MinOfLanes(ints, lowest));
  }
}

void NearestCodes(const EntryColumns& columns, const float* points, int64_t stride, int64_t n,
                  int32_t* codes) {
  int64_t i = 0;
  for (; i + kPoints <= n; i += kPoints) Nearest<kPoints>(columns, points + i * stride, stride, codes + i);
  for (; i < n; ++i) Nearest<1>(columns, points + i * stride, stride, codes + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {

HWY_EXPORT(EncodeIntGroup);
HWY_EXPORT(NearestCodes);

IntGroup EncodeIntGroup(const float* x, int64_t n, int levels, bool symmetric, uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(EncodeIntGroup)(x, n, levels, symmetric, codes);
}
void NearestCodes(const EntryColumns& columns, const float* points, int64_t stride, int64_t n,
                  int32_t* codes) {
  HWY_DYNAMIC_DISPATCH(NearestCodes)(columns, points, stride, n, codes);
}

}  // namespace vqllm::cpu
#endif  // HWY_ONCE
