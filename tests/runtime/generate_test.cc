#include "runtime/generate.h"

#include <gtest/gtest.h>

#include "runtime/model/tokenizer.h"
#include "tests/runtime/support/tiny_model.h"
#include "tests/support/data.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

class Generating : public testing::Test {
 protected:
  Generating() {
    nlohmann::json config = test::TinyConfig();
    config["eos_token_id"] = nullptr;
    test::WriteTinyModel(dir_.path() / "model", config);
    model_ = LoadModel(dir_.path() / "model");
    decoder_ = std::make_unique<Decoder>(NewCpuDevice(true), model_, 64);
  }

  std::vector<GenerateResult> Run(const std::vector<GenerateRequest>& requests) {
    KvCacheSpec kv = ParseKvCacheSpec("kv-fp16");
    kv.page_tokens = 16;
    std::vector<std::string> streamed(requests.size());
    auto results = Generate(*decoder_, kv, *model_.tokenizer, requests,
                            [&](size_t request, std::string_view piece) { streamed[request] += piece; });
    for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].text, streamed[i]);
    return results;
  }
  static GenerateRequest Greedy(int size, int64_t tokens, uint64_t seed = 1) {
    Rng rng(seed);
    GenerateRequest request;
    request.prompt = {256};
    request.max_tokens = tokens;
    request.sampling.temperature = 0;
    while (static_cast<int>(request.prompt.size()) < size)
      request.prompt.push_back(static_cast<int32_t>(rng.Below(256)));
    return request;
  }

  test::TempDir dir_;
  Model model_;
  std::unique_ptr<Decoder> decoder_;
};

TEST_F(Generating, ChecksPromptsAgainstTheContext) {  // case R01
  EXPECT_THROW(Run({GenerateRequest{}}), Error);
  for (const int size : {1, 15, 16, 17, 32, 48, 63}) {
    const GenerateResult result = Run({Greedy(size, -1)}).front();
    EXPECT_EQ(static_cast<int>(result.ids.size()), 64 - size);
    EXPECT_EQ(result.finish, FinishReason::kLength);
  }
  const GenerateResult full = Run({Greedy(64, -1)}).front();
  EXPECT_TRUE(full.ids.empty());
  EXPECT_EQ(full.finish, FinishReason::kLength);
  for (const int size : {65, 10000}) {
    try {
      Run({Greedy(size, 1)});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(size)), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("64"), std::string::npos);
    }
  }
  EXPECT_EQ(Run({Greedy(1, 3)}).front().ids.size(), 3u);  // the next request is served
  EXPECT_TRUE(Run({Greedy(5, 0)}).front().ids.empty());
}

TEST_F(Generating, ABatchGivesEveryRequestItsOwnTokens) {  // case R02
  std::vector<GenerateRequest> requests;
  for (const int size : {1, 5, 16, 17, 43, 17})
    requests.push_back(Greedy(size, 20, static_cast<uint64_t>(size)));
  requests[1].max_tokens = 3;  // one finishes early
  requests[2].sampling = {.temperature = 1, .seed = 4};
  const std::vector<GenerateResult> together = Run(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const GenerateResult alone = Run({requests[i]}).front();
    EXPECT_EQ(together[i].ids, alone.ids) << i;
    EXPECT_EQ(together[i].text, alone.text) << i;
  }
  EXPECT_EQ(together[3].ids, together[5].ids);
}

TEST_F(Generating, StopsAtAnyEndOfSequenceToken) {  // case R04
  const GenerateResult free = Run({Greedy(5, 20)}).front();
  ASSERT_EQ(free.ids.size(), 20u);
  // Whatever the model emits sixth becomes an end token, as the second of a list.
  size_t at = 5;
  while (std::find(free.ids.begin(), free.ids.begin() + static_cast<int64_t>(at), free.ids[at]) !=
         free.ids.begin() + static_cast<int64_t>(at))
    ++at;
  model_.config.eos = {257, free.ids[at]};
  decoder_ = std::make_unique<Decoder>(NewCpuDevice(true), model_, 64);
  const GenerateResult stopped = Run({Greedy(5, 20)}).front();
  EXPECT_EQ(stopped.ids, std::vector<int32_t>(free.ids.begin(), free.ids.begin() + static_cast<int64_t>(at)));
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  GenerateRequest ignoring = Greedy(5, 20);
  ignoring.ignore_eos = true;
  EXPECT_EQ(Run({ignoring}).front().ids, free.ids);
}

TEST_F(Generating, TextIsValidUtf8AndTheSumOfItsPieces) {  // case S04
  for (uint64_t seed = 0; seed < 20; ++seed) {
    GenerateRequest request = Greedy(3, 40, seed);
    request.sampling = {.temperature = 2, .seed = seed};
    const GenerateResult result = Run({request}).front();
    EXPECT_EQ(result.text, model_.tokenizer->Decode(result.ids)) << seed;
    std::string rest = result.text;
    EXPECT_EQ(TakeWholeCharacters(rest), result.text);
    EXPECT_TRUE(rest.empty());
  }
}

TEST_F(Generating, StopStringsEndTheText) {
  GenerateRequest request = Greedy(5, 30);
  const std::string whole = Run({request}).front().text;
  ASSERT_GT(whole.size(), 8u);
  request.stop = {whole.substr(4, 3), "never appears"};
  const GenerateResult result = Run({request}).front();
  EXPECT_EQ(result.text, whole.substr(0, whole.find(request.stop[0])));
  EXPECT_EQ(result.finish, FinishReason::kStop);
}

}  // namespace
}  // namespace vqllm
