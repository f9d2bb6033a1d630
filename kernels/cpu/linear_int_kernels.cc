#include "kernels/cpu/linear_int_kernels.h"

#include <algorithm>
#include <type_traits>

#include "vq/base/check.h"

#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_int_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "kernels/cpu/linear-inl.h"

VQLLM_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

/// Bytes of quad q of a unit: kPart of kParts vectors of the strip.
template <int kBits, int kQuad>
HWY_INLINE VU8 Quad(const uint8_t* unit, int part) {
  const U8 u8;
  const uint8_t* at = unit + part * kBytes;
  if constexpr (kBits == 8) return hn::LoadU(u8, at + 64 * kQuad);
  if constexpr (kBits == 4) {
    return ShiftAnd<4 * (kQuad % 2)>(hn::LoadU(u8, at + 64 * (kQuad / 2)), hn::Set(u8, 15));
  }
  const VU8 low = ShiftAnd<2 * (kQuad % 4)>(hn::LoadU(u8, at + 64 * (kQuad / 4)), hn::Set(u8, 3));
  if constexpr (kBits == 2) {
    return low;
  } else {
    const VU8 third = hn::LoadU(u8, at + 128);
    if constexpr (kQuad < 2) {
      const VU8 up = hn::BitCast(u8, hn::ShiftLeft<2 - kQuad>(hn::BitCast(U16(), third)));
      return hn::Or(low, hn::And(up, hn::Set(u8, 4)));
    } else {
      return hn::Or(low, ShiftAnd<kQuad - 2>(third, hn::Set(u8, 4)));
    }
  }
}

/// Calls f(std::integral_constant<int, q>) for the 8 quads of a unit.
template <typename Function>
HWY_INLINE void ForQuads(Function f) {
  f(std::integral_constant<int, 0>());
  f(std::integral_constant<int, 1>());
  f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 3>());
  f(std::integral_constant<int, 4>());
  f(std::integral_constant<int, 5>());
  f(std::integral_constant<int, 6>());
  f(std::integral_constant<int, 7>());
}

/// kStrips strips of 16 rows times kM operand rows. sums [kM][kStrips * 16].
template <int kBits, int kStrips, int kM>
HWY_NOINLINE void StripProduct(const IntView& w, const uint8_t* operand, int64_t operand_stride,
                               int64_t strip, float* sums) {
  constexpr int kV = kStrips * kParts;
  const F32 f;
  const Blocks& blocks = *w.blocks;
  const int64_t count = blocks.count();
  const int64_t per_group = blocks.per_group();
  const int64_t groups = blocks.groups();
  const int64_t units = blocks.padded / 32;
  const uint8_t* codes = w.codes + strip * w.strip_bytes;
  for (int i = 0; i < kM * kStrips * 16; ++i) sums[i] = 0;
  int64_t group = 0;
  int64_t in_group = 0;
  for (int64_t b = 0; b < count; ++b) {
    VI acc[kM][kV];
    for (int t = 0; t < kM; ++t) {
      for (int v = 0; v < kV; ++v) acc[t][v] = hn::Zero(I32());
    }
    for (int64_t u = 0; u < units; ++u) {
      const uint8_t* unit = codes + (b * units + u) * 64 * kBits;
      const int8_t* x = reinterpret_cast<const int8_t*>(operand) + (b * units + u) * 32;
      ForQuads([&](auto quad) VQLLM_ATTR {
        constexpr int kQuad = decltype(quad)::value;
        for (int v = 0; v < kV; ++v) {
          const VU8 bytes = Quad<kBits, kQuad>(unit + v / kParts * w.strip_bytes, v % kParts);
          for (int t = 0; t < kM; ++t) {
            acc[t][v] = Dot4<kBits>(acc[t][v], bytes, x + t * operand_stride + 4 * kQuad);
          }
        }
      });
    }
    for (int t = 0; t < kM; ++t) {
      const uint8_t* tail = operand + t * operand_stride + count * blocks.padded + 8 * b;
      float x_scale;
      int32_t x_sum;
      std::memcpy(&x_scale, tail, 4);
      std::memcpy(&x_sum, tail + 4, 4);
      for (int v = 0; v < kV; ++v) {
        const int64_t at = ((strip + v / kParts) * groups + group) * 16 + v % kParts * kLanes;
        const VI centred = hn::Sub(acc[t][v], hn::Mul(LoadBytes(w.zeros + at), hn::Set(I32(), x_sum)));
        const VF scale = hn::Mul(LoadHalves(w.scales + at), hn::Set(f, x_scale));
        float* sum = sums + t * kStrips * 16 + v * kLanes;
        hn::StoreU(hn::MulAdd(scale, hn::ConvertTo(f, centred), hn::LoadU(f, sum)), f, sum);
      }
    }
    if (++in_group == per_group) {
      in_group = 0;
      ++group;
    }
  }
}

template <int kBits, int kStrips, int kM>
HWY_INLINE void Store(const IntView& w, const uint8_t* operand, int64_t stride, int64_t row, int64_t end,
                      int64_t token, MatrixView<float> y) {
  HWY_ALIGN float sums[kM * kStrips * 16];
  StripProduct<kBits, kStrips, kM>(w, operand + token * stride, stride, row / 16, sums);
  const int64_t n = std::min<int64_t>(kStrips * 16, end - row);
  for (int t = 0; t < kM; ++t) std::copy_n(sums + t * kStrips * 16, n, y.Row(token + t) + row);
}

/// Strips taken together: with one row of x enough independent sums to cover the latency of a dot product,
/// with many rows as many as registers hold.
template <int kBits, int kStrips>
HWY_INLINE void Tokens(const IntView& w, const uint8_t* operand, int64_t stride, int64_t row, int64_t end,
                       MatrixView<float> y) {
  constexpr int kMost = kParts * kStrips == 1 ? 8 : kParts * kStrips <= 2 ? (kLanes == 16 ? 8 : 4) : 2;
  int64_t token = 0;
  if constexpr (kMost == 8) {
    for (; token + 8 <= y.rows; token += 8) Store<kBits, kStrips, 8>(w, operand, stride, row, end, token, y);
  }
  if constexpr (kMost >= 4) {
    for (; token + 4 <= y.rows; token += 4) Store<kBits, kStrips, 4>(w, operand, stride, row, end, token, y);
  }
  for (; token + 2 <= y.rows; token += 2) Store<kBits, kStrips, 2>(w, operand, stride, row, end, token, y);
  for (; token < y.rows; ++token) Store<kBits, kStrips, 1>(w, operand, stride, row, end, token, y);
}

template <int kBits>
void Product(const IntView& w, const uint8_t* operand, int64_t begin, int64_t end, MatrixView<float> y) {
  const int64_t stride = IntOperandBytes(*w.blocks);
  int64_t row = begin;
  constexpr int kTogether = kParts == 1 ? 2 : 1;
  for (; row + (kTogether - 1) * 16 < end; row += kTogether * 16)
    Tokens<kBits, kTogether>(w, operand, stride, row, end, y);
  for (; row < end; row += 16) Tokens<kBits, 1>(w, operand, stride, row, end, y);
}

/// The weights of column 4 q + j of a unit, without scale: lane i of part p is row p * kLanes + i.
template <int kBits, int kQuad, int kByte>
HWY_INLINE VF Values(const uint8_t* unit, int part, VI zero) {
  const VI bytes = hn::BitCast(I32(), Quad<kBits, kQuad>(unit, part));
  const VI code = hn::And(hn::ShiftRight<8 * kByte>(bytes), hn::Set(I32(), 255));
  return hn::ConvertTo(F32(), hn::Sub(code, zero));
}

/// Runs f(column, part, value vector) over the weights of a strip; scales(block) before each block.
template <int kBits, typename BeginBlock, typename Column, typename EndBlock>
HWY_INLINE void WalkStrip(const IntView& w, int64_t strip, BeginBlock begin_block, Column column,
                          EndBlock end_block) {
  const Blocks& blocks = *w.blocks;
  const int64_t units = blocks.padded / 32;
  const uint8_t* codes = w.codes + strip * w.strip_bytes;
  for (int64_t b = 0; b < blocks.count(); ++b) {
    const int64_t first = blocks.Begin(b);
    const int64_t end = blocks.End(b);
    const int64_t at = (strip * blocks.groups() + blocks.Group(b)) * 16;
    VI zero[kParts];
    for (int p = 0; p < kParts; ++p) zero[p] = LoadBytes(w.zeros + at + p * kLanes);
    begin_block(at);
    for (int64_t u = 0; u < units; ++u) {
      const uint8_t* unit = codes + (b * units + u) * 64 * kBits;
      const int64_t base = first + u * 32;
      ForQuads([&](auto quad) VQLLM_ATTR {
        constexpr int kQuad = decltype(quad)::value;
        if (base + 4 * kQuad >= end) return;
        for (int p = 0; p < kParts; ++p) {
          column(base + 4 * kQuad, p, Values<kBits, kQuad, 0>(unit, p, zero[p]));
          if (base + 4 * kQuad + 1 < end)
            column(base + 4 * kQuad + 1, p, Values<kBits, kQuad, 1>(unit, p, zero[p]));
          if (base + 4 * kQuad + 2 < end)
            column(base + 4 * kQuad + 2, p, Values<kBits, kQuad, 2>(unit, p, zero[p]));
          if (base + 4 * kQuad + 3 < end)
            column(base + 4 * kQuad + 3, p, Values<kBits, kQuad, 3>(unit, p, zero[p]));
        }
      });
    }
    end_block(at);
  }
}

template <int kBits>
void ProductExact(const IntView& w, MatrixView<const float> x, int64_t begin, int64_t end,
                  MatrixView<float> y) {
  const F32 f;
  for (int64_t row = begin; row < end; row += 16) {
    for (int64_t token = 0; token < x.rows; token += 2) {
      const int m = token + 1 < x.rows ? 2 : 1;
      const float* x0 = x.Row(token);
      const float* x1 = x.Row(token + m - 1);
      VF sum[2][kParts];
      VF acc[2][kParts];
      for (int p = 0; p < kParts; ++p) sum[0][p] = sum[1][p] = hn::Zero(f);
      WalkStrip<kBits>(
          w, row / 16,
          [&](int64_t) VQLLM_ATTR {
            for (int p = 0; p < kParts; ++p) acc[0][p] = acc[1][p] = hn::Zero(f);
          },
          [&](int64_t c, int p, VF values) VQLLM_ATTR {
            acc[0][p] = hn::MulAdd(values, hn::Set(f, x0[c]), acc[0][p]);
            acc[1][p] = hn::MulAdd(values, hn::Set(f, x1[c]), acc[1][p]);
          },
          [&](int64_t at) VQLLM_ATTR {
            for (int p = 0; p < kParts; ++p) {
              const VF scale = LoadHalves(w.scales + at + p * kLanes);
              sum[0][p] = hn::MulAdd(scale, acc[0][p], sum[0][p]);
              sum[1][p] = hn::MulAdd(scale, acc[1][p], sum[1][p]);
            }
          });
      HWY_ALIGN float out[16];
      for (int t = 0; t < m; ++t) {
        for (int p = 0; p < kParts; ++p) hn::Store(sum[t][p], f, out + p * kLanes);
        std::copy_n(out, std::min<int64_t>(16, end - row), y.Row(token + t) + row);
      }
    }
  }
}

template <int kBits>
void Decode(const IntView& w, int64_t begin, int64_t end, float* tile) {
  const F32 f;
  const int64_t n = end - begin;
  for (int64_t row = begin; row < end; row += 16) {
    const int64_t left = std::min<int64_t>(16, end - row);
    VF scale[kParts];
    WalkStrip<kBits>(
        w, row / 16,
        [&](int64_t at) VQLLM_ATTR {
          for (int p = 0; p < kParts; ++p) scale[p] = LoadHalves(w.scales + at + p * kLanes);
        },
        [&](int64_t c, int p, VF values) VQLLM_ATTR {
          float* out = tile + c * n + row - begin + p * kLanes;
          const VF scaled = hn::Mul(values, scale[p]);
          if (p * kLanes + kLanes <= left) {
            hn::StoreU(scaled, f, out);
          } else {
            HWY_ALIGN float lanes[kLanes];
            hn::Store(scaled, f, lanes);
            for (int64_t i = 0; i < left - p * kLanes; ++i) out[i] = lanes[i];
          }
        },
        [](int64_t) {});
  }
}

void QuantizeRow(const float* x, const Blocks& blocks, int64_t begin, int64_t end, uint8_t* operand) {
  const F32 f;
  const int64_t tail = blocks.count() * blocks.padded;
  HWY_ALIGN float padded[128 + kLanes];
  for (int64_t b = begin; b < end; ++b) {
    const int64_t n = blocks.End(b) - blocks.Begin(b);
    std::copy_n(x + blocks.Begin(b), n, padded);
    std::fill(padded + n, padded + blocks.padded, 0.0f);
    const Rounding rounding = RoundingFor(FiniteMax(padded, blocks.padded), 127.0f);
    int8_t* out = reinterpret_cast<int8_t*>(operand) + b * blocks.padded;
    VI sum = hn::Zero(I32());
    for (int64_t i = 0; i < blocks.padded; i += kLanes) {
      // What is not finite has factor 0; its NaN goes with the scale.
      const VF scaled = hn::Mul(hn::Load(f, padded + i), hn::Set(f, rounding.to));
      const VI rounded = rounding.to == 0.0f ? hn::Zero(I32()) : hn::NearestInt(scaled);
      sum = hn::Add(sum, rounded);
      const hn::Rebind<int8_t, F32> i8;
      hn::StoreU(hn::DemoteTo(i8, rounded), i8, out + i);
    }
    const int32_t total = hn::GetLane(hn::SumOfLanes(I32(), sum));
    std::memcpy(operand + tail + 8 * b, &rounding.from, 4);
    std::memcpy(operand + tail + 8 * b + 4, &total, 4);
  }
}

#define VQLLM_BY_BITS(function, ...)   \
  switch (w.bits) {                    \
    case 2:                            \
      return function<2>(__VA_ARGS__); \
    case 3:                            \
      return function<3>(__VA_ARGS__); \
    case 4:                            \
      return function<4>(__VA_ARGS__); \
    default:                           \
      return function<8>(__VA_ARGS__); \
  }

void RunProduct(const IntView& w, const uint8_t* operand, int64_t begin, int64_t end, MatrixView<float> y) {
  VQLLM_BY_BITS(Product, w, operand, begin, end, y)
}
void RunProductExact(const IntView& w, MatrixView<const float> x, int64_t begin, int64_t end,
                     MatrixView<float> y) {
  VQLLM_BY_BITS(ProductExact, w, x, begin, end, y)
}
void RunDecode(const IntView& w, int64_t begin, int64_t end, float* tile) {
  VQLLM_BY_BITS(Decode, w, begin, end, tile)
}
#undef VQLLM_BY_BITS

#else  // HWY_SCALAR: HaveVectors() is false and nothing calls these.

void RunProduct(const IntView&, const uint8_t*, int64_t, int64_t, MatrixView<float>) { VQLLM_CHECK(false); }
void RunProductExact(const IntView&, MatrixView<const float>, int64_t, int64_t, MatrixView<float>) {
  VQLLM_CHECK(false);
}
void RunDecode(const IntView&, int64_t, int64_t, float*) { VQLLM_CHECK(false); }
void QuantizeRow(const float*, const Blocks&, int64_t, int64_t, uint8_t*) { VQLLM_CHECK(false); }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
VQLLM_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {

HWY_EXPORT(RunProduct);
HWY_EXPORT(RunProductExact);
HWY_EXPORT(RunDecode);
HWY_EXPORT(QuantizeRow);

void QuantizeActivations(const float* x, const Blocks& blocks, int64_t begin, int64_t end, uint8_t* operand) {
  HWY_DYNAMIC_DISPATCH(QuantizeRow)(x, blocks, begin, end, operand);
}
void IntProduct(const IntView& w, const uint8_t* operand, int64_t begin, int64_t end, MatrixView<float> y) {
  HWY_DYNAMIC_DISPATCH(RunProduct)(w, operand, begin, end, y);
}
void IntProductExact(const IntView& w, MatrixView<const float> x, int64_t begin, int64_t end,
                     MatrixView<float> y) {
  HWY_DYNAMIC_DISPATCH(RunProductExact)(w, x, begin, end, y);
}
void IntDecode(const IntView& w, int64_t begin, int64_t end, float* tile) {
  HWY_DYNAMIC_DISPATCH(RunDecode)(w, begin, end, tile);
}

}  // namespace vqllm::cpu
#endif
