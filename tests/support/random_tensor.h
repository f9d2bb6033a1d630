#pragma once

#include <cstdint>
#include <vector>

#include "vq/tensor.h"

namespace vqllm::test {

/// A tensor of any format with random content that ValidateTensor accepts: every code, zero point and sign
/// may occur. Nothing is quantised, so that large formats cost nothing.
Tensor RandomTensor(const Format& format, int64_t rows, int64_t cols, uint64_t seed);

/// Fails the test where the tensors differ in any member; format names count only if `names` is set.
void ExpectSameTensor(const Tensor& found, const Tensor& expected, bool names = true);

/// All weights, [rows, cols].
std::vector<float> DequantizeAll(const Tensor& tensor);

}  // namespace vqllm::test
