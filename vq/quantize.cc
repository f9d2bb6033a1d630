#include <cmath>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/math.h"
#include "vq/base/parallel.h"
#include "vq/base/rng.h"
#include "vq/hadamard.h"
#include "vq/quantize_methods.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

constexpr int64_t kRows = 16;

void CheckFinite(MatrixView<const float> weights, const std::string& what) {
  ParallelFor(weights.rows, kRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < weights.cols; ++c) {
        if (!std::isfinite(weights(r, c))) {
          Fail("{}: weight [{}, {}]: found {}, allowed: a finite number", what, r, c, weights(r, c));
        }
      }
    }
  });
}

void CheckImportance(std::span<const float> importance, int64_t cols, const std::string& what) {
  if (importance.empty()) return;
  if (static_cast<int64_t>(importance.size()) != cols) {
    Fail("{}: importance: found {} values, allowed: {}", what, importance.size(), cols);
  }
  for (size_t c = 0; c < importance.size(); ++c) {
    if (!(importance[c] >= 0) || std::isinf(importance[c])) {
      Fail("{}: importance of input {}: found {}, allowed: 0 or more, finite", what, c, importance[c]);
    }
  }
}

void CheckHessian(const Format& format, std::span<const float> hessian, int64_t cols,
                  const std::string& what) {
  if (hessian.empty()) return;
  if (format.kind != FormatKind::kTable || format.axis != Axis::kIn || format.rotation) {
    Fail("{}: hessian: found one for format {}, allowed: for tables along inputs without rotation", what,
         format.name);
  }
  if (static_cast<int64_t>(hessian.size()) != cols * cols)
    Fail("{}: hessian: found {} values, allowed: {} x {}", what, hessian.size(), cols, cols);
  for (int64_t i = 0; i < cols; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const float value = hessian[static_cast<size_t>(i * cols + j)];
      if (!std::isfinite(value) || (i == j && value < 0))
        Fail("{}: hessian [{}, {}]: found {}, allowed: finite, 0 or more on the diagonal", what, i, j, value);
    }
  }
}

/// Sums of squares behind RelativeMse.
struct Squares {
  double error = 0;
  double energy = 0;

  void Add(MatrixView<const float> exact, MatrixView<const float> approximate) {
    for (int64_t r = 0; r < exact.rows; ++r) {
      for (int64_t c = 0; c < exact.cols; ++c) {
        const double difference = static_cast<double>(exact(r, c)) - approximate(r, c);
        error += difference * difference;
        energy += static_cast<double>(exact(r, c)) * exact(r, c);
      }
    }
  }
  double Relative() const { return error == 0 ? 0 : error / energy; }
};

/// RelativeMse of a quantised tensor, a few rows at a time unless a rotation ties all rows together: no
/// second copy of the matrix.
double MeasureMse(const Tensor& tensor, MatrixView<const float> exact) {
  const int64_t step = tensor.format.rotation ? exact.rows : kRows;
  std::vector<Squares> pieces(static_cast<size_t>(CeilDiv(exact.rows, step)));
  ParallelFor(exact.rows, step, [&](int64_t begin, int64_t end) {
    std::vector<float> decoded(static_cast<size_t>((end - begin) * exact.cols));
    const MatrixView<float> view(decoded.data(), end - begin, exact.cols);
    Dequantize(tensor, begin, view);
    pieces[static_cast<size_t>(begin / step)].Add({exact.Row(begin), end - begin, exact.cols, exact.stride},
                                                  view);
  });
  Squares sum;
  for (const Squares& piece : pieces) {
    sum.error += piece.error;
    sum.energy += piece.energy;
  }
  return sum.Relative();
}

/// Quantises what the codes stand for: W, or W' behind a rotation.
Tensor QuantizeStored(const Format& format, MatrixView<const float> weights, const QuantizeOptions& options,
                      const std::string& what, QuantizeReport& report) {
  switch (format.kind) {
    case FormatKind::kDense: {
      std::vector<float> packed;
      packed.reserve(static_cast<size_t>(weights.rows * weights.cols));
      for (int64_t r = 0; r < weights.rows; ++r)
        packed.insert(packed.end(), weights.Row(r), weights.Row(r) + weights.cols);
      Tensor tensor = DenseTensor(format.dtype, weights.rows, weights.cols, packed.data());
      tensor.format = format;
      return tensor;
    }
    case FormatKind::kInt:
      return internal::QuantizeInt(format, weights, what, report);
    case FormatKind::kTable:
      return internal::QuantizeTable(format, weights, options, what, report);
    case FormatKind::kLattice:
      return internal::QuantizeLattice(format, weights, what, report);
  }
  VQLLM_CHECK(false);
}

std::vector<Half> RandomSigns(int64_t n, Rng& rng) {
  std::vector<Half> signs;
  for (int64_t i = 0; i < n; ++i) signs.emplace_back(rng.Next() >> 63 ? -1.0f : 1.0f);
  return signs;
}

/// Draws the signs and quantises W' = H_out S_out W S_in H_in^T. Columns of W' mix all columns of W, so the
/// importance of these says nothing there.
Tensor QuantizeRotated(const Format& format, MatrixView<const float> weights, QuantizeOptions options,
                       const std::string& what, QuantizeReport& report) {
  Rng rng(options.seed);
  std::vector<Half> sign_in = RandomSigns(weights.cols, rng);
  std::vector<Half> sign_out = RandomSigns(weights.rows, rng);
  std::vector<float> turned(static_cast<size_t>(weights.rows * weights.cols));
  const MatrixView<float> w(turned.data(), weights.rows, weights.cols);
  const Hadamard in(w.cols);
  const Hadamard out(w.rows);
  ParallelFor(w.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < w.cols; ++c)
        w(r, c) = weights(r, c) * sign_in[static_cast<size_t>(c)] * sign_out[static_cast<size_t>(r)];
      in.Apply(w.Row(r));
    }
  });
  ParallelFor(w.cols, 64, [&](int64_t begin, int64_t end) {
    std::vector<float> column(static_cast<size_t>(w.rows));
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t r = 0; r < w.rows; ++r) column[static_cast<size_t>(r)] = w(r, c);
      out.Apply(column.data());
      for (int64_t r = 0; r < w.rows; ++r) w(r, c) = column[static_cast<size_t>(r)];
    }
  });
  options.importance = {};
  Tensor tensor = QuantizeStored(format, w, options, what, report);
  tensor.sign_in = std::move(sign_in);
  tensor.sign_out = std::move(sign_out);
  return tensor;
}

}  // namespace

namespace internal {

Half ScaleToHalf(float scale, const std::string& what) {
  if (scale > 65504) Fail("{}: scale: found {}, allowed: at most 65504 (fp16)", what, scale);
  Half half(scale);
  if (static_cast<float>(half) < scale) half = Half::FromBits(static_cast<uint16_t>(half.bits + 1));
  return half;
}

}  // namespace internal

Tensor Quantize(const Format& format, MatrixView<const float> weights, const QuantizeOptions& options,
                const std::string& what, QuantizeReport* report) {
  Validate(format);
  if (format.permutation || format.input_affine) {
    Fail("{}: format {}: permutation and input_affine can be read, not made", what, format.name);
  }
  if (weights.rows < 1 || weights.cols < 1) {
    Fail("{}: shape: found {} x {}, allowed: at least 1 x 1", what, weights.rows, weights.cols);
  }
  CheckFinite(weights, what);
  CheckImportance(options.importance, weights.cols, what);
  CheckHessian(format, options.hessian, weights.cols, what);
  QuantizeReport local;
  QuantizeReport& out = report ? *report : local;
  out = {};
  Tensor tensor = format.rotation ? QuantizeRotated(format, weights, options, what, out)
                                  : QuantizeStored(format, weights, options, what, out);
  if (report) out.relative_mse = MeasureMse(tensor, weights);
  return tensor;
}

double RelativeMse(MatrixView<const float> exact, MatrixView<const float> approximate) {
  Squares sum;
  sum.Add(exact, approximate);
  return sum.Relative();
}

}  // namespace vqllm
