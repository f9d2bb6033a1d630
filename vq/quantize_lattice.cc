#include <cmath>
#include <vector>

#include "vq/base/parallel.h"
#include "vq/base/rng.h"
#include "vq/hadamard.h"
#include "vq/lattice.h"
#include "vq/quantize_methods.h"

namespace vqllm::internal {
namespace {

// Second stage of the 4-bit code: its lattice is 1/3.45 as wide (QuIP#, E8P12RVQ4B).
constexpr float kSecondStage = 1 / 3.45f;

std::vector<Half> RandomSigns(int64_t n, Rng& rng) {
  std::vector<Half> signs;
  for (int64_t i = 0; i < n; ++i) signs.emplace_back(rng.Next() >> 63 ? -1.0f : 1.0f);
  return signs;
}

/// W := H_out S_out W S_in H_in^T, in place.
void Rotate(std::vector<float>& w, int64_t rows, int64_t cols, const Tensor& t) {
  const Hadamard in(cols);
  const Hadamard out(rows);
  ParallelFor(rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = w.data() + r * cols;
      for (int64_t c = 0; c < cols; ++c)
        row[c] *= t.sign_in[static_cast<size_t>(c)] * t.sign_out[static_cast<size_t>(r)];
      in.Apply(row);
    }
  });
  ParallelFor(cols, 64, [&](int64_t begin, int64_t end) {
    std::vector<float> column(static_cast<size_t>(rows));
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t r = 0; r < rows; ++r)
        column[static_cast<size_t>(r)] = w[static_cast<size_t>(r * cols + c)];
      out.Apply(column.data());
      for (int64_t r = 0; r < rows; ++r)
        w[static_cast<size_t>(r * cols + c)] = column[static_cast<size_t>(r)];
    }
  });
}

}  // namespace

Tensor QuantizeLattice(const Format& f, MatrixView<const float> weights, const QuantizeOptions& options,
                       const std::string& what, QuantizeReport& report) {
  Tensor t;
  t.format = f;
  t.rows = weights.rows;
  t.cols = weights.cols;
  Rng rng(options.seed);
  if (f.rotation) {
    t.sign_in = RandomSigns(t.cols, rng);
    t.sign_out = RandomSigns(t.rows, rng);
  }
  std::vector<float> w;
  w.reserve(static_cast<size_t>(t.rows * t.cols));
  for (int64_t r = 0; r < t.rows; ++r) w.insert(w.end(), weights.Row(r), weights.Row(r) + t.cols);
  double squares = 0;
  for (const float value : w) squares += static_cast<double>(value) * value;
  if (f.rotation) Rotate(w, t.rows, t.cols, t);

  const double deviation = std::sqrt(squares / static_cast<double>(w.size()));
  t.scales = {ScaleToHalf(static_cast<float>(deviation * e8p::kScale), what)};
  const float scale = t.scales[0];
  report.zero_groups = scale == 0 ? 1 : 0;
  t.stage_scales.push_back(1);
  if (f.stages() == 2) t.stage_scales.push_back(kSecondStage);
  const int64_t subvectors = Subvectors(f, t.cols);
  for (int stage = 0; stage < f.stages(); ++stage) t.codes.emplace_back(t.rows, subvectors, 16);

  ParallelFor(t.rows, 8, [&](int64_t begin, int64_t end) {
    std::vector<std::vector<uint16_t>> codes(static_cast<size_t>(f.stages()),
                                             std::vector<uint16_t>(static_cast<size_t>(subvectors)));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t s = 0; s < subvectors; ++s) {
        e8p::Vector x{};  // zeros behind the last column
        for (int64_t i = 0; i < std::min<int64_t>(8, t.cols - 8 * s); ++i) {
          x[static_cast<size_t>(i)] =
              scale > 0 ? w[static_cast<size_t>(r * t.cols + 8 * s + i)] / scale : 0.0f;
        }
        for (size_t stage = 0; stage < codes.size(); ++stage) {
          const float factor = t.stage_scales[stage];
          e8p::Vector scaled;
          for (size_t i = 0; i < 8; ++i) scaled[i] = x[i] / factor;
          const uint16_t code = e8p::Encode(scaled.data());
          const e8p::Vector point = e8p::Decode(code);
          for (size_t i = 0; i < 8; ++i) x[i] -= factor * point[i];
          codes[stage][static_cast<size_t>(s)] = code;
        }
      }
      for (size_t stage = 0; stage < codes.size(); ++stage) t.codes[stage].PackRow(r, codes[stage].data());
    }
  });
  return t;
}

}  // namespace vqllm::internal
