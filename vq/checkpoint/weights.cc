#include "vq/checkpoint/weights.h"

#include <algorithm>
#include <array>
#include <utility>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/checkpoint/methods.h"

namespace vqllm {
namespace internal {

std::vector<uint32_t> ReadWords(const StoredTensor& tensor) {
  if (tensor.type == StoredType::kU32) return ReadInts<uint32_t>(tensor);
  RequireType(tensor, {StoredType::kI32, StoredType::kU32});
  std::vector<uint32_t> words(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < words.size(); ++i) words[i] = tensor.bytes.Load<uint32_t>(i);
  return words;
}

void TransposeWords(const uint32_t* in, int64_t rows, int64_t cols, uint32_t* out) {
  constexpr int64_t kTile = 32;  // a tile of both sides fits in the L1 cache
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t r = r0; r < std::min(r0 + kTile, rows); ++r) {
        for (int64_t c = c0; c < std::min(c0 + kTile, cols); ++c) out[c * rows + r] = in[r * cols + c];
      }
    }
  }
}

}  // namespace internal

namespace {

constexpr std::pair<DType, StoredType> kDenseTypes[] = {
    {DType::kF32, StoredType::kF32}, {DType::kF16, StoredType::kF16}, {DType::kBF16, StoredType::kBF16}};

Tensor ReadDense(const StoredTensor& stored) {
  RequireType(stored, {StoredType::kF32, StoredType::kF16, StoredType::kBF16});
  if (stored.shape.size() != 2 || stored.elements() == 0) {
    Fail("{}: found shape {}, allowed: two dimensions, at least 1 x 1", stored.where,
         ShapeText(stored.shape));
  }
  const auto* row = std::find_if(std::begin(kDenseTypes), std::end(kDenseTypes),
                                 [&](const auto& types) { return types.second == stored.type; });
  return DenseTensor(row->first, stored.shape[0], stored.shape[1], stored.bytes);
}

/// The arrays of a quantised matrix that must be there.
std::vector<std::string> ArraysOf(const QuantizationConfig& config, const std::string& prefix) {
  switch (config.method) {
    case QuantMethod::kNone:
      return {"weight"};
    case QuantMethod::kGptq:
    case QuantMethod::kAwq:
      return {"qweight", "qzeros", "scales"};
    case QuantMethod::kAqlm:
      return {"codes", "codebooks", "scales"};
    case QuantMethod::kVqllm:
      break;
  }
  const auto other = config.overrides.find(prefix);
  return internal::NativeArrays(other != config.overrides.end() ? other->second : config.format);
}

/// Formats that share a quantization_config: GPTQ says in each matrix whether its columns are permuted.
bool AllAlike(const std::vector<const Tensor*>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const Tensor* tensor) {
    Format format = tensor->format;
    format.permutation = tensors[0]->format.permutation;
    return format == tensors[0]->format;
  });
}

}  // namespace

QuantizationConfig ChooseQuantization(const std::vector<NamedTensor>& matrices) {
  QuantizationConfig config;
  std::vector<const Tensor*> quantized;
  for (const auto& [prefix, tensor] : matrices) {
    if (tensor->format.kind == FormatKind::kDense) {
      config.dense_names.push_back(prefix + ".weight");
    } else {
      quantized.push_back(tensor);
      config.act_order = config.act_order || tensor->format.permutation;
      config.quantized_lm_head = config.quantized_lm_head || prefix == "lm_head";
    }
  }
  if (quantized.empty()) return config;
  config.format = quantized[0]->format;
  const auto all = [&](bool (*holds)(const Tensor&)) {
    return AllAlike(quantized) &&
           std::all_of(quantized.begin(), quantized.end(), [&](auto* t) { return holds(*t); });
  };
  if (all(internal::GptqHolds)) {
    config.method = QuantMethod::kGptq;
    config.symmetric = config.format.symmetric;
    config.format.permutation = false;
  } else if (all(internal::AqlmHolds)) {
    config.method = QuantMethod::kAqlm;
  } else {
    config.method = QuantMethod::kVqllm;
    for (const auto& [prefix, tensor] : matrices) {
      const Format& format = tensor->format;
      if (format.kind != FormatKind::kDense && format != config.format) config.overrides[prefix] = format;
    }
  }
  return config;
}

void PutTensor(SafetensorsWriter& writer, const std::string& prefix, const Tensor& tensor,
               const QuantizationConfig& config) {
  if (tensor.format.kind == FormatKind::kDense) {
    const auto* row = std::find_if(std::begin(kDenseTypes), std::end(kDenseTypes),
                                   [&](const auto& types) { return types.first == tensor.format.dtype; });
    return writer.Add(prefix + ".weight", row->second, {tensor.rows, tensor.cols}, tensor.values);
  }
  switch (config.method) {
    case QuantMethod::kGptq:
      return internal::PutGptq(writer, prefix, tensor);
    case QuantMethod::kAqlm:
      return internal::PutAqlm(writer, prefix, tensor);
    case QuantMethod::kVqllm:
      return internal::PutNative(writer, prefix, tensor);
    default:
      VQLLM_CHECK(false, "{}: no writer for method {}", prefix, ToString(config.method));
  }
}

std::vector<std::string> MissingArrays(const TensorStore& store, const std::string& prefix,
                                       const QuantizationConfig& config) {
  std::vector<std::string> missing;
  if (store.Has(prefix + ".weight")) return missing;
  for (const std::string& array : ArraysOf(config, prefix)) {
    const std::string name = prefix + "." + array;
    if (!store.Has(name)) missing.push_back(name);
  }
  return missing;
}

Tensor GetTensor(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config) {
  if (const StoredTensor* dense = store.Find(prefix + ".weight")) {
    const std::string first = prefix + "." + ArraysOf(config, prefix)[0];
    if (config.method != QuantMethod::kNone && store.Has(first)) {
      Fail("{}: also quantised, as {}: allowed: one of both", dense->where, Quoted(first));
    }
    return ReadDense(*dense);
  }
  store.Require(MissingArrays(store, prefix, config));
  switch (config.method) {
    case QuantMethod::kGptq:
      return internal::GetGptq(store, prefix, config);
    case QuantMethod::kAwq:
      return internal::GetAwq(store, prefix, config);
    case QuantMethod::kAqlm:
      return internal::GetAqlm(store, prefix, config);
    case QuantMethod::kVqllm:
      return internal::GetNative(store, prefix, config);
    case QuantMethod::kNone:
      break;
  }
  VQLLM_CHECK(false, "{}: a dense matrix without weight", prefix);
}

}  // namespace vqllm
