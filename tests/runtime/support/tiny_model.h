#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/model/model.h"

namespace vqllm::test {

/// The base fixture of the tests: hidden 64, 2 layers, 4 heads, 2 KV heads, head_dim 16, intermediate 128, a
/// byte-level vocabulary of 256 bytes and 3 special tokens (<s> 256, </s> 257, <x> 258), seeded random
/// weights.
nlohmann::json TinyConfig();

/// Writes the fixture with a config that differs from TinyConfig() as the test wants: config.json,
/// model.safetensors (fp32), tokenizer.json. Shapes follow the config. `lm_head`: 0 absent, 1 equal to the
/// embedding, 2 different.
void WriteTinyModel(const std::filesystem::path& folder, const nlohmann::json& config, int lm_head = 0,
                    uint64_t seed = 1);

/// Logits [tokens, vocab] of a whole sequence by the definition of a Llama decoder: scalar, double, no KV
/// cache.
std::vector<double> ReferenceLogits(const Model& model, const std::vector<int32_t>& tokens);

/// The largest difference over the largest magnitude.
double RelativeError(const std::vector<double>& exact, const std::vector<float>& found);

}  // namespace vqllm::test
