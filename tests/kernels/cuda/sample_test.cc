// Draws of tokens on a GPU against the definition in double: sort, cut, sum.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "tests/kernels/cuda/support.h"

namespace vqllm {
namespace {

using test::CudaKernel;
using test::RandomFloats;

constexpr int kThreads = 1024;

// As the kernel has it.
struct SampleOptions {
  double uniform = 0;
  float temperature = 1;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
};

class CudaSample : public testing::Test {
 protected:
  void SetUp() override { VQLLM_NEED_NVRTC(); }

  std::vector<int32_t> Run(const std::vector<std::vector<float>>& rows,
                           const std::vector<SampleOptions>& options) {
    if (!gpu_) gpu_ = std::make_unique<CudaKernel>("sample", arch_);
    std::vector<float> logits;
    for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
    const int64_t n = static_cast<int64_t>(rows.size());
    const uint64_t tokens = gpu_->Allocate<int32_t>(n, "tokens");
    gpu_->Launch("sample", n, kThreads, 0, gpu_->Upload(logits, "logits"), static_cast<int>(rows[0].size()),
                 gpu_->Upload(options, "options"), tokens);
    return gpu_->Download<int32_t>(tokens, n);
  }

  const char* arch_ = "sm_80";

 private:
  std::unique_ptr<CudaKernel> gpu_;
};

// CUB compiles for seconds: one test does so for both code generators.
class CudaSampleArchs : public CudaSample, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Archs, CudaSampleArchs, testing::Values("sm_80", "sm_100"));

// expf is off by up to two units in the last place, and so is the weight at a temperature; each weight is cut
// to units of 2^-40 of the largest.
double Slack(size_t vocab) { return 4 * 0x1p-23 + static_cast<double>(vocab) * 0x1p-40; }

// True where `token` may be the draw: one of the sets that top-p may have left within the slack holds it at
// the place `uniform` of the sum by id.
bool MayBe(int32_t token, const std::vector<float>& logits, const SampleOptions& o) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (o.top_k > 0 && static_cast<size_t>(o.top_k) < order.size()) order.resize(static_cast<size_t>(o.top_k));
  const double largest = logits[order[0]];
  const double slack = Slack(logits.size());
  double total = 0;
  for (const int32_t id : order) total += std::exp(logits[id] - largest);
  // The sizes that top-p may leave.
  size_t fewest = order.size();
  size_t most = order.size();
  if (o.top_p < 1) {
    fewest = most = 0;
    double reached = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      if (reached < (o.top_p - slack) * total) fewest = i + 1;
      if (reached < (o.top_p + slack) * total) most = i + 1;
      reached += std::exp(logits[order[i]] - largest);
    }
  }
  for (size_t size = fewest; size <= most; ++size) {
    std::vector<int32_t> kept(order.begin(), order.begin() + static_cast<ptrdiff_t>(size));
    std::erase_if(kept, [&](int32_t id) { return std::exp(logits[id] - largest) < double{o.min_p}; });
    std::ranges::sort(kept);
    double sum = 0;
    for (const int32_t id : kept) sum += std::exp((logits[id] - largest) / o.temperature);
    double before = 0;
    for (const int32_t id : kept) {
      const double share = std::exp((logits[id] - largest) / o.temperature) / sum;
      if (id == token && before - 2 * slack <= o.uniform && o.uniform <= before + share + 2 * slack)
        return true;
      before += share;
    }
  }
  return false;
}

TEST_P(CudaSampleArchs, DrawsWhereTheDefinitionDoes) {
  arch_ = GetParam();
  const std::vector<SampleOptions> kinds = {{},
                                            {0, 0.7f},
                                            {0, 1.5f, 5},
                                            {0, 1, 0, 0.9f},
                                            {0, 1, 0, 1, 0.05f},
                                            {0, 0.8f, 40, 0.95f, 0.02f},
                                            {0, 1, 1},
                                            {0, 1, 0, 1e-6f},
                                            {0, 2, 1000000, 0.5f}};
  Rng rng(5);
  for (const int64_t vocab : {1, 2, 31, 1000, 4099}) {
    std::vector<std::vector<float>> rows;
    std::vector<SampleOptions> options;
    for (const SampleOptions& kind : kinds) {
      for (const int shape : {0, 1, 2}) {
        std::vector<float> logits = RandomFloats(vocab, 3, rng.Next());
        if (shape == 1) {
          for (float& logit : logits) logit = std::round(logit);  // many ties
        }
        if (shape == 2) {  // most tokens forbidden, the rest far below zero
          for (size_t i = 0; i < logits.size(); ++i) {
            logits[i] = i % 7 == 0 ? logits[i] - 1000 : -std::numeric_limits<float>::infinity();
          }
        }
        for (const double uniform : {0.0, rng.Uniform(), 0.99999999}) {
          rows.push_back(logits);
          options.push_back(kind);
          options.back().uniform = uniform;
        }
      }
    }
    const std::vector<int32_t> tokens = Run(rows, options);
    for (size_t r = 0; r < rows.size(); ++r) {
      const SampleOptions& o = options[r];
      ASSERT_TRUE(tokens[r] >= 0 && tokens[r] < vocab) << tokens[r];
      ASSERT_TRUE(MayBe(tokens[r], rows[r], o))
          << fmt::format("vocab {} row {} token {}: u {} t {} k {} p {} min {}", vocab, r, tokens[r],
                         o.uniform, o.temperature, o.top_k, o.top_p, o.min_p);
    }
    EXPECT_EQ(Run(rows, options), tokens) << "the same again";
    const std::vector<int32_t> alone = Run({rows[13]}, {options[13]});
    EXPECT_EQ(alone[0], tokens[13]) << "without its neighbours";
  }
}

TEST_F(CudaSample, TiesGoToTheLowestIds) {
  const std::vector<float> flat(300, 2.5f);
  std::vector<float> zeros = {-1.0f, -0.0f, 0.0f, -0.0f, -2.0f};
  zeros.resize(300, -50.0f);
  const std::vector<int32_t> tokens =
      Run({flat, flat, flat, flat, zeros, zeros}, {{0.999, 1, 3},          // ids 0, 1, 2
                                                   {0.999, 1, 0, 0.125f},  // the first 38
                                                   {0.5, 1},               // the middle
                                                   {0.3, 0},               // the first of all
                                                   {0, 0},                 // both zeros are one value
                                                   {0.999, 1, 3}});
  EXPECT_EQ(tokens, (std::vector<int32_t>{2, 37, 150, 0, 1, 3}));
}

TEST_F(CudaSample, FrequenciesAreTheProbabilities) {
  // Evenly spaced draws hit each token as often as its probability says, give or take one.
  const std::vector<float> logits = {0.5f, -1, 2, 0, 1.5f, -3, 1, 0.25f};
  const int draws = 512;
  std::vector<SampleOptions> options(draws);
  for (int i = 0; i < draws; ++i) options[i] = {(i + 0.5) / draws, 0.75f};
  std::vector<int> hits(logits.size(), 0);
  for (const int32_t token : Run(std::vector<std::vector<float>>(draws, logits), options)) ++hits[token];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit / 0.75);
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(hits[i], draws * std::exp(logits[i] / 0.75) / sum, 1) << i;
  }
}

TEST_F(CudaSample, DamagedRowsGiveMinusOne) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> good = RandomFloats(100, 1, 1);
  good[77] = 9;
  std::vector<float> nan = good;
  nan[50] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> over = good;
  over[99] = infinity;
  const std::vector<float> nothing(100, -infinity);
  EXPECT_EQ(Run({good, nan, over, nothing, nan}, {{0, 0}, {0.5, 1}, {0.5, 1}, {0.5, 1}, {0, 0}}),
            (std::vector<int32_t>{77, -1, -1, -1, -1}));
}

}  // namespace
}  // namespace vqllm
