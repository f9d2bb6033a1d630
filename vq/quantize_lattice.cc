#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "vq/base/parallel.h"
#include "vq/lattice.h"
#include "vq/quantize_methods.h"

namespace vqllm::internal {
namespace {

// Second stage of the 4-bit code: its lattice is 1/3.45 as wide (QuIP#, E8P12RVQ4B).
constexpr float kSecondStage = 1 / 3.45f;

/// Eight weights from column 8 s on, zeros behind the last column.
e8p::Vector Load(MatrixView<const float> w, int64_t r, int64_t s) {
  e8p::Vector x{};
  std::copy_n(w.Row(r) + 8 * s, std::min<int64_t>(8, w.cols - 8 * s), x.begin());
  return x;
}

/// Encodes x / scale stage by stage; returns what is left over, times scale, squared.
double EncodeStages(e8p::Vector x, float scale, const std::vector<float>& stage_scales, uint16_t* codes) {
  for (float& value : x) value = scale > 0 ? value / scale : 0;
  for (size_t stage = 0; stage < stage_scales.size(); ++stage) {
    const float factor = stage_scales[stage];
    e8p::Vector scaled;
    for (size_t i = 0; i < 8; ++i) scaled[i] = x[i] / factor;
    codes[stage] = e8p::Encode(scaled.data());
    const e8p::Vector point = e8p::Decode(codes[stage]);
    for (size_t i = 0; i < 8; ++i) x[i] -= factor * point[i];
  }
  double error = 0;
  for (const float value : x) error += static_cast<double>(value) * value;
  return error * scale * scale;
}

/// The scale of least error on a sample, among multiples of the one that suits a Gaussian of this deviation.
/// Rotation makes large matrices Gaussian; small or block-diagonal ones it does not.
float BestScale(MatrixView<const float> w, float deviation, const std::vector<float>& stage_scales) {
  constexpr std::array<float, 13> kFactors = {0.70f,  0.78f, 0.85f, 0.90f, 0.95f, 0.975f, 1.0f,
                                              1.025f, 1.05f, 1.1f,  1.2f,  1.35f, 1.5f};
  constexpr int64_t kSample = 2048;
  const int64_t width = (w.cols + 7) / 8;
  const int64_t n = std::min(kSample, w.rows * width);
  std::array<double, kFactors.size()> errors{};
  ParallelFor(static_cast<int64_t>(kFactors.size()), 1, [&](int64_t f, int64_t) {
    std::array<uint16_t, 2> codes;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = static_cast<int64_t>(static_cast<double>(w.rows * width) *
                                              (static_cast<double>(i) + 0.5) / static_cast<double>(n));
      errors[static_cast<size_t>(f)] += EncodeStages(
          Load(w, at / width, at % width), deviation * e8p::kScale * kFactors[static_cast<size_t>(f)],
          stage_scales, codes.data());
    }
  });
  const size_t best = static_cast<size_t>(std::min_element(errors.begin(), errors.end()) - errors.begin());
  return deviation * e8p::kScale * kFactors[best];
}

}  // namespace

Tensor QuantizeLattice(const Format& f, MatrixView<const float> w, const std::string& what,
                       QuantizeReport& report) {
  Tensor t;
  t.format = f;
  t.rows = w.rows;
  t.cols = w.cols;
  t.stage_scales.push_back(1);
  if (f.stages() == 2) t.stage_scales.push_back(kSecondStage);
  double squares = 0;
  for (int64_t r = 0; r < w.rows; ++r) {
    for (const float value : w.RowSpan(r)) squares += static_cast<double>(value) * value;
  }
  const float deviation = static_cast<float>(std::sqrt(squares / static_cast<double>(w.rows * w.cols)));
  t.scales = {ScaleToHalf(BestScale(w, deviation, t.stage_scales), what)};
  const float scale = t.scales[0];
  report.zero_groups = scale == 0 ? 1 : 0;

  const int64_t width = Subvectors(f, t.cols);
  const size_t stages = t.stage_scales.size();
  for (size_t stage = 0; stage < stages; ++stage) t.codes.emplace_back(t.rows, width, 16);
  ParallelFor(t.rows, 8, [&](int64_t begin, int64_t end) {
    std::vector<std::vector<uint16_t>> codes(stages, std::vector<uint16_t>(static_cast<size_t>(width)));
    std::array<uint16_t, 2> found;
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t s = 0; s < width; ++s) {
        EncodeStages(Load(w, r, s), scale, t.stage_scales, found.data());
        for (size_t stage = 0; stage < stages; ++stage) codes[stage][static_cast<size_t>(s)] = found[stage];
      }
      for (size_t stage = 0; stage < stages; ++stage) t.codes[stage].PackRow(r, codes[stage].data());
    }
  });
  return t;
}

}  // namespace vqllm::internal
