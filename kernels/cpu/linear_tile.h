#pragma once

#include "kernels/cpu/linear.h"

namespace vqllm::cpu {

/// Prepares the stored matrix W' of a tensor, its rotation, permutation and affine left aside.
std::unique_ptr<Linear> PrepareStored(const Tensor& weights, std::vector<float> bias,
                                      const LinearOptions& options);

/// The kernel that serves every format and any m: tiles of rows are dequantised and multiplied by BLAS.
std::unique_ptr<Linear> PrepareTiles(const Tensor& weights, std::vector<float> bias);

}  // namespace vqllm::cpu
