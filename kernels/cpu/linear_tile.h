#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/linear_kernel.h"

namespace vqllm::cpu {

/// Serves every format and any m, and every machine: tiles of rows are dequantised as the oracle does and
/// multiplied by gemm.h. The last resort: its scalar decoding is slow.
std::unique_ptr<StoredLinear> PrepareTiles(const Tensor& weights, std::vector<float> bias);

}  // namespace vqllm::cpu
