#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/parallel.h"
#include "vq/kmeans.h"
#include "vq/quantize_methods.h"

namespace vqllm::internal {
namespace {

constexpr float kLargestHalf = 65504;

/// The matrix as the codebooks see it: rows of subvectors along the axis of the format, divided by the
/// scales, padded with zeros that weigh nothing.
struct Subvectored {
  int64_t code_rows = 0;
  int64_t code_cols = 0;
  int64_t v = 0;
  std::vector<float> values;   // [code_rows, code_cols, v]; what later stages still have to code
  std::vector<float> weights;  // same shape, or empty where all weigh 1
};

/// The scales of a row: root mean square of its groups. Codebooks then see values near 1, whatever the row.
void FitScales(const Format& f, MatrixView<const float> w, const std::string& what, Tensor& t,
               int64_t& zero_groups) {
  if (f.scale == ScaleKind::kNone) return;
  const int64_t groups = ScaleGroups(f, w.cols);
  const int64_t width = f.scale == ScaleKind::kGroup ? f.group : w.cols;
  if (f.scale == ScaleKind::kPerTensor) {
    double squares = 0;
    for (int64_t r = 0; r < w.rows; ++r) {
      for (const float value : w.RowSpan(r)) squares += static_cast<double>(value) * value;
    }
    t.scales = {
        ScaleToHalf(static_cast<float>(std::sqrt(squares / static_cast<double>(w.rows * w.cols))), what)};
    zero_groups += t.scales[0] == 0.0f;
    return;
  }
  t.scales.resize(static_cast<size_t>(w.rows * groups));
  for (int64_t r = 0; r < w.rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t end = std::min(w.cols, (g + 1) * width);
      double squares = 0;
      for (int64_t c = g * width; c < end; ++c) squares += static_cast<double>(w(r, c)) * w(r, c);
      const float rms = static_cast<float>(std::sqrt(squares / static_cast<double>(end - g * width)));
      t.scales[static_cast<size_t>(r * groups + g)] = ScaleToHalf(rms, what);
      zero_groups += t.scales[static_cast<size_t>(r * groups + g)] == 0.0f;
    }
  }
}

float InverseScale(const Tensor& t, int64_t row, int64_t col) {
  const Format& f = t.format;
  size_t at = 0;
  if (f.scale == ScaleKind::kNone) return 1;
  if (f.scale == ScaleKind::kPerOutput) at = static_cast<size_t>(row);
  if (f.scale == ScaleKind::kGroup) at = static_cast<size_t>(row * ScaleGroups(f, t.cols) + col / f.group);
  const float scale = t.scales[at];
  return scale > 0 ? 1 / scale : 0;
}

Subvectored Split(const Tensor& t, MatrixView<const float> w, std::span<const float> importance) {
  const Format& f = t.format;
  const bool along_in = f.axis == Axis::kIn;
  Subvectored s;
  s.v = f.subvector;
  s.code_rows = along_in ? w.rows : Subvectors(f, w.rows);
  s.code_cols = along_in ? Subvectors(f, w.cols) : w.cols;
  s.values.resize(static_cast<size_t>(s.code_rows * s.code_cols * s.v));
  const bool padded = (along_in ? w.cols : w.rows) % s.v != 0;
  const bool weighted = std::any_of(importance.begin(), importance.end(), [](float x) { return x > 0; });
  if (padded || weighted) s.weights.resize(s.values.size());
  ParallelFor(w.rows, 64, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t c = 0; c < w.cols; ++c) {
        const int64_t at = along_in ? (r * s.code_cols + c / s.v) * s.v + c % s.v
                                    : (r / s.v * s.code_cols + c) * s.v + r % s.v;
        s.values[static_cast<size_t>(at)] = w(r, c) * InverseScale(t, r, c);
        if (!s.weights.empty())
          s.weights[static_cast<size_t>(at)] = weighted ? importance[static_cast<size_t>(c)] : 1.0f;
      }
    }
  });
  return s;
}

/// Code positions of one codebook: a rectangle of code rows and columns.
struct Region {
  int64_t row_begin, row_end, col_begin, col_end;
  int64_t size() const { return (row_end - row_begin) * (col_end - col_begin); }
};

Region RegionOf(const Tensor& t, const Subvectored& s, int64_t book) {
  const Format& f = t.format;
  const int64_t row_step = f.axis == Axis::kOut ? s.v : 1;
  const int64_t col_step = f.axis == Axis::kIn ? s.v : 1;
  switch (f.scope.kind) {
    case ScopeKind::kTensor:
      return {0, s.code_rows, 0, s.code_cols};
    case ScopeKind::kTile: {
      const int64_t across = (t.cols + f.scope.cols - 1) / f.scope.cols;
      const int64_t rows = f.scope.rows / row_step;
      const int64_t cols = f.scope.cols / col_step;
      const int64_t r = book / across * rows;
      const int64_t c = book % across * cols;
      return {r, std::min(r + rows, s.code_rows), c, std::min(c + cols, s.code_cols)};
    }
    case ScopeKind::kInGroup: {
      const int64_t cols = f.scope.cols / col_step;
      return {0, s.code_rows, book * cols, std::min((book + 1) * cols, s.code_cols)};
    }
    case ScopeKind::kHeadChannel:
      return {0, s.code_rows, book, book + 1};
  }
  VQLLM_CHECK(false);
}

std::vector<float> Collect(const Subvectored& s, const std::vector<float>& from, const Region& region) {
  std::vector<float> points;
  if (from.empty()) return points;
  points.reserve(static_cast<size_t>(region.size() * s.v));
  for (int64_t r = region.row_begin; r < region.row_end; ++r) {
    const float* row = from.data() + (r * s.code_cols + region.col_begin) * s.v;
    points.insert(points.end(), row, row + (region.col_end - region.col_begin) * s.v);
  }
  return points;
}

/// Trains the codebook of one region, encodes the region and leaves the residual in s. Returns entries that
/// no code points at.
int64_t CodeRegion(const Region& region, int entries, const QuantizeOptions& options, uint64_t seed,
                   const std::string& what, Subvectored& s, std::span<Half> codebook,
                   std::vector<uint16_t>& codes) {
  const std::vector<float> points = Collect(s, s.values, region);
  const std::vector<float> weights = Collect(s, s.weights, region);
  const int64_t n = region.size();
  const auto weight_view = [&](int64_t begin, int64_t count) {
    return weights.empty() ? MatrixView<const float>()
                           : MatrixView<const float>(weights.data() + begin * s.v, count, s.v);
  };
  const KMeansResult trained = KMeans({points.data(), n, s.v}, weight_view(0, n),
                                      {.entries = entries, .iterations = options.iterations, .seed = seed});
  std::vector<float> rounded(codebook.size());
  for (size_t i = 0; i < codebook.size(); ++i) {
    if (std::fabs(trained.centroids[i]) > kLargestHalf) {
      Fail("{}: codebook entry: found {}, allowed: at most 65504 (fp16); use a format with scales", what,
           trained.centroids[i]);
    }
    codebook[i] = Half(trained.centroids[i]);
    rounded[i] = codebook[i];
  }
  const NearestEntry nearest({rounded.data(), entries, s.v});
  std::vector<std::atomic<bool>> used(static_cast<size_t>(entries));
  const int64_t width = region.col_end - region.col_begin;
  ParallelFor(region.row_end - region.row_begin, 1 + 4096 / width, [&](int64_t first, int64_t last) {
    std::vector<int32_t> found(static_cast<size_t>(width));
    for (int64_t i = first; i < last; ++i) {
      nearest.Find({points.data() + i * width * s.v, width, s.v}, weight_view(i * width, width), found.data(),
                   nullptr);
      const int64_t at = (region.row_begin + i) * s.code_cols + region.col_begin;
      for (int64_t c = 0; c < width; ++c) {
        const int64_t code = found[static_cast<size_t>(c)];
        codes[static_cast<size_t>(at + c)] = static_cast<uint16_t>(code);
        used[static_cast<size_t>(code)] = true;
        for (int64_t d = 0; d < s.v; ++d) {
          s.values[static_cast<size_t>((at + c) * s.v + d)] -= rounded[static_cast<size_t>(code * s.v + d)];
        }
      }
    }
  });
  return std::count_if(used.begin(), used.end(), [](const std::atomic<bool>& u) { return !u; });
}

}  // namespace

Tensor QuantizeTable(const Format& f, MatrixView<const float> w, const QuantizeOptions& options,
                     const std::string& what, QuantizeReport& report) {
  Tensor t;
  t.format = f;
  t.rows = w.rows;
  t.cols = w.cols;
  FitScales(f, w, what, t, report.zero_groups);
  Subvectored s = Split(t, w, options.importance);
  const int64_t books = CodebookCount(f, t.rows, t.cols);
  std::vector<uint16_t> codes(static_cast<size_t>(s.code_rows * s.code_cols));
  std::atomic<int64_t> unused{0};
  for (int stage = 0; stage < f.stages(); ++stage) {
    const int entries = f.entries[static_cast<size_t>(stage)];
    const size_t size = static_cast<size_t>(entries * s.v);
    std::vector<Half>& codebooks = t.codebooks.emplace_back(size * static_cast<size_t>(books));
    ParallelFor(books, 1, [&](int64_t book, int64_t) {
      unused += CodeRegion(RegionOf(t, s, book), entries, options,
                           options.seed + static_cast<uint64_t>(book * f.stages() + stage), what, s,
                           std::span(codebooks).subspan(static_cast<size_t>(book) * size, size), codes);
    });
    PackedCodes& packed = t.codes.emplace_back(s.code_rows, s.code_cols, f.CodeBits(stage));
    ParallelFor(s.code_rows, 64, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) packed.PackRow(r, codes.data() + r * s.code_cols);
    });
  }
  report.unused_entries = unused;
  return t;
}

}  // namespace vqllm::internal
