#include "vq/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "vq/base/rng.h"

namespace vqllm {
namespace {

/// Column j of Q, by turning a unit vector.
std::vector<std::vector<float>> Columns(const Hadamard& q) {
  std::vector<std::vector<float>> columns;
  for (int64_t j = 0; j < q.size(); ++j) {
    std::vector<float>& column = columns.emplace_back(static_cast<size_t>(q.size()));
    column[static_cast<size_t>(j)] = 1;
    q.Apply(column.data());
  }
  return columns;
}

class HadamardSizes : public testing::TestWithParam<int> {};

// Q07. Sizes with a Paley order, without one (172, 107), odd, and those of real models (576, 1536 / 4).
TEST_P(HadamardSizes, RotationIsOrthonormalAndUndone) {
  const int64_t n = GetParam();
  const Hadamard q(n);
  ASSERT_EQ(q.size(), n);
  const auto columns = Columns(q);
  const int64_t block = n / q.blocks();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double dot = 0;
      for (int64_t k = 0; k < n; ++k) {
        dot += static_cast<double>(columns[static_cast<size_t>(i)][static_cast<size_t>(k)]) *
               columns[static_cast<size_t>(j)][static_cast<size_t>(k)];
      }
      ASSERT_NEAR(dot, i == j ? 1 : 0, 1e-5) << i << ", " << j;
      // Every element inside a diagonal block has the same size: that is what spreads outliers.
      const float element = std::fabs(columns[static_cast<size_t>(i)][static_cast<size_t>(j)]);
      ASSERT_NEAR(element, i / block == j / block ? 1 / std::sqrt(static_cast<double>(block)) : 0, 1e-6);
    }
  }
  Rng rng(1);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = rng.Normal();
  std::vector<float> y = x;
  q.Apply(y.data());
  q.ApplyTransposed(y.data());
  for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(y[static_cast<size_t>(i)], x[static_cast<size_t>(i)], 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Sizes, HadamardSizes,
                         testing::Values(1, 2, 3, 4, 6, 8, 12, 20, 24, 28, 36, 40, 44, 60, 64, 76, 84, 107,
                                         108, 140, 172, 208, 214, 256, 384, 576));

TEST(Hadamard, MixesAllWhereItSays) {
  EXPECT_EQ(Hadamard(64).paley(), 1);
  EXPECT_EQ(Hadamard(12).paley(), 12);   // q = 11
  EXPECT_EQ(Hadamard(28).paley(), 28);   // 2 (13 + 1)
  EXPECT_EQ(Hadamard(576).paley(), 36);  // 2 (17 + 1)
  EXPECT_EQ(Hadamard(13824).paley(), 108);
  EXPECT_EQ(Hadamard(172).blocks(), 43);  // 171 is 9 * 19, 85 is 5 * 17
  EXPECT_EQ(Hadamard(214).blocks(), 107);
  EXPECT_EQ(Hadamard(107).blocks(), 107);
  for (const int64_t n : {64, 12, 28, 576, 13824}) EXPECT_EQ(Hadamard(n).blocks(), 1) << n;
}

}  // namespace
}  // namespace vqllm
