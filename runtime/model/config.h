#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/cpu/kv_layer.h"

namespace vqllm {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

/// Rotary embedding as config.json states it.
struct RopeConfig {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  int64_t original_positions = 0;                ///< kLlama3 and kYarn: context before scaling
  double low_frequency = 1, high_frequency = 4;  ///< kLlama3
  double beta_fast = 32, beta_slow = 1;          ///< kYarn
  std::vector<double>
      frequency_divisors;       ///< [head_dim / 2] on top of the scaling; empty: none (rope_freqs of GGUF)
  double attention_factor = 0;  ///< kYarn: 0 = 0.1 ln(factor) + 1
};

/// A decoder of the Llama family: Llama 1-3, CodeLlama, Mistral, Qwen2, SmolLM.
struct ModelConfig {
  std::string architecture;  ///< LlamaForCausalLM, MistralForCausalLM or Qwen2ForCausalLM
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;
  float norm_epsilon = 1e-5f;
  RopeConfig rope;
  bool tied_embeddings = false;
  bool attention_bias = false;         ///< biases of q, k and v
  bool attention_output_bias = false;  ///< bias of o
  bool mlp_bias = false;
  int64_t sliding_window = 0;  ///< 0: none
  int32_t bos = -1;            ///< -1: none
  std::vector<int32_t> eos;    ///< generation stops at any of them

  int64_t q_width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
};

/// Reads config.json, and eos and bos ids of generation_config.json beside it where that has them (it wins,
/// as in Hugging Face's generate). Throws Error on unknown architectures, rope types, activations, and on
/// shapes that contradict each other.
ModelConfig ReadModelConfig(const std::filesystem::path& folder);

/// The same from the text of the two files (`generation` may be empty); `where` begins errors.
ModelConfig ParseModelConfig(const std::string& config, const std::string& generation,
                             const std::string& where);

/// Inverse frequencies of the head_dim / 2 pairs, in double, scaling applied. Llama-3 scaling keeps
/// wavelengths shorter than original_positions / high_frequency, divides those longer than original_positions
/// / low_frequency by the factor, and blends between.
std::vector<double> RopeFrequencies(const RopeConfig& rope, int head_dim);

/// Cosines and sines of the first `positions` positions.
cpu::RopeTable MakeRopeTable(const RopeConfig& rope, int head_dim, int64_t positions);

}  // namespace vqllm
