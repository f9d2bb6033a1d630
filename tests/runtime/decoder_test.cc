#include "runtime/decoder.h"

#include <gtest/gtest.h>

#include "runtime/calibrate.h"
#include "runtime/model/tokenizer.h"
#include "tests/runtime/support/tiny_model.h"
#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/rng.h"

namespace vqllm {
namespace {

using nlohmann::json;

std::vector<int32_t> Tokens(int count, uint64_t seed = 5) {
  Rng rng(seed);
  std::vector<int32_t> tokens = {256};
  while (static_cast<int>(tokens.size()) < count) tokens.push_back(static_cast<int32_t>(rng.Below(259)));
  return tokens;
}

/// All logits of a sequence, fed in pieces of `piece` tokens.
std::vector<float> Logits(Decoder& decoder, const KvCacheSpec& kv, const std::vector<int32_t>& tokens,
                          int64_t piece) {
  KvCache cache(decoder.device(), decoder.config(), kv, decoder.context(), 1);
  const int slot = cache.NewSequence();
  std::vector<float> all;
  std::vector<float> logits;
  for (int64_t done = 0; done < static_cast<int64_t>(tokens.size()); done += piece) {
    const auto part = std::span(tokens).subspan(
        static_cast<size_t>(done),
        std::min(static_cast<size_t>(piece), tokens.size() - static_cast<size_t>(done)));
    decoder.Run(
        cache,
        std::array{DecoderInput{.slot = slot, .tokens = part, .logits = static_cast<int64_t>(part.size())}},
        logits);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

Model Tiny(const json& config, int lm_head = 0) {
  const test::TempDir dir;
  test::WriteTinyModel(dir.path() / "model", config, lm_head);
  return LoadModel(dir.path() / "model");
}

// Sums of up to 128 products through 2 layers in fp32: a few hundred times epsilon of the largest logit.
constexpr double kTolerance = 2e-5;

// What one stored value on the other side of a rounding boundary may change in the largest of the logits that
// see it.
constexpr double kOneCodeFlips = 5e-3;

class DecoderShapes : public testing::TestWithParam<std::pair<const char*, json>> {};

TEST_P(DecoderShapes, MatchTheScalarReference) {
  json config = test::TinyConfig();
  config.merge_patch(GetParam().second);
  const Model model = Tiny(config, config.value("tie_word_embeddings", true) ? 0 : 2);
  Decoder decoder(NewCpuDevice(/*exact=*/true), model, 64);
  const std::vector<int32_t> tokens = Tokens(50);
  const std::vector<double> exact = test::ReferenceLogits(model, tokens);
  for (const int64_t piece : {50, 16, 1}) {
    EXPECT_LT(test::RelativeError(exact, Logits(decoder, ParseKvCacheSpec("kv-fp32"), tokens, piece)),
              kTolerance)
        << piece;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, DecoderShapes,
    testing::Values(
        std::pair{"plain", json::object()}, std::pair{"untied", json{{"tie_word_embeddings", false}}},
        std::pair{"mqa", json{{"num_key_value_heads", 1}}},
        std::pair{"mha", json{{"num_key_value_heads", 4}}},
        std::pair{"head_dim", json{{"hidden_size", 80}, {"head_dim", 32}}},
        std::pair{"odd_hidden", json{{"hidden_size", 84},
                                     {"num_attention_heads", 5},
                                     {"num_key_value_heads", 5},
                                     {"head_dim", 16}}},
        std::pair{"bias", json{{"attention_bias", true}, {"mlp_bias", true}}},
        std::pair{"qwen2", json{{"architectures", {"Qwen2ForCausalLM"}}}},
        std::pair{"window", json{{"architectures", {"MistralForCausalLM"}}, {"sliding_window", 12}}},
        std::pair{"llama3", json{{"rope_scaling",
                                  {{"rope_type", "llama3"},
                                   {"factor", 8.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 16}}}}},
        std::pair{"yarn",
                  json{{"rope_scaling",
                        {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}}}}},
        std::pair{"linear", json{{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}}),
    [](const auto& param) { return param.param.first; });

TEST(Decoder, TurnsPositionsPastTheOriginalContextAsLlama3Says) {  // case R05
  json config = test::TinyConfig();
  config["max_position_embeddings"] = 512;
  const std::vector<int32_t> tokens = Tokens(201);
  const auto last = [&](const json& with) {
    const Model model = Tiny(with);
    Decoder decoder(NewCpuDevice(/*exact=*/true), model, 256);
    std::vector<float> logits = Logits(decoder, ParseKvCacheSpec("kv-fp32"), tokens, 64);
    EXPECT_LT(test::RelativeError(test::ReferenceLogits(model, tokens), logits), kTolerance);
    return std::vector<float>(logits.end() - 259, logits.end());
  };
  const std::vector<float> plain = last(config);
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  EXPECT_GT(test::RelativeError({plain.begin(), plain.end()}, last(config)), 1e-3) << "scaling was ignored";
}

TEST(Decoder, FollowsTheThreeKindsOfTyingWithEveryLmHead) {  // case I05
  const std::vector<int32_t> tokens = Tokens(8);
  const auto logits = [&](const json& tie, int lm_head) {
    json config = test::TinyConfig();
    config["tie_word_embeddings"] = tie;
    if (tie.is_null()) config.erase("tie_word_embeddings");
    const Model model = Tiny(config, lm_head);
    Decoder decoder(NewCpuDevice(true), model, 64);
    return Logits(decoder, ParseKvCacheSpec("kv-fp32"), tokens, 8);
  };
  const std::vector<float> tied = logits(true, 0);
  EXPECT_EQ(logits(true, 1), tied);
  EXPECT_EQ(logits(true, 2), tied);  // tie_word_embeddings wins
  EXPECT_EQ(logits(false, 1), tied);
  EXPECT_NE(logits(false, 2), tied);
  EXPECT_THROW(logits(false, 0), Error);
  EXPECT_EQ(logits(nullptr, 1), tied);
  EXPECT_NE(logits(nullptr, 2), tied);
  EXPECT_THROW(logits(nullptr, 0), Error);
}

TEST(Decoder, GivesASequenceTheSameLogitsAloneAndInABatch) {  // case R02
  const Model model = Tiny(test::TinyConfig());
  Decoder decoder(NewCpuDevice(true), model, 64, 32);
  const KvCacheSpec kv = ParseKvCacheSpec("kv-fp16");
  std::vector<std::vector<int32_t>> prompts;
  for (const int size : {1, 5, 16, 17, 63, 63}) prompts.push_back(Tokens(size, 40));
  KvCache cache(decoder.device(), decoder.config(), kv, 6 * 64, 6);
  std::vector<DecoderInput> inputs;
  for (const auto& prompt : prompts)
    inputs.push_back({.slot = cache.NewSequence(), .tokens = prompt, .logits = 1});
  std::vector<float> together;
  decoder.Run(cache, inputs, together);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<float> alone = Logits(decoder, kv, prompts[i], 64);
    const std::vector<double> last(alone.end() - 259, alone.end());
    EXPECT_LT(test::RelativeError(last, {together.begin() + static_cast<int64_t>(i) * 259,
                                         together.begin() + static_cast<int64_t>(i + 1) * 259}),
              kTolerance);
  }
}

TEST(Decoder, ReusesPagesOfFreedSequences) {
  const Model model = Tiny(test::TinyConfig());
  Decoder decoder(NewCpuDevice(true), model, 64);
  KvCache cache(decoder.device(), decoder.config(), ParseKvCacheSpec("kv-fp16"), 64, 1);
  const std::vector<int32_t> tokens = Tokens(64);
  std::vector<float> first, again;
  for (std::vector<float>* logits : {&first, &again}) {
    const int slot = cache.NewSequence();
    decoder.Run(cache, std::array{DecoderInput{.slot = slot, .tokens = tokens}}, *logits);
    EXPECT_THROW(
        decoder.Run(cache, std::array{DecoderInput{.slot = slot, .tokens = std::span(tokens).first(1)}},
                    *logits),
        Error);
    EXPECT_EQ(cache.Length(slot), 64);
    cache.FreeSequence(slot);
  }
  EXPECT_EQ(first, again);
  EXPECT_THROW(
      decoder.Run(cache,
                  std::array{DecoderInput{.slot = cache.NewSequence(), .tokens = std::vector<int32_t>{259}}},
                  first),
      Error);
}

class KvFormats : public testing::TestWithParam<const char*> {};

TEST_P(KvFormats, GiveTheSameAnswerHoweverAPromptIsCut) {
  const Model model = Tiny(test::TinyConfig());
  Decoder decoder(NewCpuDevice(true), model, 64);
  for (const bool before_rope : {false, true}) {
    KvCacheSpec kv = ParseKvCacheSpec(GetParam());
    kv.keys_before_rope = before_rope;
    kv.window = 5;
    kv.sinks = 2;
    TrainKvCodebooks(decoder, Tokens(2000, 77), 256, {.show_progress = false}, kv);
    const std::vector<int32_t> tokens = Tokens(60);
    const std::vector<float> whole = Logits(decoder, kv, tokens, 60);
    const std::vector<double> exact(whole.begin(), whole.end());
    // K and V of a prompt and of a single token come from different matrix kernels: equal to rounding, which
    // may send a value to the other neighbour among those that the format can store.
    EXPECT_LT(test::RelativeError(exact, Logits(decoder, kv, tokens, 7)), kOneCodeFlips);
    EXPECT_LT(test::RelativeError(exact, Logits(decoder, kv, tokens, 1)), kOneCodeFlips);
  }
}

TEST_P(KvFormats, StayNearTheFp32Cache) {
  const Model model = Tiny(test::TinyConfig());
  Decoder decoder(NewCpuDevice(true), model, 64);
  KvCacheSpec kv = ParseKvCacheSpec(GetParam());
  TrainKvCodebooks(decoder, Tokens(2000, 77), 256, {.show_progress = false}, kv);
  const std::vector<int32_t> tokens = Tokens(60);
  const std::vector<float> whole = Logits(decoder, ParseKvCacheSpec("kv-fp32"), tokens, 60);
  const double error = test::RelativeError({whole.begin(), whole.end()}, Logits(decoder, kv, tokens, 60));
  const bool low_bit = std::string(GetParam()).find("cq") != std::string::npos ||
                       std::string(GetParam()).find("int4") != std::string::npos;
  EXPECT_LT(error, low_bit ? 0.7 : 0.03);
  EXPECT_GT(error, low_bit ? 1e-4 : 0);  // it is in force at all
}

INSTANTIATE_TEST_SUITE_P(All, KvFormats,
                         testing::Values("kv-fp16", "kv-bf16", "kv-int8", "kv-int4", "cq-4", "cq-2",
                                         "kv-int8/cq-2", "cq-4/kv-fp16"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST(KvCache, RefusesFormatsThatItCannotHold) {
  EXPECT_THROW(ParseKvCacheSpec("gptvq-2"), Error);
  EXPECT_THROW(ParseKvCacheSpec("quip-2"), Error);
  EXPECT_THROW(ParseKvCacheSpec("int2-g128"), Error);
  EXPECT_THROW(ParseKvCacheSpec("kv-fp16/nonsense"), Error);
  const Model model = Tiny(test::TinyConfig());
  const auto device = NewCpuDevice();
  EXPECT_THROW(KvCache(*device, model.config, ParseKvCacheSpec("cq-2"), 64, 1), Error);  // no codebooks
  KvCacheSpec wrong = ParseKvCacheSpec("VQ<3,4,1>-head");
  wrong.codebooks.resize(2);
  EXPECT_THROW(KvCache(*device, model.config, wrong, 64, 1), Error);  // 3 does not divide 16
}

}  // namespace
}  // namespace vqllm
