#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <limits>
#include <vector>

#include "vq/base/rng.h"

namespace vqllm::cpu {
namespace {

// Poison behind the rows of x and y shows what reads or writes past them.
constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int64_t m;
  int64_t n;
  int64_t k;
  bool by_columns;
};

class Gemm : public testing::TestWithParam<Case> {};

TEST_P(Gemm, IsBitExactOnIntegers) {
  const auto [m, n, k, by_columns] = GetParam();
  Rng rng(static_cast<uint64_t>(m * 1000 + n));
  const auto integer = [&] { return static_cast<float>(static_cast<int>(rng.Below(17)) - 8); };
  std::vector<float> x(static_cast<size_t>(m * (k + 3)), kPoison);
  std::vector<float> w(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t c = 0; c < k; ++c) x[static_cast<size_t>(i * (k + 3) + c)] = integer();
  }
  for (float& value : w) value = integer();
  const WeightTile tile{w.data(), n, by_columns ? 1 : k, by_columns ? n : 1};

  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    std::vector<float> packed(static_cast<size_t>(PackedSize(m, k)), kPoison);
    PackTokens({x.data(), m, k, k + 3}, packed.data());
    std::vector<float> y(static_cast<size_t>(m * (n + 1)), kPoison);
    MultiplyTile(packed.data(), k, tile, {y.data(), m, n, n + 1});

    for (int64_t i = 0; i < m; ++i) {
      for (int64_t r = 0; r < n; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < k; ++c)
          sum += x[static_cast<size_t>(i * (k + 3) + c)] *
                 w[static_cast<size_t>(r * tile.row_stride + c * tile.col_stride)];
        EXPECT_EQ(y[static_cast<size_t>(i * (n + 1) + r)], sum) << "token " << i << ", output " << r;
      }
      EXPECT_TRUE(std::isnan(y[static_cast<size_t>(i * (n + 1) + n)])) << "wrote past the outputs";
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Gemm,
                         testing::Values(Case{1, 1, 1, false}, Case{3, 5, 7, false}, Case{16, 8, 32, true},
                                         Case{17, 9, 513, false}, Case{47, 33, 100, true},
                                         Case{48, 64, 512, false}, Case{49, 7, 1025, true},
                                         Case{100, 20, 129, false}, Case{0, 8, 16, false}));

TEST(GemmOrder, ATokenDoesNotDependOnItsNeighbours) {
  constexpr int64_t kTokens = 53;
  constexpr int64_t kDepth = 700;
  constexpr int64_t kOutputs = 19;
  Rng rng(5);
  std::vector<float> x(kTokens * kDepth);
  std::vector<float> w(kOutputs * kDepth);
  for (float& value : x) value = static_cast<float>(rng.Uniform()) - 0.5f;
  for (float& value : w) value = static_cast<float>(rng.Uniform()) - 0.5f;
  const auto multiply = [&](int64_t m) {
    std::vector<float> packed(static_cast<size_t>(PackedSize(m, kDepth)));
    PackTokens({x.data(), m, kDepth}, packed.data());
    std::vector<float> y(static_cast<size_t>(m * kOutputs));
    MultiplyTile(packed.data(), kDepth, {w.data(), kOutputs, kDepth, 1}, {y.data(), m, kOutputs});
    return y;
  };
  const std::vector<float> all = multiply(kTokens);
  for (const int64_t m : {1, 16, 33}) {
    const std::vector<float> some = multiply(m);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << m;
  }
}

}  // namespace
}  // namespace vqllm::cpu
