#include <cmath>

#include "vq/base/error.h"
#include "vq/base/parallel.h"
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
  std::vector<Squares> pieces(static_cast<size_t>((exact.rows + step - 1) / step));
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
  QuantizeReport local;
  QuantizeReport& out = report ? *report : local;
  out = {};
  Tensor tensor;
  switch (format.kind) {
    case FormatKind::kDense: {
      std::vector<float> packed;
      packed.reserve(static_cast<size_t>(weights.rows * weights.cols));
      for (int64_t r = 0; r < weights.rows; ++r)
        packed.insert(packed.end(), weights.Row(r), weights.Row(r) + weights.cols);
      tensor = DenseTensor(format.dtype, weights.rows, weights.cols, packed.data());
      tensor.format = format;
      break;
    }
    case FormatKind::kInt:
      tensor = internal::QuantizeInt(format, weights, what, out);
      break;
    case FormatKind::kTable:
      tensor = internal::QuantizeTable(format, weights, options, what, out);
      break;
    case FormatKind::kLattice:
      tensor = internal::QuantizeLattice(format, weights, options, what, out);
      break;
  }
  if (report) out.relative_mse = MeasureMse(tensor, weights);
  return tensor;
}

double RelativeMse(MatrixView<const float> exact, MatrixView<const float> approximate) {
  Squares sum;
  sum.Add(exact, approximate);
  return sum.Relative();
}

}  // namespace vqllm
