#include "vq/codebook.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "vq/base/rng.h"

namespace vqllm {
namespace {

/// Small whole numbers: distances are exact, and ties are frequent.
std::vector<float> Whole(Rng& rng, int64_t n, int range) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = static_cast<float>(rng.Below(static_cast<uint64_t>(range)));
  return values;
}

float Distance(const float* x, const float* c, const float* w, int64_t v) {
  float sum = 0;
  for (int64_t d = 0; d < v; ++d) sum += (w ? w[d] : 1) * (x[d] - c[d]) * (x[d] - c[d]);
  return sum;
}

using Shape = std::tuple<int, int, bool>;
class CodebookShapes : public testing::TestWithParam<Shape> {};

TEST_P(CodebookShapes, FindsTheFirstOfTheNearestAndCollectsTheBest) {
  const auto [v, entries, weighted] = GetParam();
  Rng rng(5);
  const std::vector<float> book = Whole(rng, v * entries, 5);
  const Codebook codebook({book.data(), entries, v});
  EXPECT_EQ(codebook.count(), entries);
  for (const int64_t n : {1, 2, 3, 4, 5, 9, 64}) {
    const std::vector<float> points = Whole(rng, n * v, 5);
    const std::vector<float> weights = weighted ? Whole(rng, n * v, 3) : std::vector<float>();
    MatrixView<const float> weight_view;
    if (weighted) weight_view = {weights.data(), n, v};
    std::vector<int32_t> codes(static_cast<size_t>(n), -1);
    std::vector<float> errors(static_cast<size_t>(n), -1.0f);
    codebook.Find({points.data(), n, v}, weight_view, codes.data(), errors.data());
    for (int64_t i = 0; i < n; ++i) {
      const float* x = points.data() + i * v;
      const float* w = weighted ? weights.data() + i * v : nullptr;
      std::vector<std::pair<float, int32_t>> expected;
      for (int32_t e = 0; e < entries; ++e) expected.emplace_back(Distance(x, book.data() + e * v, w, v), e);
      std::sort(expected.begin(), expected.end());
      ASSERT_EQ(codes[static_cast<size_t>(i)], expected[0].second);
      ASSERT_EQ(errors[static_cast<size_t>(i)], expected[0].first);
      Codebook::Candidate best[6];
      int64_t count = 0;
      codebook.Collect(x, w, 7, best, 6, &count);
      ASSERT_EQ(count, std::min<int64_t>(6, entries));
      for (int64_t b = 0; b < count; ++b) {
        ASSERT_EQ(best[b].error, expected[static_cast<size_t>(b)].first);
        ASSERT_EQ(best[b].code, expected[static_cast<size_t>(b)].second);
        ASSERT_EQ(best[b].origin, 7);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CodebookShapes,
                         testing::Combine(testing::Values(1, 2, 3, 4, 7, 8, 16),
                                          testing::Values(1, 2, 15, 16, 17, 100, 256), testing::Bool()));

TEST(Codebook, MeetsEqualEntriesFarFromTheOrigin) {
  // Expanded into |x|^2 - 2 x c + |c|^2, single precision could not tell these entries apart.
  std::vector<float> book;
  for (int e = 0; e < 64; ++e) book.insert(book.end(), {5000.0f + 0.001f * static_cast<float>(e), -3000});
  const Codebook codebook({book.data(), 64, 2});
  std::vector<int32_t> codes(64);
  std::vector<float> errors(64);
  codebook.Find({book.data(), 64, 2}, {}, codes.data(), errors.data());
  for (size_t e = 0; e < 64; ++e) {
    EXPECT_EQ(errors[e], 0);
    EXPECT_EQ(book[2 * static_cast<size_t>(codes[e])], book[2 * e]);
  }
}

TEST(Codebook, ANanIsNearestToNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> book = {1, 2, 3, 4};
  const Codebook codebook({book.data(), 2, 2});
  const std::vector<float> points = {nan, 4, 3, 4};
  int32_t codes[2] = {-1, -1};
  codebook.Find({points.data(), 2, 2}, {}, codes, nullptr);
  EXPECT_EQ(codes[0], 0);
  EXPECT_EQ(codes[1], 1);
  Codebook::Candidate best[2];
  int64_t count = 0;
  codebook.Collect(points.data(), nullptr, 0, best, 2, &count);
  EXPECT_EQ(count, 0);
}

TEST(Codebook, CollectKeepsTheBestOverSeveralOrigins) {
  const std::vector<float> book = {0, 10, 20};
  const Codebook codebook({book.data(), 3, 1});
  Codebook::Candidate best[3];
  int64_t count = 0;
  const float far = 6;
  const float near = 19;
  codebook.Collect(&far, nullptr, 0, best, 3, &count);   // errors 36, 16, 196
  codebook.Collect(&near, nullptr, 1, best, 3, &count);  // errors 361, 81, 1
  ASSERT_EQ(count, 3);
  EXPECT_EQ(best[0].error, 1);
  EXPECT_EQ(best[0].origin, 1);
  EXPECT_EQ(best[0].code, 2);
  EXPECT_EQ(best[1].error, 16);
  EXPECT_EQ(best[2].error, 36);
  EXPECT_EQ(best[2].origin, 0);
}

}  // namespace
}  // namespace vqllm
