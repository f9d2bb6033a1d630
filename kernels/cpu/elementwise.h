#pragma once

#include <span>

#include "vq/base/view.h"

namespace vqllm::cpu {

/// y[t, i] = x[t, i] * weight[i] / sqrt(mean_i(x[t, i]^2) + epsilon). x and y may be the same.
void RmsNorm(MatrixView<const float> x, std::span<const float> weight, float epsilon, MatrixView<float> y);

/// y = silu(gate) * up, where silu(z) = z / (1 + exp(-z)). Any may be the same.
void SiluMul(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> y);

/// x += y.
void Add(MatrixView<const float> y, MatrixView<float> x);

}  // namespace vqllm::cpu
