#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/linear_kernel.h"

namespace vqllm::cpu {

/// kInt, any group. Exact: fp32 activations; else 8-bit activations with one scale a block of at most 128
/// columns, products summed in 32-bit integers.
std::unique_ptr<StoredLinear> PrepareInt(const Tensor& weights, std::vector<float> bias, bool exact,
                                         FusedKernel kernel);

}  // namespace vqllm::cpu
