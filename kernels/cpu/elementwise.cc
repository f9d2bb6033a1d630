#include "kernels/cpu/elementwise.h"

#include <cmath>

#include "kernels/cpu/vector_ops.h"
#include "vq/base/check.h"
#include "vq/base/parallel.h"

namespace vqllm::cpu {
namespace {

// Tokens of one piece of work: below this a decode step runs in the caller's thread.
constexpr int64_t kTokens = 16;

}  // namespace

void RmsNorm(MatrixView<const float> x, std::span<const float> weight, float epsilon, MatrixView<float> y) {
  VQLLM_CHECK(static_cast<int64_t>(weight.size()) == x.cols);
  ParallelFor(x.rows, kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float mean = SumOfSquares(x.Row(t), x.cols) / static_cast<float>(x.cols);
      ScaleByWeight(x.Row(t), weight.data(), 1 / std::sqrt(mean + epsilon), x.cols, y.Row(t));
    }
  });
}

void SiluMul(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> y) {
  ParallelFor(gate.rows, kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) SiluMulRow(gate.Row(t), up.Row(t), gate.cols, y.Row(t));
  });
}

void Add(MatrixView<const float> y, MatrixView<float> x) {
  ParallelFor(x.rows, kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) AddTo(y.Row(t), x.cols, x.Row(t));
  });
}

}  // namespace vqllm::cpu
