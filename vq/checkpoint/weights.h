#pragma once

#include <string>
#include <vector>

#include "vq/checkpoint/quantization_config.h"
#include "vq/checkpoint/safetensors_writer.h"
#include "vq/checkpoint/tensor_store.h"
#include "vq/tensor.h"

namespace vqllm {

/// A matrix of a model and the prefix of its arrays: "model.layers.0.self_attn.q_proj", whose dense form is
/// the array "model.layers.0.self_attn.q_proj.weight".
struct NamedTensor {
  std::string prefix;
  const Tensor* tensor = nullptr;
};

/// How to write these matrices (all of the model's, dense ones included): as GPTQ (gptq_v2) where all
/// quantised ones are integers of one format that it can hold; as AQLM where they are tables of one format
/// that it can hold; else, also where the matrices differ in format, by our own method. kNone where all are
/// dense.
QuantizationConfig ChooseQuantization(const std::vector<NamedTensor>& matrices);

/// Adds the arrays of one matrix to the file. `tensor` must live until writer.Finish(). Dense tensors are
/// always <prefix>.weight.
void PutTensor(SafetensorsWriter& writer, const std::string& prefix, const Tensor& tensor,
               const QuantizationConfig& config);

/// Reads one matrix: <prefix>.weight where that is there (sharing the mapped file), else the arrays of the
/// method. What PutTensor wrote comes back identical, except that methods other than vqllm keep no format
/// names: see CanonicalName. Throws Error that names the array that is missing or wrong, and where the matrix
/// is there both dense and quantised.
Tensor GetTensor(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config);

/// The names of all arrays that GetTensor would look for in vain: lets a loader list everything that a
/// damaged model lacks at once.
std::vector<std::string> MissingArrays(const TensorStore& store, const std::string& prefix,
                                       const QuantizationConfig& config);

}  // namespace vqllm
