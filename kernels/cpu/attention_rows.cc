#include "kernels/cpu/attention_rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/attention_scalar.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_rows.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR
// The kernels need vectors of four floats.
using scalar::RowScores;
using scalar::RowValues;
using scalar::SoftmaxTile;
#else
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, kRowPad>;
using F4 = hn::FixedTag<float, kQuad>;
using V = hn::Vec<F>;
using V4 = hn::Vec<F4>;
constexpr int64_t kLanes = hn::MaxLanes(F());

// Tokens whose values are summed into registers before the sums go back to memory: 64 rows of fp16 x 128 are
// 16 KiB and stay in L1 for the passes over the channels.
constexpr int64_t kValueBlock = 64;

// Vectors of a row that a pass over the values sums for four heads: 16 sums, 4 elements and a weight need 21
// registers.
constexpr int kPass = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64 ? 4 : 2;

// Keys that are multiplied with four heads at a time: 16 sums, 4 elements and a query need 21 registers.
constexpr int kTokens = kPass;

struct LoadF32 {
  HWY_INLINE V operator()(const uint8_t* row, int64_t c) const {
    return hn::LoadU(F(), reinterpret_cast<const float*>(row) + c);
  }
};
struct LoadF16 {
  HWY_INLINE V operator()(const uint8_t* row, int64_t c) const {
    const hn::Rebind<uint16_t, F> u;
    const hn::Rebind<hwy::float16_t, F> h;
    return hn::PromoteTo(F(), hn::BitCast(h, hn::LoadU(u, reinterpret_cast<const uint16_t*>(row) + c)));
  }
};
struct LoadBF16 {
  HWY_INLINE V operator()(const uint8_t* row, int64_t c) const {
    const hn::Rebind<uint16_t, F> u;
    const hn::RebindToUnsigned<F> wide;
    const auto bits = hn::PromoteTo(wide, hn::LoadU(u, reinterpret_cast<const uint16_t*>(row) + c));
    return hn::BitCast(F(), hn::ShiftLeft<16>(bits));
  }
};
struct LoadInt8 {
  HWY_INLINE V operator()(const uint8_t* row, int64_t c) const {
    const hn::Rebind<uint8_t, F> u;
    return hn::ConvertTo(F(), hn::PromoteTo(hn::RebindToSigned<F>(), hn::LoadU(u, row + c)));
  }
};
struct LoadInt4 {
  int64_t half;
  HWY_INLINE V operator()(const uint8_t* row, int64_t c) const {
    const hn::Rebind<uint8_t, F> u;
    const hn::RebindToSigned<F> wide;
    const bool high = c >= half;
    const auto bytes = hn::PromoteTo(wide, hn::LoadU(u, row + (high ? c - half : c)));
    return hn::ConvertTo(F(), high ? hn::ShiftRight<4>(bytes) : hn::And(bytes, hn::Set(wide, 15)));
  }
};

/// The sum of the 128-bit blocks of a vector.
template <class D>
HWY_INLINE V4 FoldBlocks(D, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == kQuad) {
    return v;
  } else {
    const hn::Half<D> half;
    return FoldBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// The sums of the lanes of four vectors.
HWY_INLINE V4 SumEach(V a, V b, V c, V d) {
  const F f;
  const hn::Repartition<double, F> f64;
  const auto ab = hn::BitCast(f64, hn::Add(hn::InterleaveLower(f, a, b), hn::InterleaveUpper(f, a, b)));
  const auto cd = hn::BitCast(f64, hn::Add(hn::InterleaveLower(f, c, d), hn::InterleaveUpper(f, c, d)));
  return FoldBlocks(f, hn::Add(hn::BitCast(f, hn::InterleaveLower(f64, ab, cd)),
                               hn::BitCast(f, hn::InterleaveUpper(f64, ab, cd))));
}

/// {scale, offset} of a group in lanes 0 and 1.
HWY_INLINE V4 Numbers(const RowLayout& layout, const uint8_t* row, int64_t group, float zero) {
  uint16_t bits[4] = {};
  const int64_t size = layout.symmetric ? 2 : 4;
  std::memcpy(bits, row + layout.numbers + group * size, static_cast<size_t>(size));
  const hn::Rebind<hwy::float16_t, F4> h;
  const V4 v = hn::PromoteTo(F4(), hn::BitCast(h, hn::LoadU(hn::Rebind<uint16_t, F4>(), bits)));
  // The offset of a symmetric group is -scale * zero.
  return layout.symmetric ? hn::OddEven(hn::Mul(hn::Broadcast<0>(v), hn::Set(F4(), -zero)), v) : v;
}

HWY_INLINE void PrefetchRow(const uint8_t* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(row + i);
}

/// How many scales a row has: the fewer, the less is done outside of the inner loop.
enum class Scaling { kNone, kOne, kGroups };

template <int kHeads, int kCount, Scaling kScaling, class Load>
HWY_INLINE void ScoreTokens(const RowLayout& layout, const Load& load, float zero, const float* q,
                            const float* q_sums, const uint8_t* const* rows, float* scores) {
  const F f;
  const F4 f4;
  V total[kCount][kHeads];
  V4 offsets[kCount];
  for (int t = 0; t < kCount; ++t) {
    for (int h = 0; h < kHeads; ++h) total[t][h] = hn::Zero(f);
    offsets[t] = hn::Zero(f4);
    PrefetchRow(rows[t + kRowsAhead], layout.bytes);
  }
  const auto add_products = [&](int64_t begin, int64_t end, V(&sums)[kCount][kHeads]) HWY_ATTR {
    for (int64_t c = begin; c < end; c += kLanes) {
      V x[kCount];
      for (int t = 0; t < kCount; ++t) x[t] = load(rows[t], c);
      for (int h = 0; h < kHeads; ++h) {
        const V y = hn::LoadU(f, q + h * layout.dim + c);
        for (int t = 0; t < kCount; ++t) sums[t][h] = hn::MulAdd(x[t], y, sums[t][h]);
      }
    }
  };
  if constexpr (kScaling == Scaling::kGroups) {
    for (int64_t begin = 0, g = 0; begin < layout.dim; begin += layout.group, ++g) {
      V sums[kCount][kHeads];
      for (int t = 0; t < kCount; ++t) {
        for (int h = 0; h < kHeads; ++h) sums[t][h] = hn::Zero(f);
      }
      add_products(begin, std::min(begin + layout.group, layout.dim), sums);
      for (int t = 0; t < kCount; ++t) {
        const V4 numbers = Numbers(layout, rows[t], g, zero);
        const V scale = hn::Set(f, hn::GetLane(numbers));
        for (int h = 0; h < kHeads; ++h) total[t][h] = hn::MulAdd(scale, sums[t][h], total[t][h]);
        offsets[t] = hn::MulAdd(hn::Broadcast<1>(numbers), hn::LoadU(f4, q_sums + g * kQuad), offsets[t]);
      }
    }
  } else {
    add_products(0, layout.dim, total);
  }
  const V none = hn::Zero(f);
  for (int t = 0; t < kCount; ++t) {
    V4 dots = SumEach(total[t][0], kHeads > 1 ? total[t][kHeads > 1 ? 1 : 0] : none,
                      kHeads > 2 ? total[t][kHeads > 2 ? 2 : 0] : none,
                      kHeads > 3 ? total[t][kHeads > 3 ? 3 : 0] : none);
    if constexpr (kScaling == Scaling::kOne) {
      const V4 numbers = Numbers(layout, rows[t], 0, zero);
      dots = hn::MulAdd(hn::Broadcast<0>(numbers), dots,
                        hn::Mul(hn::Broadcast<1>(numbers), hn::LoadU(f4, q_sums)));
    }
    hn::StoreU(kScaling == Scaling::kGroups ? hn::Add(dots, offsets[t]) : dots, f4, scores + t * kQuad);
  }
}

/// Sums of q over each group, [groups][kQuad]: what an offset is multiplied with.
template <int kHeads>
void SumQueries(const RowLayout& layout, const float* q, float* sums) {
  const F f;
  for (int64_t begin = 0; begin < layout.dim; begin += layout.group, sums += kQuad) {
    const int64_t end = std::min(begin + layout.group, layout.dim);
    for (int h = 0; h < kHeads; ++h) {
      V sum = hn::Zero(f);
      for (int64_t c = begin; c < end; c += kLanes) sum = hn::Add(sum, hn::LoadU(f, q + h * layout.dim + c));
      sums[h] = hn::GetLane(hn::SumOfLanes(f, sum));
    }
  }
}

template <int kHeads, Scaling kScaling, class Load>
void ScoresOf(const RowLayout& layout, const Load& load, float zero, const float* q,
              const uint8_t* const* rows, int64_t n, float* scores) {
  float q_sums[kScaling != Scaling::kNone ? kMaxRowGroups * kQuad : 1] = {};
  if constexpr (kScaling != Scaling::kNone) SumQueries<kHeads>(layout, q, q_sums);
  // Sums of a group and of the row do not fit into registers for more than two tokens.
  constexpr int kCount = kScaling == Scaling::kGroups ? 2 : kTokens;
  int64_t t = 0;
  for (; t + kCount <= n; t += kCount) {
    ScoreTokens<kHeads, kCount, kScaling>(layout, load, zero, q, q_sums, rows + t, scores + t * kQuad);
  }
  for (; t < n; ++t) {
    ScoreTokens<kHeads, 1, kScaling>(layout, load, zero, q, q_sums, rows + t, scores + t * kQuad);
  }
}

template <int kHeads, bool kScaled, class Load>
void Scores(const RowLayout& layout, const Load& load, float zero, const float* q, const uint8_t* const* rows,
            int64_t n, float* scores) {
  if constexpr (!kScaled) {
    ScoresOf<kHeads, Scaling::kNone>(layout, load, zero, q, rows, n, scores);
  } else if (layout.group >= layout.dim) {
    ScoresOf<kHeads, Scaling::kOne>(layout, load, zero, q, rows, n, scores);
  } else {
    ScoresOf<kHeads, Scaling::kGroups>(layout, load, zero, q, rows, n, scores);
  }
}

/// Sums kVectors vectors of the rows, from channel c on.
template <int kHeads, int kVectors, class Load>
HWY_INLINE void SumValues(const Load& load, const float* weights, const uint8_t* const* rows, int64_t n,
                          int64_t prefetch, int64_t c, int64_t dim, float* out) {
  const F f;
  V sums[kVectors][kHeads];
  for (int i = 0; i < kVectors; ++i) {
    for (int h = 0; h < kHeads; ++h) sums[i][h] = hn::LoadU(f, out + h * dim + c + i * kLanes);
  }
  for (int64_t t = 0; t < n; ++t) {
    PrefetchRow(rows[t + kRowsAhead], prefetch);
    V x[kVectors];
    for (int i = 0; i < kVectors; ++i) x[i] = load(rows[t], c + i * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const V w = hn::Set(f, weights[t * kQuad + h]);
      for (int i = 0; i < kVectors; ++i) sums[i][h] = hn::MulAdd(w, x[i], sums[i][h]);
    }
  }
  for (int i = 0; i < kVectors; ++i) {
    for (int h = 0; h < kHeads; ++h) hn::StoreU(sums[i][h], f, out + h * dim + c + i * kLanes);
  }
}

/// weights times each token's scale of group g; adds weights times offset to the channels of the group.
template <int kHeads>
HWY_INLINE void ScaleWeights(const RowLayout& layout, float zero, const float* weights,
                             const uint8_t* const* rows, int64_t n, int64_t g, int64_t begin, int64_t end,
                             float* scaled, float* out) {
  const F f;
  const F4 f4;
  V4 offset = hn::Zero(f4);
  for (int64_t t = 0; t < n; ++t) {
    const V4 numbers = Numbers(layout, rows[t], g, zero);
    const V4 w = hn::LoadU(f4, weights + t * kQuad);
    hn::StoreU(hn::Mul(w, hn::Broadcast<0>(numbers)), f4, scaled + t * kQuad);
    offset = hn::MulAdd(w, hn::Broadcast<1>(numbers), offset);
  }
  float offsets[kQuad];
  hn::StoreU(offset, f4, offsets);
  for (int h = 0; h < kHeads; ++h) {
    const V add = hn::Set(f, offsets[h]);
    for (int64_t c = begin; c < end; c += kLanes) {
      float* to = out + h * layout.dim + c;
      hn::StoreU(hn::Add(hn::LoadU(f, to), add), f, to);
    }
  }
}

template <int kHeads, bool kScaled, class Load>
void Values(const RowLayout& layout, const Load& load, float zero, const float* weights,
            const uint8_t* const* rows, int64_t n, float* out) {
  const int64_t group = kScaled ? std::min(layout.group, layout.dim) : layout.dim;
  for (int64_t first = 0; first < n;
       first += kValueBlock, rows += kValueBlock, weights += kValueBlock * kQuad) {
    const int64_t count = std::min(kValueBlock, n - first);
    int64_t prefetch = layout.bytes;  // the first pass over the rows of a block asks for those of the next
    for (int64_t begin = 0, g = 0; begin < layout.dim; begin += group, ++g) {
      const int64_t end = std::min(begin + group, layout.dim);
      float scaled[kScaled ? kValueBlock * kQuad : 1];
      const float* w = weights;
      if constexpr (kScaled) {
        ScaleWeights<kHeads>(layout, zero, weights, rows, count, g, begin, end, scaled, out);
        w = scaled;
      }
      int64_t c = begin;
      for (; c + kPass * kLanes <= end; c += kPass * kLanes) {
        SumValues<kHeads, kPass>(load, w, rows, count, prefetch, c, layout.dim, out);
        prefetch = 0;
      }
      for (; c < end; c += kLanes) {
        SumValues<kHeads, 1>(load, w, rows, count, prefetch, c, layout.dim, out);
        prefetch = 0;
      }
    }
  }
}

/// Calls run(load, scaled, zero) with the loader of the layout.
template <class Run>
HWY_INLINE void WithLoader(const RowLayout& layout, const Run& run) {
  switch (layout.kind) {
    case RowKind::kF32:
      return run(LoadF32(), std::false_type(), 0.0f);
    case RowKind::kF16:
      return run(LoadF16(), std::false_type(), 0.0f);
    case RowKind::kBF16:
      return run(LoadBF16(), std::false_type(), 0.0f);
    case RowKind::kInt8:
      return run(LoadInt8(), std::true_type(), 128.0f);
    case RowKind::kInt4:
      return run(LoadInt4{layout.dim / 2}, std::true_type(), 8.0f);
  }
}

void RowScores(const RowLayout& layout, const QueryQuad& quad, const uint8_t* const* rows, int64_t n,
               float* scores) {
  WithLoader(layout, [&](const auto& load, auto scaled, float zero) {
    constexpr bool kScaled = decltype(scaled)::value;
    if (quad.heads == 1) return Scores<1, kScaled>(layout, load, zero, quad.q, rows, n, scores);
    if (quad.heads == 2) return Scores<2, kScaled>(layout, load, zero, quad.q, rows, n, scores);
    Scores<4, kScaled>(layout, load, zero, quad.q, rows, n, scores);
  });
}

void RowValues(const RowLayout& layout, const float* weights, int heads, const uint8_t* const* rows,
               int64_t n, float* out) {
  WithLoader(layout, [&](const auto& load, auto scaled, float zero) {
    constexpr bool kScaled = decltype(scaled)::value;
    if (heads == 1) return Values<1, kScaled>(layout, load, zero, weights, rows, n, out);
    if (heads == 2) return Values<2, kScaled>(layout, load, zero, weights, rows, n, out);
    Values<4, kScaled>(layout, load, zero, weights, rows, n, out);
  });
}

void SoftmaxTile(float* scores, int64_t n, float* largest, float* sums, float* keep) {
  const F4 f4;
  const V4 before = hn::LoadU(f4, largest);
  V4 tops4[4] = {before, before, before, before};  // four chains: one would wait for each Max in turn
  int64_t seen = 0;
  for (; seen + 4 <= n; seen += 4) {
    for (int64_t i = 0; i < 4; ++i) tops4[i] = hn::Max(tops4[i], hn::LoadU(f4, scores + (seen + i) * kQuad));
  }
  for (; seen < n; ++seen) tops4[0] = hn::Max(tops4[0], hn::LoadU(f4, scores + seen * kQuad));
  const V4 top = hn::Max(hn::Max(tops4[0], tops4[1]), hn::Max(tops4[2], tops4[3]));
  // exp of anything lower is 0, and minus infinity has no place in the polynomial.
  const V4 low = hn::Set(f4, -87.0f);
  const V4 step = hn::Sub(before, top);
  const V4 factor = hn::IfThenElseZero(hn::Ge(step, low), hn::Exp(f4, hn::Max(step, low)));
  hn::StoreU(factor, f4, keep);
  hn::StoreU(top, f4, largest);

  const F f;
  constexpr int64_t kSoftmaxTokens = kLanes / kQuad;
  const V tops = hn::LoadDup128(f, largest);
  const V lows = hn::Set(f, -87.0f);
  V total = hn::Zero(f);
  int64_t t = 0;
  for (; t + kSoftmaxTokens <= n; t += kSoftmaxTokens) {
    const V x = hn::Sub(hn::LoadU(f, scores + t * kQuad), tops);
    // hn::Exp makes 0 of a NaN.
    const auto dead = hn::Lt(x, lows);
    const V e =
        hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenZeroElse(dead, hn::Exp(f, hn::IfThenElse(dead, lows, x))));
    hn::StoreU(e, f, scores + t * kQuad);
    total = hn::Add(total, e);
  }
  V4 sum = FoldBlocks(f, total);
  for (; t < n; ++t) {
    const V4 x = hn::Sub(hn::LoadU(f4, scores + t * kQuad), top);
    const auto dead = hn::Lt(x, low);
    const V4 e =
        hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenZeroElse(dead, hn::Exp(f4, hn::IfThenElse(dead, low, x))));
    hn::StoreU(e, f4, scores + t * kQuad);
    sum = hn::Add(sum, e);
  }
  hn::StoreU(hn::MulAdd(hn::LoadU(f4, sums), factor, sum), f4, sums);
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {

HWY_EXPORT(RowScores);
HWY_EXPORT(RowValues);
HWY_EXPORT(SoftmaxTile);

void RowScores(const RowLayout& layout, const QueryQuad& quad, const uint8_t* const* rows, int64_t n,
               float* scores) {
  HWY_DYNAMIC_DISPATCH(RowScores)(layout, quad, rows, n, scores);
}
void RowValues(const RowLayout& layout, const float* weights, int heads, const uint8_t* const* rows,
               int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(RowValues)(layout, weights, heads, rows, n, out);
}
void SoftmaxTile(float* scores, int64_t n, float* largest, float* sums, float* keep) {
  HWY_DYNAMIC_DISPATCH(SoftmaxTile)(scores, n, largest, sums, keep);
}

}  // namespace vqllm::cpu
#endif  // HWY_ONCE
