#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/config.h"
#include "vq/tensor.h"

namespace vqllm {

class Tokenizer;

/// y = x W^T + bias.
struct LinearWeights {
  Tensor weights;
  std::vector<float> bias;  ///< empty or [rows]
};

/// One decoder layer. All matrices are [outputs, inputs].
struct LayerWeights {
  std::vector<float> attention_norm;  ///< [hidden]
  LinearWeights q;                    ///< [heads * head_dim, hidden]
  LinearWeights k;                    ///< [kv_heads * head_dim, hidden]
  LinearWeights v;                    ///< [kv_heads * head_dim, hidden]
  LinearWeights o;                    ///< [hidden, heads * head_dim]
  std::vector<float> mlp_norm;        ///< [hidden]
  LinearWeights gate;                 ///< [intermediate, hidden]
  LinearWeights up;                   ///< [intermediate, hidden]
  LinearWeights down;                 ///< [hidden, intermediate]
};

/// The matrices of a layer with their names in a Hugging Face checkpoint ("self_attn.q_proj"): the one list
/// that loading, saving and quantising walk.
struct LinearSlot {
  const char* name;
  LinearWeights LayerWeights::*member;
};
const std::vector<LinearSlot>& LinearSlots();

/// Codebooks of one layer's KV cache: for each stage as in KvSide::codebooks.
struct KvCodebooks {
  std::vector<std::vector<Half>> key;
  std::vector<std::vector<Half>> value;
};

/// How the KV cache of a model is stored.
struct KvCacheSpec {
  std::string name = "kv-fp16";  ///< as the user wrote it
  Format key;                    ///< default: fp16
  Format value;
  bool keys_before_rope = false;  ///< keys are stored unrotated; codebooks belong to that space
  int sinks = 0;                  ///< first tokens of a sequence kept as fp16
  int window = 0;                 ///< most recent tokens kept as fp16
  int page_tokens = 32;
  std::vector<KvCodebooks> codebooks;  ///< [layers] where a side is VQ, else empty
};

/// A model in host memory: what checkpoints hold and devices load.
struct Model {
  ModelConfig config;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null where the checkpoint has none
  Tensor embedding;                            ///< [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  ///< [hidden]
  Tensor lm_head;                 ///< [vocab, hidden]; shares the embedding's values where tied
  KvCacheSpec kv;                 ///< the KV cache that the checkpoint was quantised for
};

/// The token that begins every text of this model: BOS where its tokenizer adds one (or it has no tokenizer),
/// else -1.
int32_t FirstToken(const Model& model);

/// Loads a Hugging Face directory (dense, GPTQ, AQLM or vqllm; one or many shards) or a .gguf file. Throws
/// Error that names file and tensor.
Model LoadModel(const std::filesystem::path& path);

/// Writes a Hugging Face directory that LoadModel reads back with identical logits. Whole or not at all;
/// throws Error where `folder` exists and is not empty. `source` (may be empty) is the directory whose
/// tokenizer files are copied.
void SaveModel(const Model& model, const std::filesystem::path& folder, const std::filesystem::path& source);

/// The same model with every matrix of its layers in `format`. Embedding, norms and lm_head stay as they are,
/// as GPTQ, AWQ and AQLM leave them.
struct ModelQuantization {
  Model model;
  double relative_mse = 0;    ///< over all matrices, weighted by their energy
  double effective_bits = 0;  ///< over all matrices
  int64_t zero_groups = 0;    ///< groups of weights that are all zero
};
ModelQuantization QuantizeModel(const Model& model, const Format& format, uint64_t seed, bool show_progress);

/// Bytes of all weights as stored, the embedding counted once where tied.
int64_t ModelBytes(const Model& model);

/// Bits for one weight of the layers' matrices, all overheads counted.
double WeightBits(const Model& model);

}  // namespace vqllm
