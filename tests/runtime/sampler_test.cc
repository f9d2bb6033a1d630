#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "vq/base/error.h"

namespace vqllm {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::map<int32_t, int> Draw(const SamplingOptions& options, const std::vector<float>& logits, int times) {
  Sampler sampler(options);
  std::map<int32_t, int> counts;
  for (int i = 0; i < times; ++i) ++counts[sampler.Sample(logits)];
  return counts;
}

TEST(Sampler, TemperatureZeroTakesTheLowestIdOfTheLikeliest) {
  EXPECT_EQ(Sampler({.temperature = 0}).Sample(std::vector<float>{1, 3, 3, 2}), 1);
}

TEST(Sampler, FollowsTheProbabilities) {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f), -kInf};
  const auto counts = Draw({.seed = 3}, logits, 8000);
  EXPECT_EQ(counts.count(3), 0u);
  // 8000 draws: one standard deviation is below 45.
  EXPECT_NEAR(counts.at(0), 1000, 180);
  EXPECT_NEAR(counts.at(1), 2000, 180);
  EXPECT_NEAR(counts.at(2), 5000, 180);
}

TEST(Sampler, TemperatureSharpensAndFlattens) {
  const std::vector<float> logits = {0, std::log(2.0f)};
  EXPECT_NEAR(Draw({.temperature = 0.5f, .seed = 1}, logits, 5000)[1], 4000, 150);  // odds 4 to 1
  EXPECT_NEAR(Draw({.temperature = 1000.0f / 10, .seed = 1}, logits, 5000)[1], 2517, 180);
}

TEST(Sampler, FiltersKeepWhatTheyPromise) {
  const std::vector<float> logits = {std::log(4.0f), std::log(3.0f), std::log(2.0f), std::log(1.0f)};
  EXPECT_EQ(Draw({.top_k = 2, .seed = 1}, logits, 500).size(), 2u);
  EXPECT_EQ(Draw({.top_p = 0.39f, .seed = 1}, logits, 500).size(), 1u);  // reached by the first, 0.4, alone
  EXPECT_EQ(Draw({.top_p = 0.41f, .seed = 1}, logits, 500).size(), 2u);
  EXPECT_EQ(Draw({.min_p = 0.49f, .seed = 1}, logits, 500).size(), 3u);  // 2 of 4 is half as likely
  EXPECT_EQ(Draw({.top_k = 10, .top_p = 1, .min_p = 0, .seed = 1}, logits, 500).size(), 4u);
}

TEST(Sampler, ASeedGivesTheSameTokensWhateverElseIsSampled) {
  const std::vector<float> logits = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f};
  Sampler alone({.seed = 9});
  Sampler first({.seed = 9});
  Sampler neighbour({.seed = 10});
  for (int i = 0; i < 50; ++i) {
    neighbour.Sample(logits);
    EXPECT_EQ(alone.Sample(logits), first.Sample(logits));
  }
}

TEST(Sampler, RefusesNanAndOptionsOutOfRange) {
  EXPECT_THROW(Sampler({}).Sample(std::vector<float>{0, std::nanf("")}), Error);
  EXPECT_THROW(Sampler({.temperature = 0}).Sample(std::vector<float>{std::nanf(""), 0}), Error);
  EXPECT_THROW(Sampler({}).Sample(std::vector<float>{-kInf, -kInf}), Error);
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.temperature = std::nanf("")}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
  EXPECT_THROW(Sampler({.min_p = 1.5f}), Error);
}

TEST(LogSoftmax, SumsToOneEvenForHugeLogits) {
  const std::vector<float> logits = {60000, 59999, -60000};
  std::vector<float> out(3);
  LogSoftmax(logits, out);
  EXPECT_NEAR(std::exp(out[0]) + std::exp(out[1]) + std::exp(out[2]), 1, 1e-6);
  EXPECT_NEAR(out[0] - out[1], 1, 1e-6);
}

}  // namespace
}  // namespace vqllm
