#include "kernels/cpu/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "vq/base/parallel.h"
#include "vq/base/rng.h"

namespace vqllm::cpu {
namespace {

constexpr int64_t kWidths[] = {1, 3, 15, 16, 17, 64, 1000};

std::vector<float> Random(int64_t n, float scale = 1) {
  Rng rng(static_cast<uint64_t>(n));
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = scale * rng.Normal();
  return x;
}

TEST(RmsNorm, MatchesSumsInDoubleInPlaceAndNot) {
  for (const int64_t width : kWidths) {
    for (const int64_t rows : {1, 3, 40}) {
      const std::vector<float> x = Random(rows * width, 3);
      const std::vector<float> weight = Random(width);
      std::vector<float> y(x.size());
      RmsNorm({x.data(), rows, width}, weight, 1e-5f, {y.data(), rows, width});
      for (int64_t t = 0; t < rows; ++t) {
        double sum = 0;
        for (int64_t i = 0; i < width; ++i) sum += std::pow(double{x[static_cast<size_t>(t * width + i)]}, 2);
        const double factor = 1 / std::sqrt(sum / static_cast<double>(width) + 1e-5);
        for (int64_t i = 0; i < width; ++i) {
          const double wanted =
              x[static_cast<size_t>(t * width + i)] * factor * weight[static_cast<size_t>(i)];
          // The sum of squares is a chain of all-positive terms; the root halves its error; five more
          // roundings.
          EXPECT_NEAR(y[static_cast<size_t>(t * width + i)], wanted,
                      std::fabs(wanted) * 0x1p-24 * (static_cast<double>(width) / 2 + 5));
        }
      }
      std::vector<float> in_place = x;
      RmsNorm({in_place.data(), rows, width}, weight, 1e-5f, {in_place.data(), rows, width});
      EXPECT_EQ(in_place, y);
    }
  }
}

TEST(RmsNorm, ReadsAndWritesStridedRowsOnly) {
  std::vector<float> x(4 * 20, 7.0f);
  const std::vector<float> weight(17, 1.0f);
  RmsNorm({x.data(), 4, 17, 20}, weight, 0, {x.data(), 4, 17, 20});
  for (size_t i = 0; i < x.size(); ++i) EXPECT_FLOAT_EQ(x[i], i % 20 < 17 ? 1.0f : 7.0f);
}

TEST(SiluMul, MatchesTheFormulaInDouble) {
  for (const int64_t width : kWidths) {
    const std::vector<float> gate = Random(2 * width, 5);
    const std::vector<float> up = Random(2 * width + 1);
    std::vector<float> y(gate.size());
    SiluMul({gate.data(), 2, width}, {up.data(), 2, width}, {y.data(), 2, width});
    for (size_t i = 0; i < y.size(); ++i) {
      const double wanted = gate[i] / (1 + std::exp(-double{gate[i]})) * up[i];
      EXPECT_NEAR(y[i], wanted, std::fabs(wanted) * 8 * 0x1p-24 + 1e-37) << gate[i];
    }
  }
}

TEST(SiluMul, ExtremesStayFiniteAndNanPasses) {
  const std::vector<float> gate = {-1e30f, -200, -89, 89, 1e30f, std::nanf(""), 0, -0.0f};
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> y(gate.size());
  SiluMul({gate.data(), 1, 8}, {up.data(), 1, 8}, {y.data(), 1, 8});
  for (size_t i : {1u, 2u}) EXPECT_NEAR(y[i], 0, 1e-30);
  EXPECT_LE(std::fabs(y[0]), 1e30f * 1e-37f);
  EXPECT_EQ(y[3], 89.0f);
  EXPECT_EQ(y[4], 1e30f);
  EXPECT_TRUE(std::isnan(y[5]));
  EXPECT_EQ(y[6], 0.0f);
}

TEST(Add, AddsExactlyAndTheSameAtAnyThreadCount) {
  const int before = Threads();
  for (const int threads : {1, 3}) {
    SetThreads(threads);
    for (const int64_t width : kWidths) {
      std::vector<float> x = Random(50 * width);
      const std::vector<float> start = x;
      const std::vector<float> y = Random(50 * width + 1);
      Add({y.data(), 50, width}, {x.data(), 50, width});
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], start[i] + y[i]);
    }
  }
  SetThreads(before);
}

}  // namespace
}  // namespace vqllm::cpu
