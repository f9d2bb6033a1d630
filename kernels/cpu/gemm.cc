#include "kernels/cpu/gemm.h"

#include <algorithm>

#include "kernels/cpu/aligned.h"
#include "vq/base/math.h"
#include "vq/base/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF = hn::Vec<F32>;

inline constexpr int kLanes = static_cast<int>(HWY_LANES(float));
// The register tile: kVectors vectors of tokens times kRows rows of W. 24 sums, 3 vectors of x and a
// broadcast fit the 32 registers of AVX-512 and NEON, 12 sums the 16 of AVX2.
inline constexpr int kVectors = 3;
#if HWY_TARGET == HWY_AVX2
inline constexpr int kRows = 4;
#else
inline constexpr int kRows = 8;
#endif
inline constexpr int kPanel = kVectors * kLanes;
// Columns worked on before the next rows: kRows of W stay in L1, a panel of x in L2.
inline constexpr int64_t kDepth = 512;

/// Tokens that a panel of `tokens` takes in memory.
inline int64_t Width(int64_t tokens) { return std::min<int64_t>(RoundUp(tokens, kLanes), kPanel); }

/// sums [kR][kPanel] += kV vectors of tokens times kR rows of W over `depth` columns.
template <int kV, int kR>
HWY_INLINE void Block(const float* x, const float* w, const WeightTile& tile, int64_t depth, float* sums) {
  const F32 f;
  VF sum[kR][kV];
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kV; ++v) sum[r][v] = hn::Load(f, sums + r * kPanel + v * kLanes);
  }
  for (int64_t c = 0; c < depth; ++c) {
    VF xs[kV];
    for (int v = 0; v < kV; ++v) xs[v] = hn::LoadU(f, x + v * kLanes);
    for (int r = 0; r < kR; ++r) {
      const VF ws = hn::Set(f, w[r * tile.row_stride]);
      for (int v = 0; v < kV; ++v) sum[r][v] = hn::MulAdd(ws, xs[v], sum[r][v]);
    }
    x += kV * kLanes;
    w += tile.col_stride;
  }
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kV; ++v) hn::Store(sum[r][v], f, sums + r * kPanel + v * kLanes);
  }
}

template <int kV>
void Panel(const float* x, int64_t k, const WeightTile& tile, float* sums) {
  std::fill_n(sums, tile.rows * kPanel, 0.0f);
  for (int64_t c = 0; c < k; c += kDepth) {
    const int64_t depth = std::min(kDepth, k - c);
    const float* xs = x + c * kV * kLanes;
    const float* w = tile.data + c * tile.col_stride;
    int64_t r = 0;
    for (; r + kRows <= tile.rows; r += kRows)
      Block<kV, kRows>(xs, w + r * tile.row_stride, tile, depth, sums + r * kPanel);
    for (; r < tile.rows; ++r) Block<kV, 1>(xs, w + r * tile.row_stride, tile, depth, sums + r * kPanel);
  }
}

int64_t PackedTokens(int64_t m) { return RoundUp(m, kLanes); }

void PackPanel(MatrixView<const float> x, int64_t panel, float* packed) {
  const int64_t begin = panel * kPanel;
  const int64_t tokens = std::min<int64_t>(kPanel, x.rows - begin);
  const int64_t width = Width(tokens);
  float* out = packed + begin * x.cols;
  constexpr int64_t kColumns = 16;  // a cache line of each token
  for (int64_t c = 0; c < x.cols; c += kColumns) {
    const int64_t end = std::min(c + kColumns, x.cols);
    for (int64_t t = 0; t < width; ++t) {
      const float* row = t < tokens ? x.Row(begin + t) : nullptr;
      for (int64_t j = c; j < end; ++j) out[j * width + t] = row == nullptr ? 0.0f : row[j];
    }
  }
}

int64_t Panels(int64_t m) { return CeilDiv(m, kPanel); }

void MultiplyPanel(const float* packed, int64_t panel, int64_t k, const WeightTile& tile, float* sums,
                   MatrixView<float> y) {
  const int64_t begin = panel * kPanel;
  const int64_t tokens = std::min<int64_t>(kPanel, y.rows - begin);
  const float* x = packed + begin * k;
  switch (Width(tokens) / kLanes) {
    case 1:
      Panel<1>(x, k, tile, sums);
      break;
    case 2:
      Panel<2>(x, k, tile, sums);
      break;
    default:
      Panel<3>(x, k, tile, sums);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    float* out = y.Row(begin + t);
    for (int64_t r = 0; r < tile.rows; ++r) out[r] = sums[r * kPanel + t];
  }
}

int64_t PanelTokens() { return kPanel; }

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {
namespace {

HWY_EXPORT(PackedTokens);
HWY_EXPORT(PackPanel);
HWY_EXPORT(Panels);
HWY_EXPORT(PanelTokens);
HWY_EXPORT(MultiplyPanel);

}  // namespace

int64_t PackedSize(int64_t m, int64_t k) { return HWY_DYNAMIC_DISPATCH(PackedTokens)(m) * k; }

void PackTokens(MatrixView<const float> x, float* packed) {
  ParallelFor(HWY_DYNAMIC_DISPATCH(Panels)(x.rows), 1, [&](int64_t panel, int64_t) {
    HWY_DYNAMIC_DISPATCH(PackPanel)(x, panel, packed);
  });
}

void MultiplyTile(const float* packed, int64_t k, const WeightTile& tile, MatrixView<float> y) {
  static thread_local AlignedVector<float> sums;
  const size_t wanted = static_cast<size_t>(tile.rows * HWY_DYNAMIC_DISPATCH(PanelTokens)());
  if (sums.size() < wanted) sums.resize(wanted);
  const int64_t panels = HWY_DYNAMIC_DISPATCH(Panels)(y.rows);
  for (int64_t panel = 0; panel < panels; ++panel)
    HWY_DYNAMIC_DISPATCH(MultiplyPanel)(packed, panel, k, tile, sums.data(), y);
}

}  // namespace vqllm::cpu
#endif
