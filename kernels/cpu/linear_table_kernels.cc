#include "kernels/cpu/linear_table_kernels.h"

#include <algorithm>

#include "vq/base/check.h"

#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_table_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "kernels/cpu/linear_table-inl.h"

VQLLM_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

/// Rows [kFirst, kFirst + kRows) of a strip times kM operand rows. sums [kM][kRows][kWidth]; the lanes are
/// not added yet.
template <TableKind kKind, int kWidth, int kFirst, int kRows, int kM>
HWY_NOINLINE void StripProduct(const TableView& w, const uint8_t* operand, int64_t stride, int64_t strip,
                               float* sums) {
  using E = Entry<kWidth>;
  using V = typename E::V;
  constexpr int kV = E::kVectors;
  constexpr int64_t kCodeBytes = kKind == TableKind::kCode8 ? 1 : 2;
  const typename E::D d;
  std::fill(sums, sums + kM * kRows * kWidth, 0.0f);
  const uint8_t* codes = w.codes + strip * w.positions * w.stages * 8 * kCodeBytes;
  const int64_t tile_book = strip / w.tile_strips * w.tile_books;
  const int64_t groups = w.groups();
  for (int64_t g = 0; g < groups; ++g) {
    V acc[kRows * kV][kM];
    Unrolled<kRows * kV>([&](auto i) VQLLM_INLINE_LAMBDA {
      Unrolled<kM>([&](auto t) VQLLM_INLINE_LAMBDA { acc[i][t] = hn::Zero(d); });
    });
    const int64_t end = std::min(w.positions, (g + 1) * w.group_positions);
    for (int64_t p = g * w.group_positions; p < end; ++p) {
      V x[kV][kM];
      Unrolled<kM>([&](auto t) VQLLM_INLINE_LAMBDA {
        const float* from = reinterpret_cast<const float*>(operand + t * stride) + p * kWidth;
        Unrolled<kV>([&](auto v) VQLLM_INLINE_LAMBDA { x[v][t] = hn::LoadU(d, from + v * E::kStep); });
      });
      for (int64_t stage = 0; stage < w.stages; ++stage) {
        const Decoder<kKind, kWidth> decoder(w, stage, tile_book + w.book_of[p]);
        uint64_t words[kCodeBytes];
        std::memcpy(words, codes + (p * w.stages + stage) * 8 * kCodeBytes, sizeof(words));
        Unrolled<kRows * kV>([&](auto i) VQLLM_INLINE_LAMBDA {
          const V value = decoder.Get(words, kFirst + i / kV, i % kV);
          Unrolled<kM>([&](auto t)
                           VQLLM_INLINE_LAMBDA { acc[i][t] = hn::MulAdd(value, x[i % kV][t], acc[i][t]); });
        });
      }
    }
    const float* scales = w.scales + ((strip * groups + g) * 8 + kFirst) * (w.out ? kWidth : 1);
    Unrolled<kRows * kV>([&](auto i) VQLLM_INLINE_LAMBDA {
      const V scale = w.out ? hn::LoadU(d, scales + i * E::kStep) : hn::Set(d, scales[i / kV]);
      Unrolled<kM>([&](auto t) VQLLM_INLINE_LAMBDA {
        float* sum = sums + t * kRows * kWidth + i * E::kStep;
        hn::StoreU(hn::MulAdd(scale, acc[i][t], hn::LoadU(d, sum)), d, sum);
      });
    });
  }
}

template <TableKind kKind, int kWidth, int kFirst, int kRows, int kM>
HWY_INLINE void Part(const TableView& w, const uint8_t* operand, int64_t stride, int64_t strip, int64_t token,
                     MatrixView<float> y) {
  const typename Entry<kWidth>::D d;
  HWY_ALIGN float sums[kM * kRows * kWidth];
  StripProduct<kKind, kWidth, kFirst, kRows, kM>(w, operand + token * stride, stride, strip, sums);
  for (int t = 0; t < kM; ++t) {
    for (int r = 0; r < kRows && strip * 8 + kFirst + r < w.code_rows; ++r) {
      const float* sum = sums + (t * kRows + r) * kWidth;
      const int64_t row = strip * 8 + kFirst + r;
      if (w.out) {
        const int64_t n = std::min(w.subvector, y.cols - row * w.subvector);
        std::copy_n(sum, n, y.Row(token + t) + row * w.subvector);
      } else {
        auto total = hn::LoadU(d, sum);
        for (int v = 1; v < Entry<kWidth>::kVectors; ++v)
          total = hn::Add(total, hn::LoadU(d, sum + v * Entry<kWidth>::kStep));
        y(token + t, row) = hn::GetLane(hn::SumOfLanes(d, total));
      }
    }
  }
}

/// Sums that fit the registers: 8 rows for one row of x; for two, 8 where there are 32 registers.
template <TableKind kKind, int kWidth>
void Product(const TableView& w, const uint8_t* operand, int64_t begin, int64_t end, MatrixView<float> y) {
  const int64_t stride = w.positions * kWidth * 4;
  constexpr bool kHalves = Entry<kWidth>::kVectors > 1;
  for (int64_t strip = begin / 8; strip * 8 < end; ++strip) {
    int64_t token = 0;
    for (; token + 2 <= y.rows; token += 2) {
      if constexpr (kLanes == 16 && !kHalves) {
        Part<kKind, kWidth, 0, 8, 2>(w, operand, stride, strip, token, y);
      } else {
        Part<kKind, kWidth, 0, 4, 2>(w, operand, stride, strip, token, y);
        Part<kKind, kWidth, 4, 4, 2>(w, operand, stride, strip, token, y);
      }
    }
    if (token == y.rows) continue;
    if constexpr (kHalves) {
      Part<kKind, kWidth, 0, 4, 1>(w, operand, stride, strip, token, y);
      Part<kKind, kWidth, 4, 4, 1>(w, operand, stride, strip, token, y);
    } else {
      Part<kKind, kWidth, 0, 8, 1>(w, operand, stride, strip, token, y);
    }
  }
}

void AnyProduct(const TableView& w, const uint8_t* operand, int64_t begin, int64_t end, MatrixView<float> y) {
  ByKindAndWidth(w,
                 [&]<TableKind kKind, int kWidth>() { Product<kKind, kWidth>(w, operand, begin, end, y); });
}

#else  // HWY_SCALAR: HaveVectors() is false and nothing calls these.

void AnyProduct(const TableView&, const uint8_t*, int64_t, int64_t, MatrixView<float>) { VQLLM_CHECK(false); }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
VQLLM_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {

HWY_EXPORT(AnyProduct);

void TableProduct(const TableView& w, const uint8_t* operand, int64_t begin, int64_t end,
                  MatrixView<float> y) {
  HWY_DYNAMIC_DISPATCH(AnyProduct)(w, operand, begin, end, y);
}

void PadActivations(const TableView& w, const float* x, int64_t begin, int64_t end, uint8_t* operand) {
  float* out = reinterpret_cast<float*>(operand) + begin * w.width;
  for (int64_t p = begin; p < end; ++p, out += w.width) {
    if (w.out) {
      std::fill(out, out + w.width, x[p]);
    } else {
      const int64_t n = std::min(w.subvector, w.cols - p * w.subvector);
      std::copy_n(x + p * w.subvector, n, out);
      std::fill(out + n, out + w.width, 0.0f);
    }
  }
}

}  // namespace vqllm::cpu
#endif
