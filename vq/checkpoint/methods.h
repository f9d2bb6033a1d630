#pragma once

#include <string>
#include <vector>

#include "vq/checkpoint/quantization_config.h"
#include "vq/checkpoint/safetensors_writer.h"
#include "vq/checkpoint/tensor_store.h"
#include "vq/tensor.h"

// The layouts of quantised matrices, one file each; vq/checkpoint/weights.h chooses among them. Arrays of a
// matrix are named <prefix>.<array>. Readers compare every shape before they allocate, and end with
// ValidateTensor; writers take tensors that ValidateTensor accepts and that must live until the writer's
// Finish().
namespace vqllm::internal {

/// gptq.cc. Integers of any group, symmetric or not, where rows and columns fill whole 32-bit words and a
/// permutation keeps the columns of each group in order (g_idx says in which group a column is, not where).
bool GptqHolds(const Tensor& tensor);
void PutGptq(SafetensorsWriter& writer, const std::string& prefix, const Tensor& tensor);
Tensor GetGptq(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config);

/// awq.cc: the "gemm" layout of AutoAWQ; read only.
Tensor GetAwq(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config);

/// aqlm.cc. One codebook a stage for the whole matrix, equal powers of two of entries, whole subvectors along
/// a row, a scale a row.
bool AqlmHolds(const Tensor& tensor);
void PutAqlm(SafetensorsWriter& writer, const std::string& prefix, const Tensor& tensor);
Tensor GetAqlm(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config);

/// native.cc: every format; papers/format.md.
void PutNative(SafetensorsWriter& writer, const std::string& prefix, const Tensor& tensor);
Tensor GetNative(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config);
std::vector<std::string> NativeArrays(const Format& format);

/// 32-bit words of an I32 or U32 array.
std::vector<uint32_t> ReadWords(const StoredTensor& tensor);

/// out[c, r] = in[r, c].
void TransposeWords(const uint32_t* in, int64_t rows, int64_t cols, uint32_t* out);

}  // namespace vqllm::internal
