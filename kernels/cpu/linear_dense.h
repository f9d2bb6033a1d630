#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/linear_kernel.h"

namespace vqllm::cpu {

/// kDense: rows are read where they lie (the bytes are shared with the tensor), fp32 sums.
std::unique_ptr<StoredLinear> PrepareDense(const Tensor& weights, std::vector<float> bias,
                                           FusedKernel kernel);

}  // namespace vqllm::cpu
