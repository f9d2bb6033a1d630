#include <algorithm>
#include <string>

#include "runtime/model/load.h"
#include "runtime/model/tokenizer.h"
#include "vq/base/error.h"
#include "vq/checkpoint/gguf.h"
#include "vq/checkpoint/gguf_tensor.h"

namespace vqllm {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;

/// What differs between the architectures of GGUF that this decoder runs.
struct GgufArchitecture {
  std::string_view name;
  std::string_view hugging_face;
  bool interleaved;  ///< rows of q and k stand as rotary pairs (2j, 2j + 1)
};
constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", true},
    {"qwen2", "Qwen2ForCausalLM", false},
};

const GgufArchitecture& FindArchitecture(const GgufFile& file) {
  const std::string name = file.String("general.architecture");
  for (const GgufArchitecture& known : kArchitectures) {
    if (known.name == name) return known;
  }
  Fail("{}: general.architecture: found \"{}\", allowed: llama, qwen2", file.where(), name);
}

constexpr const char* MatrixName(LinearWeights LayerWeights::*member) {
  if (member == &LayerWeights::q) return "attn_q";
  if (member == &LayerWeights::k) return "attn_k";
  if (member == &LayerWeights::v) return "attn_v";
  if (member == &LayerWeights::o) return "attn_output";
  if (member == &LayerWeights::gate) return "ffn_gate";
  if (member == &LayerWeights::up) return "ffn_up";
  return "ffn_down";
}

RopeConfig ReadRope(const GgufFile& file, const std::string& arch, const ModelConfig& config) {
  RopeConfig rope;
  rope.theta = file.NumberOr(arch + ".rope.freq_base", 10000);
  const int64_t rotated = file.IntOr(arch + ".rope.dimension_count", 1, kMaxSize, config.head_dim);
  if (rotated != config.head_dim) {
    Fail("{}: {}.rope.dimension_count: found {}, allowed: {}, the head size", file.where(), arch, rotated,
         config.head_dim);
  }
  const std::string type = file.StringOr(arch + ".rope.scaling.type", "none");
  if (type == "linear") rope.scaling = RopeScaling::kLinear;
  if (type == "yarn") rope.scaling = RopeScaling::kYarn;
  if (type != "none" && rope.scaling == RopeScaling::kNone) {
    Fail("{}: {}.rope.scaling.type: found \"{}\", allowed: none, linear, yarn", file.where(), arch, type);
  }
  if (rope.scaling != RopeScaling::kNone) {
    rope.factor = file.Number(arch + ".rope.scaling.factor");
    rope.original_positions =
        file.IntOr(arch + ".rope.scaling.original_context_length", 1, kMaxSize, config.max_positions);
    if (!(rope.factor >= 1)) {
      Fail("{}: {}.rope.scaling.factor: found {}, allowed: 1 or more", file.where(), arch, rope.factor);
    }
  }
  if (const GgufTensor* divisors = file.Find("rope_freqs.weight")) {
    for (const float divisor : ReadGgufFloats(*divisors)) rope.frequency_divisors.push_back(divisor);
    if (static_cast<int>(rope.frequency_divisors.size()) != config.head_dim / 2) {
      Fail("{}: found {} values, allowed: {}", divisors->where, rope.frequency_divisors.size(),
           config.head_dim / 2);
    }
  }
  return rope;
}

ModelConfig ReadConfig(const GgufFile& file, const GgufArchitecture& architecture) {
  const std::string arch(architecture.name);
  ModelConfig config;
  config.architecture = architecture.hugging_face;
  config.hidden = file.Int(arch + ".embedding_length", 1, kMaxSize);
  config.intermediate = file.Int(arch + ".feed_forward_length", 1, kMaxSize);
  config.layers = static_cast<int>(file.Int(arch + ".block_count", 1, 4096));
  config.heads = static_cast<int>(file.Int(arch + ".attention.head_count", 1, 65536));
  config.kv_heads = static_cast<int>(file.IntOr(arch + ".attention.head_count_kv", 1, 65536, config.heads));
  const int64_t head_dim = file.IntOr(arch + ".attention.key_length", 2, 1024, config.hidden / config.heads);
  if (config.heads % config.kv_heads != 0 || head_dim < 2 || head_dim % 2 != 0) {
    Fail(
        "{}: {} heads, {} KV heads of {} channels: allowed: KV heads that divide the heads, an even head "
        "size",
        file.where(), config.heads, config.kv_heads, head_dim);
  }
  config.head_dim = static_cast<int>(head_dim);
  config.vocab = file.Get("token_embd.weight").shape.front();
  config.max_positions = file.IntOr(arch + ".context_length", 1, kMaxSize, 2048);
  config.norm_epsilon = static_cast<float>(file.NumberOr(arch + ".attention.layer_norm_rms_epsilon", 1e-5));
  config.rope = ReadRope(file, arch, config);
  config.tied_embeddings = file.Find("output.weight") == nullptr;
  config.attention_bias = file.Find("blk.0.attn_q.bias") != nullptr;
  config.attention_output_bias = file.Find("blk.0.attn_output.bias") != nullptr;
  config.sliding_window = file.IntOr(arch + ".attention.sliding_window", 0, kMaxSize, 0);
  const auto token = [&](const char* key) {
    return static_cast<int32_t>(file.IntOr(key, 0, config.vocab - 1, -1));
  };
  config.bos = token("tokenizer.ggml.bos_token_id");
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const int32_t id = token(key);
    if (id >= 0 && std::find(config.eos.begin(), config.eos.end(), id) == config.eos.end())
      config.eos.push_back(id);
  }
  return config;
}

std::vector<float> Vector(const GgufFile& file, const std::string& name, int64_t size) {
  const GgufTensor& tensor = file.Get(name);
  if (tensor.shape != std::vector<int64_t>{size}) Fail("{}: allowed: {} values", tensor.where, size);
  return ReadGgufFloats(tensor);
}

Tensor Matrix(const GgufFile& file, const std::string& name, int64_t rows, int64_t cols,
              std::span<const int64_t> order = {}) {
  const GgufTensor& tensor = file.Get(name);
  if (tensor.shape != std::vector<int64_t>{rows, cols})
    Fail("{}: allowed: a shape of [{}, {}]", tensor.where, rows, cols);
  return ReadGgufMatrix(tensor, order);
}

/// Row of the file that holds row r of a q or k matrix in Hugging Face's order, where the halves of a rotary
/// pair stand half a head apart.
std::vector<int64_t> PairOrder(int heads, int head_dim) {
  std::vector<int64_t> order;
  for (int64_t head = 0; head < heads; ++head) {
    for (int half = 0; half < 2; ++half) {
      for (int pair = 0; pair < head_dim / 2; ++pair) order.push_back(head * head_dim + 2 * pair + half);
    }
  }
  return order;
}

LinearWeights ReadLinear(const GgufFile& file, const ModelConfig& config,
                         const GgufArchitecture& architecture, const LinearSlot& slot, size_t layer) {
  const bool q = slot.member == &LayerWeights::q;
  std::vector<int64_t> order;
  if (architecture.interleaved && (q || slot.member == &LayerWeights::k)) {
    order = PairOrder(q ? config.heads : config.kv_heads, config.head_dim);
  }
  const auto [rows, cols] = LinearShape(config, slot);
  const std::string prefix = fmt::format("blk.{}.{}", layer, MatrixName(slot.member));
  LinearWeights linear{.weights = Matrix(file, prefix + ".weight", rows, cols, order), .bias = {}};
  if (file.Find(prefix + ".bias")) {
    linear.bias = Vector(file, prefix + ".bias", rows);
    if (!order.empty()) {
      const std::vector<float> stored = linear.bias;
      for (size_t r = 0; r < order.size(); ++r) linear.bias[r] = stored[static_cast<size_t>(order[r])];
    }
  }
  return linear;
}

}  // namespace

Model LoadGguf(const std::filesystem::path& path) {
  const GgufFile file(path);
  const GgufArchitecture& architecture = FindArchitecture(file);
  Model model;
  model.config = ReadConfig(file, architecture);
  const ModelConfig& config = model.config;
  model.embedding = Matrix(file, "token_embd.weight", config.vocab, config.hidden);
  model.final_norm = Vector(file, "output_norm.weight", config.hidden);
  model.lm_head =
      config.tied_embeddings ? model.embedding : Matrix(file, "output.weight", config.vocab, config.hidden);
  for (size_t index = 0; index < static_cast<size_t>(config.layers); ++index) {
    LayerWeights& layer = model.layers.emplace_back();
    layer.attention_norm = Vector(file, fmt::format("blk.{}.attn_norm.weight", index), config.hidden);
    layer.mlp_norm = Vector(file, fmt::format("blk.{}.ffn_norm.weight", index), config.hidden);
    for (const LinearSlot& slot : LinearSlots()) {
      layer.*slot.member = ReadLinear(file, config, architecture, slot, index);
    }
  }
  model.tokenizer = ReadGgufTokenizer(file);
  return model;
}

}  // namespace vqllm
