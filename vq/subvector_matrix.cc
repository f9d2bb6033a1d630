#include "vq/subvector_matrix.h"

#include <algorithm>
#include <cmath>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/parallel.h"
#include "vq/base/rng.h"
#include "vq/quantize_methods.h"

namespace vqllm::internal {
namespace {

constexpr float kLargestHalf = 65504;

// Columns of no importance still count this much of the mean one. So a codebook that sees nothing else is
// trained as if unweighted, and the codes of such columns are their nearest entries, not anything.
constexpr double kLeastImportance = 1e-3;

/// Importance over its mean, never below kLeastImportance; 1 everywhere where it is empty or all 0.
std::vector<float> RelativeImportance(std::span<const float> importance, int64_t cols) {
  std::vector<float> relative(static_cast<size_t>(cols), 1.0f);
  double sum = 0;
  for (const float value : importance) sum += value;
  if (!(sum > 0)) return relative;
  const double mean = sum / static_cast<double>(cols);
  for (size_t c = 0; c < relative.size(); ++c)
    relative[c] = static_cast<float>(std::max(importance[c] / mean, kLeastImportance));
  return relative;
}

double Squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

}  // namespace

std::vector<Half> FitScales(const Format& f, MatrixView<const float> w, const std::string& what,
                            int64_t* zero_groups) {
  std::vector<Half> scales;
  const auto add = [&](double squares, int64_t count) {
    scales.push_back(ScaleToHalf(static_cast<float>(std::sqrt(squares / static_cast<double>(count))), what));
    *zero_groups += scales.back() == 0.0f;
  };
  switch (f.scale) {
    case ScaleKind::kNone:
      break;
    case ScaleKind::kPerTensor: {
      double squares = 0;
      for (int64_t r = 0; r < w.rows; ++r) squares += Squares(w.RowSpan(r));
      add(squares, w.rows * w.cols);
      break;
    }
    case ScaleKind::kPerOutput:
      for (int64_t r = 0; r < w.rows; ++r) add(Squares(w.RowSpan(r)), w.cols);
      break;
    case ScaleKind::kGroup:
      for (int64_t r = 0; r < w.rows; ++r) {
        for (int64_t c = 0; c < w.cols; c += f.group) {
          const int64_t count = std::min<int64_t>(f.group, w.cols - c);
          add(Squares({w.Row(r) + c, static_cast<size_t>(count)}), count);
        }
      }
      break;
  }
  return scales;
}

SubvectorMatrix::SubvectorMatrix(const Tensor& scaled, MatrixView<const float> w,
                                 std::span<const float> importance, const std::string& what)
    : format_(scaled.format), rows_(w.rows), cols_(w.cols), v_(format_.subvector) {
  const bool along_in = format_.axis == Axis::kIn;
  code_rows_ = along_in ? rows_ : Subvectors(format_, rows_);
  code_cols_ = along_in ? Subvectors(format_, cols_) : cols_;
  values_.resize(static_cast<size_t>(code_rows_ * code_cols_ * v_));
  ParallelFor(rows_, 64, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t c = 0; c < cols_; ++c) {
        const float scale = ScaleOf(scaled, r, c);
        const float value = scale > 0 ? w(r, c) / scale : 0;
        if (std::fabs(value) > kLargestHalf) {
          Fail("{}: weight [{}, {}]: found {}, allowed: at most 65504 times its scale (codebooks are fp16)",
               what, r, c, w(r, c));
        }
        const int64_t at = along_in ? r * code_cols_ * v_ + c : (r / v_ * code_cols_ + c) * v_ + r % v_;
        values_[static_cast<size_t>(at)] = value;
      }
    }
  });
  SetWeights(importance);
}

void SubvectorMatrix::SetWeights(std::span<const float> importance) {
  const bool along_in = format_.axis == Axis::kIn;
  const bool padded = (along_in ? cols_ : rows_) % v_ != 0;
  const std::vector<float> relative = RelativeImportance(importance, cols_);
  const bool uniform = std::all_of(relative.begin(), relative.end(), [](float x) { return x == 1; });
  if (uniform && !padded) return;
  weights_.assign(static_cast<size_t>(code_cols_ * v_), 0.0f);
  if (along_in) {
    std::copy(relative.begin(), relative.end(), weights_.begin());  // padding behind them weighs 0
    last_weights_ = weights_;
    return;
  }
  for (size_t i = 0; i < weights_.size(); ++i) weights_[i] = relative[i / static_cast<size_t>(v_)];
  last_weights_ = weights_;
  const size_t used = static_cast<size_t>(rows_ - (code_rows_ - 1) * v_);
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (i % static_cast<size_t>(v_) >= used) last_weights_[i] = 0;
  }
}

Region SubvectorMatrix::RegionOf(int64_t book) const {
  const Scope& scope = format_.scope;
  const int64_t row_step = format_.axis == Axis::kOut ? v_ : 1;
  const int64_t col_step = format_.axis == Axis::kIn ? v_ : 1;
  switch (scope.kind) {
    case ScopeKind::kTensor:
      return {0, code_rows_, 0, code_cols_};
    case ScopeKind::kTile: {
      const int64_t across = (cols_ + scope.cols - 1) / scope.cols;
      const int64_t rows = scope.rows / row_step;
      const int64_t cols = scope.cols / col_step;
      const int64_t r = book / across * rows;
      const int64_t c = book % across * cols;
      return {r, std::min(r + rows, code_rows_), c, std::min(c + cols, code_cols_)};
    }
    case ScopeKind::kInGroup: {
      const int64_t cols = scope.cols / col_step;
      return {0, code_rows_, book * cols, std::min((book + 1) * cols, code_cols_)};
    }
    case ScopeKind::kHeadChannel:
      return {0, code_rows_, book, book + 1};
  }
  VQLLM_CHECK(false);
}

MatrixView<const float> SubvectorMatrix::Row(const Region& region, int64_t code_row) const {
  return {values_.data() + (code_row * code_cols_ + region.col_begin) * v_, region.width(), v_};
}

MatrixView<const float> SubvectorMatrix::RowWeights(const Region& region, int64_t code_row) const {
  if (weights_.empty()) return {};
  const std::vector<float>& row = code_row + 1 == code_rows_ ? last_weights_ : weights_;
  return {row.data() + region.col_begin * v_, region.width(), v_};
}

SubvectorMatrix::Sample SubvectorMatrix::Draw(const Region& region, int64_t limit, uint64_t seed) const {
  Sample sample;
  Rng rng(seed);
  const int64_t n = std::min(region.size(), limit);
  sample.points.reserve(static_cast<size_t>(n * v_));
  if (!weights_.empty()) sample.weights.reserve(static_cast<size_t>(n * v_));
  for (int64_t i = 0; i < n; ++i) {  // one of each of n equal runs
    const int64_t begin = region.size() * i / n;
    const int64_t end = region.size() * (i + 1) / n;
    const int64_t pick = begin + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(end - begin)));
    const int64_t code_row = region.row_begin + pick / region.width();
    const int64_t col = pick % region.width();
    const float* point = Row(region, code_row).Row(col);
    sample.points.insert(sample.points.end(), point, point + v_);
    if (weights_.empty()) continue;
    const float* weight = RowWeights(region, code_row).Row(col);
    sample.weights.insert(sample.weights.end(), weight, weight + v_);
  }
  return sample;
}

}  // namespace vqllm::internal
