// Real checkpoints against what other implementations said of them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/generate.h"
#include "runtime/model/tokenizer.h"
#include "runtime/perplexity.h"
#include "tests/runtime/support/tiny_model.h"
#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

namespace fs = std::filesystem;

std::vector<int32_t> Continue(const Model& model, std::vector<int32_t> prompt, int64_t tokens,
                              const char* kv = "kv-fp16") {
  Decoder decoder(NewCpuDevice(), model, 512);
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = tokens;
  request.sampling.temperature = 0;
  return Generate(decoder, ParseKvCacheSpec(kv), *model.tokenizer, {request}).front().ids;
}

std::vector<float> AllLogits(const Model& model, const std::vector<int32_t>& tokens) {
  Decoder decoder(NewCpuDevice(true), model, 512);
  KvCache cache(decoder.device(), model.config, ParseKvCacheSpec("kv-fp32"), 512, 1);
  std::vector<float> logits;
  decoder.Run(
      cache,
      std::array{DecoderInput{
          .slot = cache.NewSequence(), .tokens = tokens, .logits = static_cast<int64_t>(tokens.size())}},
      logits);
  return logits;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

class Stories : public testing::TestWithParam<const char*> {};

TEST_P(Stories, GiveTheGoldenIds) {
  VQLLM_NEED_DATA("stories260K");
  const fs::path data = test::DataDir() / "stories260K";
  const Model model = LoadModel(data / GetParam());
  const auto golden = nlohmann::json::parse(ReadTextFile(data / "golden.json"))["stories260K"]["greedy"];
  for (const auto& entry : golden) {
    const std::vector<int32_t> wanted = entry["ids"];
    const size_t size = entry["n_prompt_tokens"];
    const std::vector<int32_t> prompt = model.tokenizer->Encode(entry["prompt"].get<std::string>(), {});
    EXPECT_EQ(prompt, std::vector<int32_t>(wanted.begin(), wanted.begin() + static_cast<int64_t>(size)));
    const std::vector<int32_t> ids = Continue(model, prompt, static_cast<int64_t>(wanted.size() - size));
    EXPECT_EQ(ids, std::vector<int32_t>(wanted.begin() + static_cast<int64_t>(size), wanted.end()));
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Stories, testing::Values("f32", "f32_sharded", "stories260K-f32.gguf"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST(Stories260K, LogitsAreThoseOfFp64) {
  VQLLM_NEED_DATA("stories260K");
  const fs::path data = test::DataDir() / "stories260K";
  std::ifstream in(data / "stories260K_logits_once_upon_a_time_fp64.txt");
  std::vector<float> exact;
  for (double value; in >> value;) exact.push_back(static_cast<float>(value));
  ASSERT_EQ(exact.size(), 5u * 512);
  for (const char* form : {"f32", "stories260K-f32.gguf"}) {
    EXPECT_LT(LargestDifference(AllLogits(LoadModel(data / form), {1, 403, 407, 261, 378}), exact), 1e-4)
        << form;
  }
}

TEST(Stories260K, PerplexityIsThatOfLlamaCpp) {
  VQLLM_NEED_DATA("text/tinystories_first60000.txt");
  const Model model = LoadModel(test::DataDir() / "stories260K/stories260K-f32.gguf");
  const std::vector<int32_t> text =
      model.tokenizer->Encode(ReadTextFile(test::DataDir() / "text/tinystories_first60000.txt"),
                              {.add_bos = false, .parse_special = false});
  Decoder decoder(NewCpuDevice(), model, 256);
  PerplexitySum sum;
  ScoreWindows(
      decoder, ParseKvCacheSpec("kv-fp16"), LlamaCppWindows(text, 1, 256, 20),
      [&](std::span<const float> logits, int32_t target) { sum.Add(NegativeLogLikelihood(logits, target)); });
  // data/gguf/perplexity.csv; llama.cpp rounds K and V and its products differently.
  EXPECT_NEAR(sum.perplexity(), 6.2809, 0.002);
  EXPECT_NEAR(sum.error(), 0.35724, 0.002);
}

/// The first `count` stories of a text that <|endoftext|> divides, stripped, with ASCII quotes.
std::vector<std::string> FirstStories(std::string text, size_t count) {
  const std::pair<const char*, const char*> quotes[] = {
      {"\u201c", "\""}, {"\u201d", "\""}, {"\u2018", "'"}, {"\u2019", "'"}};
  for (const auto& [curly, plain] : quotes) {
    for (size_t at; (at = text.find(curly)) != std::string::npos;) text.replace(at, strlen(curly), plain);
  }
  const std::string divider = "<|endoftext|>";
  std::vector<std::string> stories;
  for (size_t begin = 0; stories.size() < count;) {
    const size_t end = text.find(divider, begin);
    if (end == std::string::npos) break;
    const std::string story = text.substr(begin, end - begin);
    const size_t first = story.find_first_not_of(" \n");
    stories.push_back(story.substr(first, story.find_last_not_of(" \n") + 1 - first));
    begin = end + divider.size();
  }
  return stories;
}

TEST(Stories260K, PerplexityOfFortyStoriesIsThatOfFp64) {
  VQLLM_NEED_DATA("text/tinystories_sample_2MiB.txt");
  const fs::path data = test::DataDir() / "stories260K";
  const auto golden =
      nlohmann::json::parse(ReadTextFile(data / "golden.json"))["stories260K"]["tinystories_first40"];
  const Model model = LoadModel(data / "f32");
  Decoder decoder(NewCpuDevice(), model, 512);
  PerplexitySum sum;
  for (const std::string& story :
       FirstStories(ReadTextFile(test::DataDir() / "text/tinystories_sample_2MiB.txt"), 40)) {
    std::vector<int32_t> ids = model.tokenizer->Encode(story, {});
    ids.resize(std::min<size_t>(ids.size(), 512));
    const ScoredWindow window = {{ids.begin(), ids.end() - 1}, {ids.begin() + 1, ids.end()}};
    ScoreWindows(decoder, ParseKvCacheSpec("kv-fp32"), {&window, 1},
                 [&](std::span<const float> logits, int32_t target) {
                   sum.Add(NegativeLogLikelihood(logits, target));
                 });
  }
  EXPECT_EQ(sum.tokens(), golden["tokens_scored"].get<int64_t>());
  EXPECT_NEAR(sum.perplexity(), golden["ppl"].get<double>(), 1e-4);
}

/// How far llama.cpp's logits (largest about 12) may be: it rounds the activations of every product to the
/// type that the weights ask for, fp16 (11 bits), bf16 (8 bits) or blocks of 8-bit integers, where we keep
/// fp32.
struct GgufCase {
  const char* name;
  double llama_cpp;
};
class Gguf : public testing::TestWithParam<GgufCase> {};

TEST_P(Gguf, LogitsAreThoseOfLlamaCpp) {
  VQLLM_NEED_DATA("gguf/logits");
  const std::string name = GetParam().name;
  const Model model = LoadModel(test::DataDir() / "gguf" / (name + ".gguf"));
  const std::string raw = ReadTextFile(test::DataDir() / "gguf/logits" / (name + ".logits_8x512_f32.bin"));
  std::vector<float> wanted(raw.size() / 4);
  std::memcpy(wanted.data(), raw.data(), raw.size());
  const std::vector<int32_t> tokens = {1, 403, 407, 261, 378, 432, 383, 286};
  const std::vector<float> found = AllLogits(model, tokens);
  EXPECT_LT(LargestDifference(found, wanted), GetParam().llama_cpp);
  const std::vector<double> exact = test::ReferenceLogits(model, tokens);
  EXPECT_LT(LargestDifference(found, {exact.begin(), exact.end()}), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, Gguf,
    testing::Values(GgufCase{"tinyrandom256-f32", 1e-3}, GgufCase{"tinyrandom256-F16", 0.01},
                    GgufCase{"tinyrandom256-BF16", 0.1}, GgufCase{"tinyrandom256-Q8_0", 0.4},
                    GgufCase{"tinyrandom256-Q4_0", 0.4}, GgufCase{"tinyrandom256-Q4_1", 0.4},
                    GgufCase{"tinyrandom256-Q4_K_M", 0.4}, GgufCase{"tinyrandom256-Q6_K", 0.4}),
    [](const auto& param) {
      std::string name = param.param.name;
      std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
      return name;
    });

class SavedFormats : public testing::TestWithParam<const char*> {};

TEST_P(SavedFormats, LoadAgainWithIdenticalLogits) {
  const test::TempDir dir;
  nlohmann::json config = test::TinyConfig();
  config["hidden_size"] = 128;
  config["intermediate_size"] = 256;
  config["head_dim"] = 32;
  test::WriteTinyModel(dir / "source", config);
  const Model source = LoadModel(dir / "source");
  const Model quantised = QuantizeModel(source, ParseFormat(GetParam()), 1, false).model;
  SaveModel(quantised, dir / "out", dir / "source");
  const Model again = LoadModel(dir / "out");
  const std::vector<int32_t> tokens = {256, 5, 77, 200, 13, 90, 41, 3};
  EXPECT_EQ(AllLogits(again, tokens), AllLogits(quantised, tokens));
  EXPECT_NE(AllLogits(again, tokens), AllLogits(source, tokens));
  EXPECT_EQ(WeightBits(again), WeightBits(quantised));
  EXPECT_EQ(again.tokenizer->Encode("ab", {}), source.tokenizer->Encode("ab", {}));
  EXPECT_THROW(SaveModel(quantised, dir / "out", dir / "source"), Error);  // nothing is written over
}

INSTANTIATE_TEST_SUITE_P(Formats, SavedFormats,
                         testing::Values("fp16", "int8-g128", "int4-g128", "int4-g32-sym", "int3-g128",
                                         "int2-g64", "aqlm-2x8", "gptvq-2", "quip-2", "quip-4", "VQ<4,4,2>",
                                         "VQ<8,4,4>-g128", "VQ<3,5,3>-tile64x96", "VQ<4,8,1>-out"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace_if(
                               name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

}  // namespace
}  // namespace vqllm
