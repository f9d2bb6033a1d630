#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/generate.h"
#include "runtime/model/tokenizer.h"
#include "runtime/perplexity.h"
#include "tests/support/data.h"
#include "vq/base/file.h"
#include "vq/base/json_reader.h"

// The model of bench/models against golden.json, which PyTorch wrote in fp64 from the same weights: another
// implementation of the tokenizer, the decoder and the perplexity.
namespace vqllm {
namespace {

std::filesystem::path Folder() { return test::SourceDir() / "bench/models/pystdlib"; }

const nlohmann::json& Golden() {
  static const nlohmann::json golden =
      ParseJson(ReadTextFile((Folder() / "golden.json").string()), "golden.json");
  return golden;
}

const Model& Embedded() {
  static const Model model = LoadModel(Folder());
  return model;
}

std::vector<int32_t> Ids(const nlohmann::json& list) { return list.get<std::vector<int32_t>>(); }

// A logit is a sum of 256 products behind 8 blocks of sums of up to 768; errors of fp32 (6e-8) that add like
// a random walk stay below 1e-5 of the largest logit, and a wrong rotation or norm is off by far more.
double LogitTolerance() { return 1e-5 * Golden().at("largest_logit").get<double>(); }

TEST(EmbeddedModel, EncodesItsTextsAsTheTrainerDid) {
  const Tokenizer& tokenizer = *Embedded().tokenizer;
  EXPECT_EQ(tokenizer.Encode(Golden().at("prompt").get<std::string>(), {}), Ids(Golden().at("prompt_ids")));
  const std::string text = ReadTextFile((Folder() / "eval.txt").string());
  const std::vector<int32_t> ids = tokenizer.Encode(text, {.add_bos = false});
  const nlohmann::json& eval = Golden().at("eval");
  ASSERT_EQ(ids.size(), eval.at("tokens").get<size_t>());
  EXPECT_EQ(std::vector(ids.begin(), ids.begin() + 64), Ids(eval.at("first")));
  EXPECT_EQ(std::vector(ids.end() - 64, ids.end()), Ids(eval.at("last")));
  EXPECT_EQ(std::accumulate(ids.begin(), ids.end(), int64_t{0}), eval.at("sum").get<int64_t>());
  EXPECT_EQ(tokenizer.Decode(ids), text);
}

TEST(EmbeddedModel, GivesTheLogitsOfPyTorch) {
  Decoder decoder(NewCpuDevice(/*exact=*/true), Embedded(), 64);
  KvCache cache(decoder.device(), decoder.config(), ParseKvCacheSpec("kv-fp32"), 64, 1);
  const std::vector<int32_t> prompt = Ids(Golden().at("prompt_ids"));
  std::vector<float> logits;
  decoder.Run(cache, std::array{DecoderInput{.slot = cache.NewSequence(), .tokens = prompt}}, logits);
  ASSERT_EQ(logits.size(), 2048u);
  const auto expected = Golden().at("logits").get<std::vector<double>>();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(logits[i], expected[i], LogitTolerance()) << i;
  EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(),
            Golden().at("argmax").get<int64_t>());
}

TEST(EmbeddedModel, ContinuesThePromptAsPyTorch) {
  ASSERT_GT(Golden().at("smallest_lead").get<double>(), 100 * LogitTolerance());
  GenerateRequest request;
  request.prompt = Ids(Golden().at("prompt_ids"));
  request.max_tokens = static_cast<int64_t>(Golden().at("ids").size());
  request.sampling.temperature = 0;
  for (const bool exact : {true, false}) {
    Decoder decoder(NewCpuDevice(exact), Embedded(), 64);
    const GenerateResult result =
        Generate(decoder, ParseKvCacheSpec(exact ? "kv-fp32" : "kv-fp16"), *Embedded().tokenizer, {request})
            .front();
    EXPECT_EQ(result.ids, Ids(Golden().at("ids"))) << (exact ? "exact" : "fast");
    EXPECT_EQ(result.text, Golden().at("text").get<std::string>());
  }
}

TEST(EmbeddedModel, HasThePerplexityOfPyTorch) {
  const nlohmann::json& eval = Golden().at("eval");
  const nlohmann::json& golden = eval.at("short");
  std::vector<int32_t> ids =
      Embedded().tokenizer->Encode(ReadTextFile((Folder() / "eval.txt").string()), {.add_bos = false});
  ids.resize(golden.at("tokens").get<size_t>());
  const auto context = eval.at("ctx").get<int64_t>();
  Decoder decoder(NewCpuDevice(/*exact=*/true), Embedded(), context);
  PerplexitySum sum;
  ScoreWindows(
      decoder, ParseKvCacheSpec("kv-fp32"), StridedWindows(ids, FirstToken(Embedded()), context, context),
      [&](std::span<const float> logits, int32_t target) { sum.Add(NegativeLogLikelihood(logits, target)); });
  EXPECT_EQ(sum.tokens(), static_cast<int64_t>(ids.size()));
  // A log-probability is off by at most twice the largest error of a logit.
  EXPECT_NEAR(std::log(sum.perplexity()), std::log(golden.at("ppl").get<double>()), 2 * LogitTolerance());
  // It has learned more of Python than pairs of tokens tell.
  EXPECT_LT(sum.perplexity(), golden.at("bigram_ppl").get<double>() / 3);
}

}  // namespace
}  // namespace vqllm
