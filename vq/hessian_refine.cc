#include "vq/hessian_refine.h"

#include <algorithm>
#include <cmath>

#include "vq/additive.h"
#include "vq/base/error.h"
#include "vq/base/parallel.h"

namespace vqllm::internal {
namespace {

// Share of the mean diagonal that is added to the diagonal, as GPTQ does: inputs that calibration never saw
// move.
constexpr double kDamping = 0.01;
constexpr int64_t kRows = 16;  // rows that share a pass over the Hessian

/// Lower Cholesky factor of a [v, v] block, row-major.
std::vector<double> Factor(const std::vector<double>& block, int64_t v, int64_t column,
                           const std::string& what) {
  std::vector<double> l(block.size());
  for (int64_t i = 0; i < v; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = block[static_cast<size_t>(i * v + j)];
      for (int64_t k = 0; k < j; ++k)
        sum -= l[static_cast<size_t>(i * v + k)] * l[static_cast<size_t>(j * v + k)];
      if (i == j && !(sum > 0))
        Fail("{}: hessian of input {}: found a matrix that is not positive definite", what, column + i);
      l[static_cast<size_t>(i * v + j)] = i == j ? std::sqrt(sum) : sum / l[static_cast<size_t>(j * v + j)];
    }
  }
  return l;
}

/// One pass of coordinate descent over a matrix.
class Refiner {
 public:
  Refiner(const Tensor& t, const SubvectorMatrix& matrix, MatrixView<const float> w,
          std::span<const float> hessian, int beam, const std::string& what, StageCodes& codes)
      : t_(t),
        matrix_(matrix),
        v_(matrix.v()),
        hessian_(hessian.data(), w.cols, w.cols),
        beam_(beam),
        what_(what),
        codes_(codes),
        gradient_(static_cast<size_t>(w.rows * w.cols)) {
    double trace = 0;
    for (int64_t c = 0; c < w.cols; ++c) trace += hessian_(c, c);
    damping_ = kDamping * trace / static_cast<double>(w.cols);
    Start(w);
  }

  void Sweep() {
    for (int64_t s = 0; s < matrix_.code_cols(); ++s) {
      const std::vector<double> factor = FactorOf(s);
      const int64_t books = CodebookCount(t_.format, t_.rows, t_.cols);
      for (int64_t book = 0; book < books; ++book) {
        const Region region = matrix_.RegionOf(book);
        if (s < region.col_begin || s >= region.col_end) continue;
        const AdditiveEncoder encoder(Turned(book, factor), v_, beam_);
        ParallelFor(region.row_end - region.row_begin, kRows, [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) Recode(region.row_begin + r, s, book, factor, encoder);
        });
      }
    }
  }

 private:
  int64_t Width(int64_t s) const { return std::min(v_, t_.cols - s * v_); }

  /// The sum of entries of the codes at [r, s], without scale.
  void Decode(int64_t r, int64_t s, int64_t book, double* out) const {
    std::fill_n(out, v_, 0.0);
    for (size_t m = 0; m < codes_.size(); ++m) {
      const int64_t code = codes_[m][static_cast<size_t>(r * matrix_.code_cols() + s)];
      const Half* entry = t_.codebooks[m].data() + (book * t_.format.entries[m] + code) * v_;
      for (int64_t d = 0; d < v_; ++d) out[d] += static_cast<float>(entry[d]);
    }
  }

  /// gradient := (W - W') H.
  void Start(MatrixView<const float> w) {
    ParallelFor(w.rows, kRows, [&](int64_t begin, int64_t end) {
      std::vector<float> error(static_cast<size_t>((end - begin) * t_.cols));
      double decoded[kMaxSubvector];
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t s = 0; s < matrix_.code_cols(); ++s) {
          Decode(r, s, CodebookIndex(t_.format, t_.rows, t_.cols, r, s), decoded);
          for (int64_t d = 0; d < Width(s); ++d) {
            const int64_t c = s * v_ + d;
            error[static_cast<size_t>((r - begin) * t_.cols + c)] =
                w(r, c) - ScaleOf(t_, r, c) * static_cast<float>(decoded[d]);
          }
        }
      }
      for (int64_t c = 0; c < t_.cols; ++c) {
        for (int64_t r = begin; r < end; ++r)
          Add(error[static_cast<size_t>((r - begin) * t_.cols + c)], c, Gradient(r));
      }
    });
  }

  float* Gradient(int64_t r) { return gradient_.data() + r * t_.cols; }

  /// to += factor * row c of the damped Hessian.
  void Add(float factor, int64_t c, float* to) const {
    const float* row = hessian_.Row(c);
    for (int64_t j = 0; j < t_.cols; ++j) to[j] += factor * row[j];
    to[c] += factor * static_cast<float>(damping_);
  }

  std::vector<double> FactorOf(int64_t s) const {
    std::vector<double> block(static_cast<size_t>(v_ * v_));
    for (int64_t i = 0; i < v_; ++i) {
      for (int64_t j = 0; j < v_; ++j) {
        const bool inside = i < Width(s) && j < Width(s);
        const double value = inside ? hessian_(s * v_ + i, s * v_ + j) : 0.0;
        // Padding: any positive number, so small that it decides nothing.
        const double diagonal = inside ? damping_ : 1e-12 * (damping_ + 1e-30);
        block[static_cast<size_t>(i * v_ + j)] = value + (i == j ? diagonal : 0);
      }
    }
    return Factor(block, v_, s * v_, what_);
  }

  /// L^T entry for all entries of one codebook of each stage.
  std::vector<std::vector<float>> Turned(int64_t book, const std::vector<double>& factor) const {
    std::vector<std::vector<float>> turned;
    for (size_t m = 0; m < t_.codebooks.size(); ++m) {
      const int64_t entries = t_.format.entries[m];
      const Half* from = t_.codebooks[m].data() + book * entries * v_;
      std::vector<float>& to = turned.emplace_back(static_cast<size_t>(entries * v_));
      double entry[kMaxSubvector];
      for (int64_t e = 0; e < entries; ++e) {
        for (int64_t d = 0; d < v_; ++d) entry[d] = static_cast<float>(from[e * v_ + d]);
        TimesTransposed(factor, entry, to.data() + e * v_);
      }
    }
    return turned;
  }

  void TimesTransposed(const std::vector<double>& factor, const double* x, float* out) const {
    for (int64_t i = 0; i < v_; ++i) {
      double sum = 0;
      for (int64_t k = i; k < v_; ++k) sum += factor[static_cast<size_t>(k * v_ + i)] * x[k];
      out[i] = static_cast<float>(sum);
    }
  }

  void Recode(int64_t r, int64_t s, int64_t book, const std::vector<double>& factor,
              const AdditiveEncoder& encoder) {
    const float scale = ScaleOf(t_, r, s * v_);
    if (scale == 0) return;
    double now[kMaxSubvector];
    Decode(r, s, book, now);
    // L^T y / scale = L^T now + L^-1 g / scale, by forward substitution.
    float target[kMaxSubvector];
    TimesTransposed(factor, now, target);
    double solved[kMaxSubvector];
    for (int64_t i = 0; i < v_; ++i) {
      double sum = i < Width(s) ? Gradient(r)[s * v_ + i] : 0.0;
      for (int64_t k = 0; k < i; ++k) sum -= factor[static_cast<size_t>(i * v_ + k)] * solved[k];
      solved[i] = sum / factor[static_cast<size_t>(i * v_ + i)];
      target[i] += static_cast<float>(solved[i] / scale);
    }
    uint16_t found[8];
    encoder.Encode({target, 1, v_}, {}, found, nullptr);
    for (size_t m = 0; m < codes_.size(); ++m)
      codes_[m][static_cast<size_t>(r * matrix_.code_cols() + s)] = found[m];
    double after[kMaxSubvector];
    Decode(r, s, book, after);
    for (int64_t d = 0; d < Width(s); ++d) {
      const float change = scale * static_cast<float>(after[d] - now[d]);
      if (change != 0) Add(-change, s * v_ + d, Gradient(r));
    }
  }

  const Tensor& t_;
  const SubvectorMatrix& matrix_;
  int64_t v_;
  MatrixView<const float> hessian_;
  double damping_ = 0;
  int beam_;
  const std::string& what_;
  StageCodes& codes_;
  std::vector<float> gradient_;  // (W - W') H
};

}  // namespace

void RefineCodes(const Tensor& tensor, const SubvectorMatrix& matrix, MatrixView<const float> weights,
                 std::span<const float> hessian, int beam, int sweeps, const std::string& what,
                 StageCodes& codes) {
  Refiner refiner(tensor, matrix, weights, hessian, beam, what, codes);
  for (int sweep = 0; sweep < sweeps; ++sweep) refiner.Sweep();
}

}  // namespace vqllm::internal
