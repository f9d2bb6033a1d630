#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/linear_kernel.h"

namespace vqllm::cpu {

/// Whether PrepareTable serves the tensor: kTable and kLattice, but for tile scopes whose rows cut a strip of
/// 8.
bool ServesTable(const Tensor& weights);

/// Any VQ<v,b,R> and E8P: codes are decoded and multiplied with fp32 activations, eight rows side by side.
std::unique_ptr<StoredLinear> PrepareTable(const Tensor& weights, std::vector<float> bias);

}  // namespace vqllm::cpu
