#include "kernels/cpu/elementwise.h"

#include <cmath>

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
      double squares = 0;
      for (int64_t i = 0; i < x.cols; ++i) squares += static_cast<double>(x(t, i)) * x(t, i);
      const float factor = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(x.cols) + epsilon));
      for (int64_t i = 0; i < x.cols; ++i) y(t, i) = x(t, i) * factor * weight[static_cast<size_t>(i)];
    }
  });
}

void SiluMul(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> y) {
  ParallelFor(gate.rows, kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < gate.cols; ++i) y(t, i) = gate(t, i) / (1 + std::exp(-gate(t, i))) * up(t, i);
    }
  });
}

void Add(MatrixView<const float> y, MatrixView<float> x) {
  ParallelFor(x.rows, kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < x.cols; ++i) x(t, i) += y(t, i);
    }
  });
}

}  // namespace vqllm::cpu
