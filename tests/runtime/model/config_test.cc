#include "runtime/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/support/tiny_model.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

using nlohmann::json;
using test::TinyConfig;
using testing::HasSubstr;

ModelConfig Parse(const json& config, const std::string& generation = "") {
  return ParseModelConfig(config.dump(), generation, "config.json");
}

std::string ErrorOf(const json& config) {
  try {
    Parse(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfig, DerivesHeadDimOnlyWhereItIsAbsent) {  // case I06
  json config = TinyConfig();
  EXPECT_EQ(Parse(config).head_dim, 16);
  config["head_dim"] = nullptr;
  EXPECT_EQ(Parse(config).head_dim, 16);
  config["hidden_size"] = 80;
  config["head_dim"] = 32;
  EXPECT_EQ(Parse(config).head_dim, 32);
  EXPECT_EQ(Parse(config).q_width(), 128);
  config["hidden_size"] = 84;
  config["num_attention_heads"] = 5;
  config["num_key_value_heads"] = 5;
  config["head_dim"] = 16;
  EXPECT_EQ(Parse(config).head_dim, 16);
  config.erase("head_dim");
  EXPECT_THAT(ErrorOf(config), HasSubstr("hidden_size 84 is not a multiple of num_attention_heads 5"));
}

TEST(ModelConfig, ReadsEosFromAListAndLetsTheGenerationConfigWin) {  // case R04
  json config = TinyConfig();
  config["eos_token_id"] = {257, 258};
  EXPECT_EQ(Parse(config).eos, (std::vector<int32_t>{257, 258}));
  EXPECT_EQ(Parse(config, R"({"eos_token_id": 258})").eos, (std::vector<int32_t>{258}));
  EXPECT_EQ(Parse(config, R"({"eos_token_id": [256, 257]})").eos, (std::vector<int32_t>{256, 257}));
  EXPECT_EQ(Parse(config, "{}").eos, (std::vector<int32_t>{257, 258}));
  config["eos_token_id"] = nullptr;
  EXPECT_TRUE(Parse(config).eos.empty());
  config["eos_token_id"] = 259;
  EXPECT_THAT(ErrorOf(config), HasSubstr("eos_token_id: found 259"));
}

TEST(ModelConfig, RefusesWhatTheDecoderDoesNotRun) {
  const auto with = [](const char* field, const json& value) {
    json config = TinyConfig();
    config[field] = value;
    return ErrorOf(config);
  };
  EXPECT_THAT(with("architectures", {"MambaForCausalLM"}),
              HasSubstr("architectures: found [\"MambaForCausalLM\"]"));
  EXPECT_THAT(with("architectures", json::array()), HasSubstr("architectures"));
  EXPECT_THAT(with("hidden_act", "gelu"), HasSubstr("hidden_act: found \"gelu\", allowed: silu"));
  EXPECT_THAT(with("rope_scaling", {{"type", "foo"}, {"factor", 2.0}}), HasSubstr("type: found \"foo\""));
  EXPECT_THAT(with("rope_scaling", {{"rope_type", "linear"}}), HasSubstr("factor: missing"));
  EXPECT_THAT(with("rope_scaling", {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2.0}}),
              HasSubstr("disagree"));
  EXPECT_THAT(with("num_key_value_heads", 3), HasSubstr("a divisor of num_attention_heads, 4"));
  EXPECT_THAT(with("num_hidden_layers", -1), HasSubstr("num_hidden_layers: found -1"));
  EXPECT_THAT(with("hidden_size", 1e40), HasSubstr("hidden_size"));
  EXPECT_THAT(with("hidden_size", "64"), HasSubstr("hidden_size: found \"64\""));
}

TEST(ModelConfig, KnowsWhichArchitecturesHaveBiases) {
  json config = TinyConfig();
  EXPECT_FALSE(Parse(config).attention_bias);
  config["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_TRUE(Parse(config).attention_bias);
  EXPECT_FALSE(Parse(config).attention_output_bias);
  config["architectures"] = {"LlamaForCausalLM"};
  config["attention_bias"] = true;
  EXPECT_TRUE(Parse(config).attention_output_bias);
}

RopeConfig Llama3(double theta, double original) {
  RopeConfig rope;
  rope.theta = theta;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 32;
  rope.original_positions = static_cast<int64_t>(original);
  return rope;
}

/// Pairs kept, blended and divided, as case R05 counts them.
std::array<int, 3> Classes(const RopeConfig& rope, int head_dim) {
  RopeConfig plain = rope;
  plain.scaling = RopeScaling::kNone;
  const std::vector<double> base = RopeFrequencies(plain, head_dim);
  const std::vector<double> scaled = RopeFrequencies(rope, head_dim);
  std::array<int, 3> classes{};
  for (size_t i = 0; i < base.size(); ++i) {
    const double ratio = base[i] / scaled[i];
    ++classes[ratio < 1 + 1e-12 ? 0 : ratio > rope.factor - 1e-9 ? 2 : 1];
  }
  return classes;
}

TEST(Rope, Llama3KeepsHighFrequenciesAndDividesLowOnes) {  // case R05
  EXPECT_EQ(Classes(Llama3(5e5, 8192), 64), (std::array<int, 3>{15, 3, 14}));
  EXPECT_EQ(Classes(Llama3(1e4, 64), 16), (std::array<int, 3>{1, 2, 5}));
}

TEST(Rope, ReadsTheScalingFromEitherKeyAndEitherField) {
  json config = TinyConfig();
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    for (const char* key : {"type", "rope_type"}) {
      json with = config;
      with[field] = {{key, "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 64}};
      EXPECT_EQ(Parse(with).rope.scaling, RopeScaling::kLlama3) << field << key;
      EXPECT_EQ(Parse(with).rope.original_positions, 64);
    }
  }
  config["rope_scaling"] = nullptr;
  EXPECT_EQ(Parse(config).rope.scaling, RopeScaling::kNone);
}

TEST(Rope, YarnKeepsFastPairsDividesSlowOnesAndRaisesTheAttention) {
  RopeConfig rope;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 4;
  rope.original_positions = 4096;
  const std::vector<double> scaled = RopeFrequencies(rope, 128);
  EXPECT_DOUBLE_EQ(scaled[0], 1);
  EXPECT_NEAR(scaled[63], std::pow(10000.0, -126.0 / 128) / 4, 1e-12);
  const cpu::RopeTable table = MakeRopeTable(rope, 128, 2);
  EXPECT_NEAR(table.cos[0], 0.1 * std::log(4.0) + 1, 1e-6);
  EXPECT_NEAR(table.sin[64], std::sin(1.0) * (0.1 * std::log(4.0) + 1), 1e-6);
}

TEST(Rope, LinearDividesEveryFrequency) {
  RopeConfig rope;
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 2;
  EXPECT_EQ(RopeFrequencies(rope, 4), (std::vector<double>{0.5, 0.005}));
}

}  // namespace
}  // namespace vqllm
