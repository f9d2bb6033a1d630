#include "kernels/cpu/linear_shuffle_kernels.h"

#include <algorithm>

#include "vq/base/check.h"

#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_shuffle_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "kernels/cpu/linear-inl.h"

VQLLM_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

/// sums[0..2 kLanes) += scale_w * scale_x * (total - offset) for the 16-bit totals of 2 kLanes rows.
HWY_INLINE void Flush(hn::Vec<U16> total, int32_t offset, float x_scale, const uint16_t* scales,
                      float* sums) {
  const F32 f;
  const hn::Half<U16> half;
  const VI lower = hn::BitCast(I32(), hn::PromoteTo(U32(), hn::LowerHalf(half, total)));
  const VI upper = hn::BitCast(I32(), hn::PromoteTo(U32(), hn::UpperHalf(half, total)));
  const VI zero = hn::Set(I32(), offset);
  const VF xs = hn::Set(f, x_scale);
  const VF low = hn::ConvertTo(f, hn::Sub(lower, zero));
  const VF high = hn::ConvertTo(f, hn::Sub(upper, zero));
  hn::StoreU(hn::MulAdd(hn::Mul(LoadHalves(scales), xs), low, hn::LoadU(f, sums)), f, sums);
  scales += kLanes;
  sums += kLanes;
  hn::StoreU(hn::MulAdd(hn::Mul(LoadHalves(scales), xs), high, hn::LoadU(f, sums)), f, sums);
}

/// A strip of 64 rows times kM operand rows; sums [kM][64].
template <int kM>
HWY_NOINLINE void StripProduct(const ShuffleView& w, const uint8_t* operand, int64_t stride, int64_t strip,
                               float* sums) {
  constexpr int kVectors = 64 / kBytes;
  const U8 u8;
  const U16 u16;
  const int64_t count = w.blocks->count();
  const int64_t per_group = w.blocks->per_group();
  const int64_t groups = w.blocks->groups();
  const int64_t pairs = w.lookups / 2;
  const int32_t offset = static_cast<int32_t>(128 * w.lookups);
  const VU8 mask = hn::Set(u8, 15);
  std::fill(sums, sums + kM * 64, 0.0f);
  int64_t group = 0;
  int64_t in_group = 0;
  for (int64_t b = 0; b < count; ++b) {
    for (int v = 0; v < kVectors; ++v) {
      const uint8_t* codes = w.codes + (strip * count + b) * pairs * 64 + v * kBytes;
      const uint8_t* tables = operand + b * w.lookups * 16;
      // even: sums of whole 16-bit lanes, whose low bytes are the even rows; odd: of their high bytes.
      hn::Vec<U16> even[kM];
      hn::Vec<U16> odd[kM];
      for (int t = 0; t < kM; ++t) even[t] = odd[t] = hn::Zero(u16);
      for (int64_t p = 0; p < pairs; ++p) {
        const VU8 both = hn::LoadU(u8, codes + p * 64);
        const VU8 first = hn::And(both, mask);
        const VU8 second = ShiftAnd<4>(both, mask);
        for (int t = 0; t < kM; ++t) {
          const uint8_t* table = tables + t * stride + p * 32;
          const auto a = hn::BitCast(u16, hn::TableLookupBytes(hn::LoadDup128(u8, table), first));
          const auto c = hn::BitCast(u16, hn::TableLookupBytes(hn::LoadDup128(u8, table + 16), second));
          even[t] = hn::Add(even[t], hn::Add(a, c));
          odd[t] = hn::Add(odd[t], hn::Add(hn::ShiftRight<8>(a), hn::ShiftRight<8>(c)));
        }
      }
      const uint16_t* scales = w.scales + (strip * groups + group) * 64 + v * kBytes / 2;
      for (int t = 0; t < kM; ++t) {
        float x_scale;
        std::memcpy(&x_scale, operand + t * stride + count * w.lookups * 16 + 4 * b, 4);
        float* out = sums + t * 64 + v * kBytes / 2;
        // What the high bytes added to the 16-bit lanes goes again, modulo 2^16.
        Flush(hn::Sub(even[t], hn::ShiftLeft<8>(odd[t])), offset, x_scale, scales, out);
        Flush(odd[t], offset, x_scale, scales + 32, out + 32);
      }
    }
    if (++in_group == per_group) {
      in_group = 0;
      ++group;
    }
  }
}

template <int kM>
HWY_INLINE int64_t Tokens(const ShuffleView& w, const uint8_t* operand, int64_t begin, int64_t end,
                          int64_t token, MatrixView<float> y) {
  const int64_t stride = ShuffleOperandBytes(w);
  HWY_ALIGN float sums[kM * 64];
  for (; token + kM <= y.rows; token += kM) {
    StripProduct<kM>(w, operand + token * stride, stride, begin / 64, sums);
    for (int t = 0; t < kM; ++t)
      std::copy_n(sums + t * 64, std::min<int64_t>(64, end - begin), y.Row(token + t) + begin);
  }
  return token;
}

void Product(const ShuffleView& w, const uint8_t* operand, int64_t begin, int64_t end, MatrixView<float> y) {
  for (int64_t row = begin; row < end; row += 64) {
    int64_t token = 0;
    if constexpr (kLanes == 16) token = Tokens<8>(w, operand, row, end, token, y);
    token = Tokens<4>(w, operand, row, end, token, y);
    token = Tokens<2>(w, operand, row, end, token, y);
    Tokens<1>(w, operand, row, end, token, y);
  }
}

void Tables(const ShuffleView& w, const float* x, int64_t begin, int64_t end, uint8_t* operand) {
  const F32 f;
  const hn::Rebind<uint8_t, F32> u8;
  const Blocks& blocks = *w.blocks;
  HWY_ALIGN float products[kMaxLookups * 16];
  for (int64_t b = begin; b < end; ++b) {
    int64_t lookup = 0;
    for (int64_t c = blocks.Begin(b); c < blocks.End(b); c += w.subvector) {
      const float* book = w.books + w.book_of[c / w.subvector] * w.stages * w.subvector * 16;
      const int64_t n = std::min(w.subvector, blocks.End(b) - c);
      for (int64_t stage = 0; stage < w.stages; ++stage, ++lookup, book += w.subvector * 16) {
        for (int part = 0; part < kParts; ++part) {
          VF sum = hn::Mul(hn::Set(f, x[c]), hn::LoadU(f, book + part * kLanes));
          for (int64_t i = 1; i < n; ++i)
            sum = hn::MulAdd(hn::Set(f, x[c + i]), hn::LoadU(f, book + 16 * i + part * kLanes), sum);
          hn::StoreU(sum, f, products + 16 * lookup + part * kLanes);
        }
      }
    }
    std::fill(products + 16 * lookup, products + 16 * w.lookups, 0.0f);
    const Rounding rounding = RoundingFor(FiniteMax(products, 16 * w.lookups), 127.0f);
    uint8_t* out = operand + b * w.lookups * 16;
    const VI zero = hn::Set(I32(), 128);
    for (int64_t i = 0; i < 16 * w.lookups; i += kLanes) {
      // What is not finite has factor 0; its NaN goes with the scale.
      const VF scaled = hn::Mul(hn::Load(f, products + i), hn::Set(f, rounding.to));
      const VI rounded = rounding.to == 0.0f ? zero : hn::Add(hn::NearestInt(scaled), zero);
      hn::StoreU(hn::DemoteTo(u8, rounded), u8, out + i);
    }
    std::memcpy(operand + blocks.count() * w.lookups * 16 + 4 * b, &rounding.from, 4);
  }
}

#else  // HWY_SCALAR: HaveVectors() is false and nothing calls these.

void Product(const ShuffleView&, const uint8_t*, int64_t, int64_t, MatrixView<float>) { VQLLM_CHECK(false); }
void Tables(const ShuffleView&, const float*, int64_t, int64_t, uint8_t*) { VQLLM_CHECK(false); }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
VQLLM_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {

HWY_EXPORT(Tables);
HWY_EXPORT(Product);

void ShuffleTables(const ShuffleView& w, const float* x, int64_t begin, int64_t end, uint8_t* operand) {
  HWY_DYNAMIC_DISPATCH(Tables)(w, x, begin, end, operand);
}
void ShuffleProduct(const ShuffleView& w, const uint8_t* operand, int64_t begin, int64_t end,
                    MatrixView<float> y) {
  HWY_DYNAMIC_DISPATCH(Product)(w, operand, begin, end, y);
}

}  // namespace vqllm::cpu
#endif
