#include "kernels/cpu/linear_tile.h"

#include <cblas.h>

#include <algorithm>
#include <mutex>

#include "vq/base/parallel.h"
#include "vq/quantizer.h"

namespace vqllm::cpu {
namespace {

// Rows of a tile: 64 rows of 4096 floats are 1 MiB, half of a core's L2.
constexpr int64_t kTileRows = 64;

class TileLinear final : public Linear {
 public:
  TileLinear(const Tensor& weights, std::vector<float> bias)
      : Linear(weights.rows, weights.cols), weights_(weights), bias_(std::move(bias)) {
    // Our pool cuts the work into tiles; a second pool inside BLAS would only fight with it over the cores.
    static std::once_flag once;
    std::call_once(once, [] { openblas_set_num_threads(1); });
  }

  void Multiply(MatrixView<const float> x, MatrixView<float> y) const override {
    if (x.rows == 0) return;
    ParallelFor(rows(), kTileRows, [&](int64_t begin, int64_t end) {
      std::vector<float> tile(static_cast<size_t>((end - begin) * cols()));
      DequantizeStored(weights_, begin, {tile.data(), end - begin, cols()});
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(x.rows),
                  static_cast<int>(end - begin), static_cast<int>(cols()), 1.0f, x.data,
                  static_cast<int>(x.stride), tile.data(), static_cast<int>(cols()), 0.0f, y.data + begin,
                  static_cast<int>(y.stride));
      for (int64_t i = 0; i < (bias_.empty() ? 0 : x.rows); ++i) {
        for (int64_t r = begin; r < end; ++r) y(i, r) += bias_[static_cast<size_t>(r)];
      }
    });
  }

  std::string Kernel(int64_t) const override { return "dequantise-sgemm"; }
  int64_t bytes() const override { return StoredBytes(weights_); }

 private:
  Tensor weights_;
  std::vector<float> bias_;
};

}  // namespace

std::unique_ptr<Linear> PrepareTiles(const Tensor& weights, std::vector<float> bias) {
  return std::make_unique<TileLinear>(weights, std::move(bias));
}

std::unique_ptr<Linear> PrepareStored(const Tensor& weights, std::vector<float> bias, const LinearOptions&) {
  return PrepareTiles(weights, std::move(bias));
}

}  // namespace vqllm::cpu
