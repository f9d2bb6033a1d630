#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/linear_kernel.h"

namespace vqllm::cpu {

/// Why PrepareShuffle cannot serve the tensor; empty: it can. It serves kTable along inputs, at most 16
/// entries a stage, codebooks that do not depend on the row, little padding.
std::string RefuseShuffle(const Tensor& weights);

/// 16-entry tables looked up by byte shuffles: for each subvector and stage the 16 products of the entries
/// with x are rounded to 8 bits, one scale a block of columns, and 64 rows look theirs up at once.
std::unique_ptr<StoredLinear> PrepareShuffle(const Tensor& weights, std::vector<float> bias,
                                             FusedKernel kernel);

}  // namespace vqllm::cpu
