#include "kernels/cpu/vector_ops.h"

#include <algorithm>

#include "vq/base/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vector_ops.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using Half16 = hn::Rebind<hwy::float16_t, F>;
using U16 = hn::Rebind<uint16_t, F>;

// Each loop below runs whole vectors and ends with one vector of the remaining n % lanes, loaded and stored
// by count.

#if HWY_TARGET == HWY_SCALAR
// Highway's own scalar conversion neither rounds to nearest nor keeps NaN.
void HalvesToFloats(const uint16_t* bits, int64_t n, float* out) {
  std::transform(bits, bits + n, out, HalfBitsToFloat);
}
void FloatsToHalves(const float* values, int64_t n, uint16_t* out) {
  std::transform(values, values + n, out, FloatToHalfBits);
}
#else
void HalvesToFloats(const uint16_t* bits, int64_t n, float* out) {
  const F f;
  const Half16 h;
  const U16 u;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::PromoteTo(f, hn::BitCast(h, hn::LoadU(u, bits + i))), f, out + i);
  if (i == n) return;
  HWY_ALIGN uint16_t tail[hn::MaxLanes(u)] = {};
  HWY_ALIGN float values[hn::MaxLanes(f)];
  for (int64_t j = i; j < n; ++j) tail[j - i] = bits[j];
  hn::Store(hn::PromoteTo(f, hn::BitCast(h, hn::Load(u, tail))), f, values);
  for (int64_t j = i; j < n; ++j) out[j] = values[j - i];
}

void FloatsToHalves(const float* values, int64_t n, uint16_t* out) {
  const F f;
  const Half16 h;
  const U16 u;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::BitCast(u, hn::DemoteTo(h, hn::LoadU(f, values + i))), u, out + i);
  if (i == n) return;
  HWY_ALIGN float tail[hn::MaxLanes(f)] = {};
  HWY_ALIGN uint16_t bits[hn::MaxLanes(u)];
  for (int64_t j = i; j < n; ++j) tail[j - i] = values[j];
  hn::Store(hn::BitCast(u, hn::DemoteTo(h, hn::Load(f, tail))), u, bits);
  for (int64_t j = i; j < n; ++j) out[j] = bits[j - i];
}

#endif  // HWY_SCALAR

void BFloat16sToFloats(const uint16_t* bits, int64_t n, float* out) {
  const F f;
  const U16 u;
  const hn::RebindToUnsigned<F> u32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(u32, hn::LoadU(u, bits + i)))), f, out + i);
  }
  for (; i < n; ++i) {
    const uint32_t wide = static_cast<uint32_t>(bits[i]) << 16;
    hwy::CopyBytes<4>(&wide, out + i);
  }
}

void KeyScores(const float* q, const float* keys, int64_t channels, int64_t stride, int64_t n,
               float* scores) {
  const F f;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  int64_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) {
    auto s0 = hn::Zero(f), s1 = s0, s2 = s0, s3 = s0;
    for (int64_t c = 0; c < channels; ++c) {
      const auto x = hn::Set(f, q[c]);
      const float* key = keys + c * stride + j;
      s0 = hn::MulAdd(x, hn::LoadU(f, key), s0);
      s1 = hn::MulAdd(x, hn::LoadU(f, key + lanes), s1);
      s2 = hn::MulAdd(x, hn::LoadU(f, key + 2 * lanes), s2);
      s3 = hn::MulAdd(x, hn::LoadU(f, key + 3 * lanes), s3);
    }
    hn::StoreU(s0, f, scores + j);
    hn::StoreU(s1, f, scores + j + lanes);
    hn::StoreU(s2, f, scores + j + 2 * lanes);
    hn::StoreU(s3, f, scores + j + 3 * lanes);
  }
  for (; j + lanes <= n; j += lanes) {
    auto s = hn::Zero(f);
    for (int64_t c = 0; c < channels; ++c)
      s = hn::MulAdd(hn::Set(f, q[c]), hn::LoadU(f, keys + c * stride + j), s);
    hn::StoreU(s, f, scores + j);
  }
  for (; j < n; ++j) {
    // The same operation as a lane above, so that a score does not depend on where in a block its key stands.
    const hn::CappedTag<float, 1> one;
    auto s = hn::Zero(one);
    for (int64_t c = 0; c < channels; ++c) {
      s = hn::MulAdd(hn::Set(one, q[c]), hn::LoadU(one, keys + c * stride + j), s);
    }
    scores[j] = hn::GetLane(s);
  }
}

void AddWeighted(const float* p, const float* values, int64_t n, int64_t channels, float keep, float* out) {
  const F f;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  int64_t c = 0;
  for (; c + 4 * lanes <= channels; c += 4 * lanes) {
    const auto k = hn::Set(f, keep);
    auto s0 = hn::Mul(k, hn::LoadU(f, out + c)), s1 = hn::Mul(k, hn::LoadU(f, out + c + lanes));
    auto s2 = hn::Mul(k, hn::LoadU(f, out + c + 2 * lanes)),
         s3 = hn::Mul(k, hn::LoadU(f, out + c + 3 * lanes));
    for (int64_t j = 0; j < n; ++j) {
      const auto w = hn::Set(f, p[j]);
      const float* value = values + j * channels + c;
      s0 = hn::MulAdd(w, hn::LoadU(f, value), s0);
      s1 = hn::MulAdd(w, hn::LoadU(f, value + lanes), s1);
      s2 = hn::MulAdd(w, hn::LoadU(f, value + 2 * lanes), s2);
      s3 = hn::MulAdd(w, hn::LoadU(f, value + 3 * lanes), s3);
    }
    hn::StoreU(s0, f, out + c);
    hn::StoreU(s1, f, out + c + lanes);
    hn::StoreU(s2, f, out + c + 2 * lanes);
    hn::StoreU(s3, f, out + c + 3 * lanes);
  }
  for (; c + lanes <= channels; c += lanes) {
    auto s = hn::Mul(hn::Set(f, keep), hn::LoadU(f, out + c));
    for (int64_t j = 0; j < n; ++j)
      s = hn::MulAdd(hn::Set(f, p[j]), hn::LoadU(f, values + j * channels + c), s);
    hn::StoreU(s, f, out + c);
  }
  for (; c < channels; ++c) {
    float s = keep * out[c];
    for (int64_t j = 0; j < n; ++j) s += p[j] * values[j * channels + c];
    out[c] = s;
  }
}

float ExpSum(float* p, int64_t n, float largest) {
  const F f;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  const auto top = hn::Set(f, largest);
  const auto low =
      hn::Set(f, -88.0f);  // exp of anything lower is 0: -infinity too, which the polynomial cannot take
  auto sum = hn::Zero(f);
  HWY_ALIGN float tail[hn::MaxLanes(f)];
  for (int64_t j = 0; j < n; j += lanes) {
    const bool whole = j + lanes <= n;
    if (!whole) {
      for (int64_t i = 0; i < lanes; ++i) tail[i] = j + i < n ? p[j + i] : -1e30f;
    }
    const auto x = hn::Sub(hn::LoadU(f, whole ? p + j : tail), top);
    const auto dead = hn::Lt(x, low);
    // hn::Exp makes 0 of a NaN.
    const auto e =
        hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenZeroElse(dead, hn::Exp(f, hn::IfThenElse(dead, low, x))));
    sum = hn::Add(sum, e);
    hn::StoreU(e, f, whole ? p + j : tail);
    if (!whole) {
      for (int64_t i = j; i < n; ++i) p[i] = tail[i - j];
    }
  }
  return hn::GetLane(hn::SumOfLanes(f, sum));
}

void ScaleByWeight(const float* x, const float* weight, float factor, int64_t n, float* y) {
  const F f;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(f, x + i), hn::Set(f, factor)), hn::LoadU(f, weight + i)), f, y + i);
  }
  for (; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

float SumOfSquares(const float* x, int64_t n) {
  const F f;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  auto s0 = hn::Zero(f), s1 = s0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = hn::LoadU(f, x + i), b = hn::LoadU(f, x + i + lanes);
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(f, hn::Add(s0, s1)));
  for (; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

void SiluMulRow(const float* gate, const float* up, int64_t n, float* y) {
  const F f;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  const auto one = hn::Set(f, 1.0f);
  const auto row = [&](const float* g_in, const float* u_in, float* y_out) {
    const auto g = hn::LoadU(f, g_in);
    // exp(88) is finite and silu(-88) is 0 to within a float; NaN passes through Min and the product.
    const auto e = hn::Exp(f, hn::Min(hn::Neg(g), hn::Set(f, 88.0f)));
    hn::StoreU(hn::Mul(hn::Div(g, hn::Add(one, e)), hn::LoadU(f, u_in)), f, y_out);
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) row(gate + i, up + i, y + i);
  if (i == n) return;
  HWY_ALIGN float g[hn::MaxLanes(f)] = {};
  HWY_ALIGN float u[hn::MaxLanes(f)] = {};
  for (int64_t j = i; j < n; ++j) g[j - i] = gate[j], u[j - i] = up[j];
  row(g, u, g);
  for (int64_t j = i; j < n; ++j) y[j] = g[j - i];
}

void AddTo(const float* y, int64_t n, float* x) {
  const F f;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Add(hn::LoadU(f, x + i), hn::LoadU(f, y + i)), f, x + i);
  for (; i < n; ++i) x[i] += y[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {

HWY_EXPORT(HalvesToFloats);
HWY_EXPORT(FloatsToHalves);
HWY_EXPORT(BFloat16sToFloats);
HWY_EXPORT(KeyScores);
HWY_EXPORT(AddWeighted);
HWY_EXPORT(ExpSum);
HWY_EXPORT(ScaleByWeight);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(SiluMulRow);
HWY_EXPORT(AddTo);

void HalvesToFloats(const uint16_t* bits, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(HalvesToFloats)(bits, n, out);
}
void FloatsToHalves(const float* values, int64_t n, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(FloatsToHalves)(values, n, out);
}
void BFloat16sToFloats(const uint16_t* bits, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(BFloat16sToFloats)(bits, n, out);
}
void KeyScores(const float* q, const float* keys, int64_t channels, int64_t stride, int64_t n,
               float* scores) {
  HWY_DYNAMIC_DISPATCH(KeyScores)(q, keys, channels, stride, n, scores);
}
void AddWeighted(const float* p, const float* values, int64_t n, int64_t channels, float keep, float* out) {
  HWY_DYNAMIC_DISPATCH(AddWeighted)(p, values, n, channels, keep, out);
}
float ExpSum(float* p, int64_t n, float largest) { return HWY_DYNAMIC_DISPATCH(ExpSum)(p, n, largest); }
void ScaleByWeight(const float* x, const float* weight, float factor, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(ScaleByWeight)(x, weight, factor, n, y);
}
float SumOfSquares(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, n); }
void SiluMulRow(const float* gate, const float* up, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(SiluMulRow)(gate, up, n, y);
}
void AddTo(const float* y, int64_t n, float* x) { HWY_DYNAMIC_DISPATCH(AddTo)(y, n, x); }

}  // namespace vqllm::cpu
#endif  // HWY_ONCE
