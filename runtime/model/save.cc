#include <nlohmann/json.hpp>

#include "runtime/model/kv_files.h"
#include "runtime/model/model.h"
#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/checkpoint/weights.h"

namespace vqllm {
namespace fs = std::filesystem;
namespace {

// What a tokenizer may consist of, in the order of LoadTokenizer, and what generation reads beside it.
constexpr const char* kCopied[] = {"tokenizer.json",      "tokenizer.model",       "tokenizer.bin",
                                   "tok512.bin",          "tokenizer_config.json", "special_tokens_map.json",
                                   "chat_template.jinja", "generation_config.json"};

nlohmann::ordered_json RopeJson(const RopeConfig& rope) {
  switch (rope.scaling) {
    case RopeScaling::kNone:
      return nullptr;
    case RopeScaling::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeScaling::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_frequency},
              {"high_freq_factor", rope.high_frequency},
              {"original_max_position_embeddings", rope.original_positions}};
    case RopeScaling::kYarn: {
      nlohmann::ordered_json json = {{"rope_type", "yarn"},
                                     {"factor", rope.factor},
                                     {"original_max_position_embeddings", rope.original_positions},
                                     {"beta_fast", rope.beta_fast},
                                     {"beta_slow", rope.beta_slow}};
      if (rope.attention_factor > 0) json["attention_factor"] = rope.attention_factor;
      return json;
    }
  }
  return nullptr;
}

constexpr const char* kModelTypes[][2] = {
    {"LlamaForCausalLM", "llama"}, {"MistralForCausalLM", "mistral"}, {"Qwen2ForCausalLM", "qwen2"}};

nlohmann::ordered_json ConfigJson(const ModelConfig& c) {
  nlohmann::ordered_json json = {{"architectures", {c.architecture}}};
  for (const auto& [architecture, type] : kModelTypes) {
    if (c.architecture == architecture) json["model_type"] = type;
  }
  json["hidden_size"] = c.hidden;
  json["intermediate_size"] = c.intermediate;
  json["num_hidden_layers"] = c.layers;
  json["num_attention_heads"] = c.heads;
  json["num_key_value_heads"] = c.kv_heads;
  json["head_dim"] = c.head_dim;
  json["vocab_size"] = c.vocab;
  json["max_position_embeddings"] = c.max_positions;
  json["rms_norm_eps"] = c.norm_epsilon;
  json["rope_theta"] = c.rope.theta;
  json["rope_scaling"] = RopeJson(c.rope);
  json["hidden_act"] = "silu";
  json["tie_word_embeddings"] = c.tied_embeddings;
  json["attention_bias"] = c.attention_bias;
  json["mlp_bias"] = c.mlp_bias;
  if (c.sliding_window > 0) {
    json["use_sliding_window"] = true;
    json["sliding_window"] = c.sliding_window;
  } else {
    json["sliding_window"] = nullptr;
  }
  if (c.bos >= 0) json["bos_token_id"] = c.bos;
  if (!c.eos.empty()) json["eos_token_id"] = c.eos;
  return json;
}

void AddVector(SafetensorsWriter& writer, const std::string& name, const std::vector<float>& values) {
  writer.Add(name, {static_cast<int64_t>(values.size())}, values);
}

void WriteWeights(const Model& model, const QuantizationConfig& quantization, const fs::path& file) {
  SafetensorsWriter writer(file);
  PutTensor(writer, "model.embed_tokens", model.embedding, {});
  if (!model.config.tied_embeddings) PutTensor(writer, "lm_head", model.lm_head, {});
  AddVector(writer, "model.norm.weight", model.final_norm);
  for (size_t layer = 0; layer < model.layers.size(); ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    AddVector(writer, prefix + "input_layernorm.weight", model.layers[layer].attention_norm);
    AddVector(writer, prefix + "post_attention_layernorm.weight", model.layers[layer].mlp_norm);
    for (const LinearSlot& slot : LinearSlots()) {
      const LinearWeights& linear = model.layers[layer].*slot.member;
      PutTensor(writer, prefix + slot.name, linear.weights, quantization);
      if (!linear.bias.empty()) AddVector(writer, prefix + slot.name + ".bias", linear.bias);
    }
  }
  writer.Finish();
}

void CopyTokenizer(const fs::path& source, const fs::path& folder) {
  for (const char* name : kCopied) {
    // llama2.c keeps one tokenizer for several models, a folder up.
    for (const fs::path& from : {source / name, source.parent_path() / name}) {
      const bool shared = from.parent_path() != source;
      if (shared && fs::path(name).extension() != ".bin") continue;
      if (!fs::exists(from) || fs::exists(folder / name)) continue;
      std::error_code error;
      fs::copy_file(from, folder / name, error);
      if (error) Fail("{}: cannot copy: {}", from.string(), error.message());
    }
  }
}

}  // namespace

void SaveModel(const Model& model, const fs::path& folder, const fs::path& source) {
  if (!model.config.rope.frequency_divisors.empty()) {
    Fail("{}: rope_freqs of a GGUF file has no place in a config.json", source.string());
  }
  std::vector<NamedTensor> matrices;
  for (size_t layer = 0; layer < model.layers.size(); ++layer) {
    for (const LinearSlot& slot : LinearSlots()) {
      matrices.push_back(
          {fmt::format("model.layers.{}.{}", layer, slot.name), &(model.layers[layer].*slot.member).weights});
    }
  }
  const QuantizationConfig quantization = ChooseQuantization(matrices);
  NewFolder out(folder);
  WriteWeights(model, quantization, out.path() / "model.safetensors");
  nlohmann::ordered_json config = ConfigJson(model.config);
  if (quantization.method != QuantMethod::kNone) {
    config["quantization_config"] = nlohmann::ordered_json::parse(ToJson(quantization));
  }
  WriteFileAtomically(out.path() / "config.json", config.dump(1) + "\n");
  WriteKvFiles(model, out.path());
  if (fs::is_directory(source)) {
    CopyTokenizer(source.has_filename() ? source : source.parent_path(), out.path());
  } else if (source.extension() == ".gguf") {
    WriteVocabulary(source, out.path() / kVocabularyFile);
  }
  out.Commit();
}

}  // namespace vqllm
