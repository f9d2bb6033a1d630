#include <algorithm>

#include "kernels/cpu/linear_table_kernels.h"
#include "vq/base/check.h"

#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_table_tile.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "kernels/cpu/linear_table-inl.h"

VQLLM_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

/// All positions of the rows [first, last) of codes, which lie in one strip. Subvectors are written whole,
/// and what lies past `subvector` is written over by the next one; `line` is where that must stop.
template <TableKind kKind, int kWidth>
void DecodeStrip(const TableView& w, int64_t first, int64_t last, int64_t begin, int64_t end, float* tile) {
  using E = Entry<kWidth>;
  using V = typename E::V;
  constexpr int kV = E::kVectors;
  constexpr int64_t kCodeBytes = kKind == TableKind::kCode8 ? 1 : 2;
  const typename E::D d;
  const int64_t strip = first / kTableStrip;
  const uint8_t* codes = w.codes + strip * w.positions * w.stages * 8 * kCodeBytes;
  const int64_t tile_book = strip / w.tile_strips * w.tile_books;
  const int64_t line = w.out ? end - begin : w.cols;
  for (int64_t p = 0; p < w.positions; ++p) {
    const float* scales = w.scales + (strip * w.groups() + p / w.group_positions) * 8 * (w.out ? kWidth : 1);
    for (int64_t row = first; row < last; ++row) {
      const int r = static_cast<int>(row % kTableStrip);
      V sum[kV];
      for (int v = 0; v < kV; ++v) sum[v] = hn::Zero(d);
      for (int64_t stage = 0; stage < w.stages; ++stage) {
        const Decoder<kKind, kWidth> decoder(w, stage, tile_book + w.book_of[p]);
        uint64_t words[kCodeBytes];
        std::memcpy(words, codes + (p * w.stages + stage) * 8 * kCodeBytes, sizeof(words));
        for (int v = 0; v < kV; ++v) sum[v] = hn::Add(sum[v], decoder.Get(words, r, v));
      }
      const int64_t at = w.out ? row * w.subvector - begin : p * w.subvector;
      float* out = tile + (w.out ? p : row - begin) * line + at;
      HWY_ALIGN float values[kWidth];
      const bool whole = at + kWidth <= line;
      float* to = whole ? out : values;
      for (int v = 0; v < kV; ++v) {
        const V scale = w.out ? hn::LoadU(d, scales + r * kWidth + v * E::kStep) : hn::Set(d, scales[r]);
        hn::StoreU(hn::Mul(sum[v], scale), d, to + v * E::kStep);
      }
      if (!whole) std::copy_n(values, std::min(w.subvector, line - at), out);
    }
  }
}

void DecodeAny(const TableView& w, int64_t begin, int64_t end, float* tile) {
  const int64_t per = w.out ? w.subvector : 1;
  const int64_t last = CeilDiv(end, per);
  ByKindAndWidth(w, [&]<TableKind kKind, int kWidth>() {
    for (int64_t row = begin / per; row < last;) {
      const int64_t strip_end = std::min(last, RoundUp(row + 1, kTableStrip));
      DecodeStrip<kKind, kWidth>(w, row, strip_end, begin, end, tile);
      row = strip_end;
    }
  });
}

#else  // HWY_SCALAR: HaveVectors() is false and nothing calls these.

void DecodeAny(const TableView&, int64_t, int64_t, float*) { VQLLM_CHECK(false); }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
VQLLM_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {

HWY_EXPORT(DecodeAny);

void TableDecode(const TableView& w, int64_t begin, int64_t end, float* tile) {
  HWY_DYNAMIC_DISPATCH(DecodeAny)(w, begin, end, tile);
}

}  // namespace vqllm::cpu
#endif
