#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vq/base/view.h"
#include "vq/tensor.h"

namespace vqllm::cpu {

struct LinearOptions {
  /// Only fp32 tables and fp32 activations: the product differs from the oracle by rounding alone. The
  /// default may quantise lookup tables and activations to 8 bits, whose relative error (about 1 %) is far
  /// below that of the weights.
  bool exact = false;
};

/// A weight matrix W [rows = outputs, cols = inputs] repacked once for this machine. Products are the same at
/// any thread count.
class Linear {
 public:
  virtual ~Linear() = default;

  /// y [m, rows] = x [m, cols] W^T + bias. Any m >= 0. NaN and infinity in x propagate.
  virtual void Multiply(MatrixView<const float> x, MatrixView<float> y) const = 0;
  /// Which kernel serves m rows of x: one word, as printed by `vqllm explain --device cpu`.
  virtual std::string Kernel(int64_t m) const = 0;
  /// Bytes that a decode step (m = 1) reads: codes, codebooks, scales.
  virtual int64_t bytes() const = 0;

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 protected:
  Linear(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}

 private:
  int64_t rows_;
  int64_t cols_;
};

/// Repacks. `bias` is empty or [rows]. The tensor is not needed afterwards, but dense values may be shared
/// with it.
std::unique_ptr<Linear> PrepareLinear(const Tensor& weights, std::vector<float> bias,
                                      const LinearOptions& options);

/// A kernel that was thought of for a matrix.
struct KernelOption {
  std::string serves_what;
  std::string kernel;  ///< of the first m up to max_m; above, tiles are decoded and multiplied
  int64_t max_m = 0;
  std::string refusal;  ///< why it cannot serve; empty: it can
};
/// All of them for a format and shape, in the order of preference: the first without refusal is taken. For
/// reports; the format's rotation, permutation and affine do not count.
std::vector<KernelOption> KernelOptions(const Format& format, int64_t rows, int64_t cols,
                                        const LinearOptions& options);

/// One product of several that read the same x.
struct Product {
  const Linear* weights;
  MatrixView<float> y;  ///< [m, weights->rows()]
};

/// All products of one x (Q, K, V; gate, up): tables and quantised activations are made once where formats
/// allow.
void MultiplyAll(MatrixView<const float> x, std::span<const Product> products);

}  // namespace vqllm::cpu
