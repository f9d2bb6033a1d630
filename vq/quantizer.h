#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "vq/base/view.h"
#include "vq/tensor.h"

namespace vqllm {

/// How hard formats with several stages of codebooks are searched; others take no notice.
enum class Effort : uint8_t {
  kFast,    ///< residual k-means: stage by stage, codes picked greedily
  kNormal,  ///< then a few rounds of beam search and joint least squares over all stages
  kBest,    ///< many rounds and wide beams: minutes for a large matrix
};

struct QuantizeOptions {
  uint64_t seed = 1;
  int iterations = 25;  ///< k-means rounds a codebook
  Effort effort = Effort::kNormal;
  /// Weight of each input column's squared error (such as the mean square of that input, the diagonal of the
  /// Hessian), [cols], >= 0, finite; empty: all 1. Used by kTable without rotation. Columns below a
  /// thousandth of the mean weigh that much; where all are 0, the error is not weighted.
  std::span<const float> importance;
  /// H = sum of x x^T over inputs x of calibration, [cols, cols], symmetric, positive semidefinite: codes are
  /// then chosen for the error of the outputs, tr((W - W') H (W - W')^T), and its diagonal serves as
  /// importance where that is empty. Used by kTable along inputs without rotation; empty: H = identity. Takes
  /// one more copy of the matrix.
  std::span<const float> hessian;
};

/// What happened while a tensor was quantised; printed by the commands.
struct QuantizeReport {
  double relative_mse = 0;  ///< |W - W'|^2 / |W|^2, 0 for a zero tensor
  int64_t zero_groups =
      0;  ///< groups or rows whose scale came out 0 (all weights 0, or 0 after rounding to fp16)
  int64_t unused_entries = 0;  ///< entries that no code points at
};

/// Quantises W [rows, cols] by the method of the format: round to nearest (kInt), product or residual k-means
/// (kTable), nearest lattice point after rotation (kLattice), rounding (kDense). Deterministic by seed at any
/// thread count. Throws Error on NaN or infinity in W, and on shapes that the format cannot hold; `what`
/// names the tensor in errors.
Tensor Quantize(const Format& format, MatrixView<const float> weights, const QuantizeOptions& options,
                const std::string& what, QuantizeReport* report = nullptr);

/// The oracle of every kernel: rows [begin, begin + out.rows) of W' into out [n, cols], scalar arithmetic in
/// double where sums occur, rotation undone.
void Dequantize(const Tensor& tensor, int64_t begin, MatrixView<float> out);

/// The same without undoing rotation, permutation and input affine: what the codes, codebooks and scales say.
/// Kernels read this and turn the activations instead.
void DequantizeStored(const Tensor& tensor, int64_t begin, MatrixView<float> out);

/// Sum of squared differences over sum of squares of `exact`; 0 where both are 0.
double RelativeMse(MatrixView<const float> exact, MatrixView<const float> approximate);

}  // namespace vqllm
