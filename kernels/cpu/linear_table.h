#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/linear_kernel.h"

namespace vqllm::cpu {

/// Why PrepareTable cannot serve the tensor; empty: it can. It serves kTable and kLattice, but for tile
/// scopes whose rows cut a strip of 8.
std::string RefuseTable(const Tensor& weights);
std::string TableKernelName(const Tensor& weights);

/// Any VQ<v,b,R> and E8P: codes are decoded and multiplied with fp32 activations, eight rows side by side.
std::unique_ptr<StoredLinear> PrepareTable(const Tensor& weights, std::vector<float> bias,
                                           FusedKernel kernel);

}  // namespace vqllm::cpu
