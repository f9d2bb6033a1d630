#pragma once

#include <span>
#include <vector>

#include "vq/checkpoint/gguf.h"
#include "vq/tensor.h"

namespace vqllm {

/// All elements as floats, row-major. Throws Error that names the type where it is not read.
std::vector<float> ReadGgufFloats(const GgufTensor& tensor);

/// A two-dimensional tensor [rows, cols]. F32, F16 and BF16 stay as they are and share the mapped file. Q8_0
/// and Q4_0 become symmetric integers with a scale for 32 columns, which loses nothing. Q4_1 (whose offset is
/// no multiple of its scale), Q4_K and Q6_K become fp32. Throws Error on other types, by name.
///
/// Row r of the result is row `row_order[r]` of the file; an empty order keeps all as they are. Files of
/// llama.cpp hold the rows of q and k in another order than Hugging Face checkpoints.
Tensor ReadGgufMatrix(const GgufTensor& tensor, std::span<const int64_t> row_order = {});

}  // namespace vqllm
