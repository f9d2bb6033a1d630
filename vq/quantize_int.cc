#include <algorithm>
#include <atomic>
#include <cmath>

#include "vq/base/parallel.h"
#include "vq/quantize_methods.h"

namespace vqllm::internal {
namespace {

/// Scale and zero point of one group, and its codes: round to nearest.
struct IntGroup {
  Half scale;
  uint8_t zero;
};

IntGroup FitGroup(const Format& f, const float* w, int64_t n, const std::string& what) {
  const float levels = static_cast<float>((1 << f.bits) - 1);
  float low = 0;  // the range always holds 0, so that 0 is exact
  float high = 0;
  for (int64_t i = 0; i < n; ++i) {
    low = std::min(low, w[i]);
    high = std::max(high, w[i]);
  }
  if (f.symmetric) {
    const int zero = 1 << (f.bits - 1);
    const float largest = std::max(-low, high);
    return {ScaleToHalf(largest / static_cast<float>(zero - 1), what), static_cast<uint8_t>(zero)};
  }
  // Half of the difference: the range of two finite floats may overflow.
  const Half scale = ScaleToHalf((high / 2 - low / 2) / levels * 2, what);
  if (scale == 0.0f) return {scale, 0};
  const float zero = std::clamp(std::nearbyint(-low / static_cast<float>(scale)), 0.0f, levels);
  return {scale, static_cast<uint8_t>(zero)};
}

void EncodeGroup(const Format& f, const float* w, int64_t n, const IntGroup& group, uint16_t* codes) {
  const float levels = static_cast<float>((1 << f.bits) - 1);
  const float scale = group.scale;
  for (int64_t i = 0; i < n; ++i) {
    const float steps = scale > 0 ? std::nearbyint(w[i] / scale) : 0.0f;
    codes[i] = static_cast<uint16_t>(std::clamp(steps + static_cast<float>(group.zero), 0.0f, levels));
  }
}

}  // namespace

Tensor QuantizeInt(const Format& f, MatrixView<const float> w, const std::string& what,
                   QuantizeReport& report) {
  Tensor t;
  t.format = f;
  t.rows = w.rows;
  t.cols = w.cols;
  t.codes.emplace_back(w.rows, w.cols, f.bits);
  const int64_t groups = ScaleGroups(f, w.cols);
  const int64_t width = f.scale == ScaleKind::kGroup ? f.group : w.cols;
  t.scales.resize(static_cast<size_t>(w.rows * groups));
  if (!f.symmetric) t.zeros.resize(t.scales.size());
  std::atomic<int64_t> zero_groups{0};
  ParallelFor(w.rows, 16, [&](int64_t first, int64_t last) {
    std::vector<uint16_t> codes(static_cast<size_t>(w.cols));
    for (int64_t r = first; r < last; ++r) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t begin = g * width;
        const int64_t n = std::min(width, w.cols - begin);
        const IntGroup group = FitGroup(f, w.Row(r) + begin, n, what);
        EncodeGroup(f, w.Row(r) + begin, n, group, codes.data() + begin);
        const size_t at = static_cast<size_t>(r * groups + g);
        t.scales[at] = group.scale;
        if (!f.symmetric) t.zeros[at] = group.zero;
        zero_groups += group.scale == 0.0f;
      }
      t.codes[0].PackRow(r, codes.data());
    }
  });
  report.zero_groups = zero_groups;
  return t;
}

}  // namespace vqllm::internal
