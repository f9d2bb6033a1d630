#include "runtime/model/config.h"

#include <cmath>

#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/base/json_reader.h"

namespace vqllm {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;

/// What differs between the architectures that share this decoder.
struct Architecture {
  std::string_view name;
  bool attention_bias;  ///< q, k and v have biases where the config does not say
  bool sliding_window;  ///< the field of that name is in force where the config does not say
};
constexpr Architecture kArchitectures[] = {
    {"LlamaForCausalLM", false, false},
    {"MistralForCausalLM", false, true},
    {"Qwen2ForCausalLM", true, false},
};

const Architecture& FindArchitecture(const JsonReader& reader) {
  const nlohmann::json& list = reader.Raw("architectures");
  const std::string name =
      list.is_array() && list.size() == 1 && list[0].is_string() ? list[0].get<std::string>() : "";
  for (const Architecture& known : kArchitectures) {
    if (known.name == name) return known;
  }
  std::string names;
  for (const Architecture& known : kArchitectures)
    names += fmt::format("{}[\"{}\"]", names.empty() ? "" : ", ", known.name);
  reader.Refuse("architectures", names);
}

/// `rope_scaling` of older files, `rope_parameters` of newer ones; the kind stands under `rope_type` or
/// `type`.
void ReadRopeScaling(const JsonReader& reader, RopeConfig& rope) {
  rope.theta = reader.Has("theta") ? reader.Number("theta", 1, 1e12)
                                   : reader.NumberOr("rope_theta", 1, 1e12, rope.theta);
  if (!reader.Has("rope_type") && !reader.Has("type")) {
    if (reader.Has("factor")) reader.Raw("rope_type");  // a factor of nothing: says that rope_type is missing
    return;
  }
  if (reader.Has("rope_type") && reader.Has("type") && reader.String("rope_type") != reader.String("type")) {
    Fail("{}: rope_type \"{}\" and type \"{}\" disagree, allowed: one of them, or both alike", reader.where(),
         reader.String("rope_type"), reader.String("type"));
  }
  const std::string_view key = reader.Has("rope_type") ? "rope_type" : "type";
  constexpr RopeScaling kKinds[] = {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kLlama3,
                                    RopeScaling::kYarn};
  rope.scaling = kKinds[reader.Choice(key, {"default", "linear", "llama3", "yarn"})];
  if (rope.scaling == RopeScaling::kNone) return;
  rope.factor = reader.Number("factor", 1, 1e6);
  if (rope.scaling == RopeScaling::kLlama3) {
    rope.original_positions = reader.Int("original_max_position_embeddings", 1, kMaxSize);
    rope.low_frequency = reader.Number("low_freq_factor", 1e-6, 1e6);
    rope.high_frequency = reader.Number("high_freq_factor", 1e-6, 1e6);
    if (rope.high_frequency <= rope.low_frequency) {
      reader.Refuse("high_freq_factor", fmt::format("more than low_freq_factor, {}", rope.low_frequency));
    }
  }
  if (rope.scaling == RopeScaling::kYarn) {
    rope.original_positions = reader.IntOr("original_max_position_embeddings", 1, kMaxSize, 0);
    rope.beta_fast = reader.NumberOr("beta_fast", 1e-6, 1e6, 32);
    rope.beta_slow = reader.NumberOr("beta_slow", 1e-6, 1e6, 1);
    rope.attention_factor = reader.NumberOr("attention_factor", 1e-6, 1e6, 0);
  }
}

RopeConfig ReadRope(const JsonReader& reader, int64_t max_positions) {
  RopeConfig rope;
  rope.theta = reader.NumberOr("rope_theta", 1, 1e12, rope.theta);
  for (const std::string_view field : {"rope_scaling", "rope_parameters"}) {
    if (reader.Has(field)) ReadRopeScaling(reader.Object(field), rope);
  }
  if (rope.scaling == RopeScaling::kYarn && rope.original_positions == 0)
    rope.original_positions = max_positions;
  if (reader.NumberOr("partial_rotary_factor", 0, 1, 1) != 1) reader.Refuse("partial_rotary_factor", "1");
  return rope;
}

std::vector<int32_t> TokenIds(const JsonReader& reader, std::string_view field, int64_t vocab) {
  std::vector<int32_t> ids;
  if (!reader.Has(field)) return ids;
  for (const int64_t id : reader.Ints(field, 0, vocab - 1)) ids.push_back(static_cast<int32_t>(id));
  return ids;
}

int ReadHeadDim(const JsonReader& reader, const ModelConfig& config) {
  if (reader.Has("head_dim")) return static_cast<int>(reader.Int("head_dim", 2, 1024));
  if (config.hidden % config.heads != 0) {
    Fail("{}: hidden_size {} is not a multiple of num_attention_heads {}, and there is no head_dim",
         reader.where(), config.hidden, config.heads);
  }
  return static_cast<int>(config.hidden / config.heads);
}

void ReadSpecialTokens(const JsonReader& reader, ModelConfig& config) {
  const std::vector<int32_t> bos = TokenIds(reader, "bos_token_id", config.vocab);
  if (!bos.empty()) config.bos = bos.front();
  const std::vector<int32_t> eos = TokenIds(reader, "eos_token_id", config.vocab);
  if (!eos.empty()) config.eos = eos;
}

}  // namespace

ModelConfig ParseModelConfig(const std::string& config_text, const std::string& generation_text,
                             const std::string& where) {
  const nlohmann::json parsed = ParseJson(config_text, where);
  const JsonReader reader(parsed, where);
  const Architecture& architecture = FindArchitecture(reader);

  ModelConfig config;
  config.architecture = architecture.name;
  config.hidden = reader.Int("hidden_size", 1, kMaxSize);
  config.intermediate = reader.Int("intermediate_size", 1, kMaxSize);
  config.layers = static_cast<int>(reader.Int("num_hidden_layers", 1, 4096));
  config.heads = static_cast<int>(reader.Int("num_attention_heads", 1, 65536));
  config.kv_heads = static_cast<int>(reader.IntOr("num_key_value_heads", 1, 65536, config.heads));
  if (config.heads % config.kv_heads != 0) {
    reader.Refuse("num_key_value_heads", fmt::format("a divisor of num_attention_heads, {}", config.heads));
  }
  config.head_dim = ReadHeadDim(reader, config);
  if (config.head_dim % 2 != 0) {
    Fail("{}: head_dim: found {}, allowed: an even number (rotary pairs)", reader.where(), config.head_dim);
  }
  config.vocab = reader.Int("vocab_size", 1, kMaxSize);
  config.max_positions = reader.IntOr("max_position_embeddings", 1, kMaxSize, 2048);
  config.norm_epsilon = static_cast<float>(reader.NumberOr("rms_norm_eps", 0, 1, 1e-6));
  reader.Has("hidden_act") ? reader.Choice("hidden_act", {"silu", "swish"}) : 0;
  config.rope = ReadRope(reader, config.max_positions);
  config.tied_embeddings = reader.BoolOr("tie_word_embeddings", false);
  config.attention_bias = reader.BoolOr("attention_bias", architecture.attention_bias);
  // Llama's attention_bias covers o_proj too; Qwen2 has biases on q, k and v alone.
  config.attention_output_bias = config.attention_bias && architecture.name == "LlamaForCausalLM";
  config.mlp_bias = reader.BoolOr("mlp_bias", false);
  if (reader.BoolOr("use_sliding_window", architecture.sliding_window) && reader.Has("sliding_window")) {
    config.sliding_window = reader.Int("sliding_window", 1, INT64_MAX);
  }
  ReadSpecialTokens(reader, config);
  if (!generation_text.empty()) {
    const std::string file = "generation_config.json";
    const nlohmann::json generation = ParseJson(generation_text, file);
    ReadSpecialTokens(JsonReader(generation, file), config);
  }
  return config;
}

ModelConfig ReadModelConfig(const std::filesystem::path& folder) {
  const std::filesystem::path generation = folder / "generation_config.json";
  return ParseModelConfig(ReadTextFile(folder / "config.json"),
                          std::filesystem::exists(generation) ? ReadTextFile(generation) : "",
                          (folder / "config.json").string());
}

}  // namespace vqllm
