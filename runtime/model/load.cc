#include "runtime/model/load.h"

#include "runtime/model/kv_files.h"
#include "runtime/model/model.h"
#include "runtime/model/tokenizer.h"
#include "vq/base/error.h"
#include "vq/checkpoint/tensor_store.h"
#include "vq/checkpoint/weights.h"

namespace vqllm {
namespace fs = std::filesystem;
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kFinalNorm = "model.norm.weight";
constexpr const char* kLmHead = "lm_head.weight";
constexpr const char* kAttentionNorm = "input_layernorm.weight";
constexpr const char* kMlpNorm = "post_attention_layernorm.weight";

std::string LayerPrefix(size_t layer) { return fmt::format("model.layers.{}.", layer); }

bool HasBias(const ModelConfig& config, const LinearSlot& slot) {
  if (slot.member == &LayerWeights::q || slot.member == &LayerWeights::k || slot.member == &LayerWeights::v) {
    return config.attention_bias;
  }
  if (slot.member == &LayerWeights::o) return config.attention_output_bias;
  return config.mlp_bias;
}

std::vector<float> Vector(const TensorStore& store, const std::string& name, int64_t size) {
  const StoredTensor& tensor = store.Get(name);
  RequireShape(tensor, {size});
  return ReadFloats(tensor);
}

Tensor Dense(const StoredTensor& tensor, int64_t rows, int64_t cols) {
  RequireShape(tensor, {rows, cols});
  RequireType(tensor, {StoredType::kF32, StoredType::kF16, StoredType::kBF16});
  const DType dtype = tensor.type == StoredType::kF32   ? DType::kF32
                      : tensor.type == StoredType::kF16 ? DType::kF16
                                                        : DType::kBF16;
  return DenseTensor(dtype, rows, cols, tensor.bytes);
}

/// Lists everything that is missing at once.
void RequireAll(const TensorStore& store, const ModelConfig& config, const QuantizationConfig& quantization) {
  std::vector<std::string> names = {kEmbedding, kFinalNorm};
  if (!config.tied_embeddings) names.push_back(kLmHead);
  for (size_t layer = 0; layer < static_cast<size_t>(config.layers); ++layer) {
    names.push_back(LayerPrefix(layer) + kAttentionNorm);
    names.push_back(LayerPrefix(layer) + kMlpNorm);
    for (const LinearSlot& slot : LinearSlots()) {
      const std::vector<std::string> missing =
          MissingArrays(store, LayerPrefix(layer) + slot.name, quantization);
      names.insert(names.end(), missing.begin(), missing.end());
      if (HasBias(config, slot)) names.push_back(LayerPrefix(layer) + slot.name + ".bias");
    }
  }
  store.Require(names);
}

}  // namespace

std::array<int64_t, 2> LinearShape(const ModelConfig& config, const LinearSlot& slot) {
  if (slot.member == &LayerWeights::q) return {config.q_width(), config.hidden};
  if (slot.member == &LayerWeights::k || slot.member == &LayerWeights::v)
    return {config.kv_width(), config.hidden};
  if (slot.member == &LayerWeights::o) return {config.hidden, config.q_width()};
  if (slot.member == &LayerWeights::down) return {config.hidden, config.intermediate};
  return {config.intermediate, config.hidden};
}

Model LoadHuggingFace(const fs::path& folder) {
  Model model;
  model.config = ReadModelConfig(folder);
  const ModelConfig& config = model.config;
  const TensorStore store = TensorStore::OpenFolder(folder);
  const QuantizationConfig quantization = ReadQuantizationConfig(folder);
  RequireAll(store, config, quantization);
  model.embedding = Dense(store.Get(kEmbedding), config.vocab, config.hidden);
  model.final_norm = Vector(store, kFinalNorm, config.hidden);
  for (size_t index = 0; index < static_cast<size_t>(config.layers); ++index) {
    LayerWeights& layer = model.layers.emplace_back();
    layer.attention_norm = Vector(store, LayerPrefix(index) + kAttentionNorm, config.hidden);
    layer.mlp_norm = Vector(store, LayerPrefix(index) + kMlpNorm, config.hidden);
    for (const LinearSlot& slot : LinearSlots()) {
      const std::string prefix = LayerPrefix(index) + slot.name;
      const auto [rows, cols] = LinearShape(config, slot);
      LinearWeights& linear = layer.*slot.member;
      linear.weights = GetTensor(store, prefix, quantization);
      if (linear.weights.rows != rows || linear.weights.cols != cols) {
        Fail("{}: {}: found a matrix of {} x {}, allowed: {} x {}", store.where(), prefix,
             linear.weights.rows, linear.weights.cols, rows, cols);
      }
      if (HasBias(config, slot)) linear.bias = Vector(store, prefix + ".bias", rows);
    }
  }
  // tie_word_embeddings wins over an lm_head that lies in the file, as in the transformers library.
  model.lm_head =
      config.tied_embeddings ? model.embedding : Dense(store.Get(kLmHead), config.vocab, config.hidden);
  model.tokenizer = LoadTokenizer(folder);
  ReadKvFiles(folder, model);
  return model;
}

int32_t FirstToken(const Model& model) {
  return model.tokenizer && !model.tokenizer->adds_bos() ? -1 : model.config.bos;
}

Model LoadModel(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return LoadHuggingFace(path);
  if (path.extension() == ".gguf") return LoadGguf(path);
  Fail("{}: allowed: a Hugging Face directory or a .gguf file", path.string());
}

}  // namespace vqllm
