#include "vq/kmeans.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "vq/base/parallel.h"
#include "vq/base/rng.h"

namespace vqllm {
namespace {

std::vector<float> Gaussian(uint64_t seed, int64_t n) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = rng.Normal();
  return values;
}

double Error(const KMeansResult& result, MatrixView<const float> points,
             MatrixView<const float> weights = {}) {
  const Codebook book(
      {result.centroids.data(), static_cast<int64_t>(result.centroids.size()) / points.cols, points.cols});
  std::vector<int32_t> codes(static_cast<size_t>(points.rows));
  std::vector<float> errors(codes.size());
  book.Find(points, weights, codes.data(), errors.data());
  double sum = 0;
  for (const float error : errors) sum += error;
  return sum;
}

// Q05: fewer points, or fewer distinct points, than entries.
TEST(KMeans, FewerPointsThanEntriesAreLossless) {
  for (const int64_t n : {1, 2, 32, 255, 256}) {
    const std::vector<float> points = Gaussian(1, n * 8);
    const KMeansResult result = KMeans({points.data(), n, 8}, {}, {.entries = 256});
    EXPECT_EQ(result.centroids.size(), 256u * 8);
    EXPECT_EQ(Error(result, {points.data(), n, 8}), 0) << n;
    EXPECT_EQ(result.unused, 256 - n);
    for (const float value : result.centroids) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(KMeans, FewDistinctPointsAreLossless) {
  Rng rng(2);
  std::vector<float> points;
  for (int i = 0; i < 1024; ++i) {
    const float value = static_cast<float>(rng.Below(3));
    points.insert(points.end(), {value, 2 - value, 1, value * value});
  }
  const KMeansResult result = KMeans({points.data(), 1024, 4}, {}, {.entries = 16});
  EXPECT_EQ(Error(result, {points.data(), 1024, 4}), 0);
  EXPECT_EQ(result.unused, 13);
  const std::vector<float> equal(4000, 0.3f);
  EXPECT_EQ(Error(KMeans({equal.data(), 1000, 4}, {}, {.entries = 256}), {equal.data(), 1000, 4}), 0);
}

TEST(KMeans, IsTheSameAtAnyThreadCountAndFollowsItsSeed) {
  const std::vector<float> points = Gaussian(3, 30000 * 4);
  const MatrixView<const float> view(points.data(), 30000, 4);
  const int threads = Threads();
  std::vector<std::vector<float>> results;
  for (const int count : {1, 2, 3, 5}) {
    SetThreads(count);
    results.push_back(KMeans(view, {}, {.entries = 100, .iterations = 6, .seed = 9}).centroids);
  }
  SetThreads(threads);
  for (const std::vector<float>& result : results) EXPECT_EQ(result, results[0]);
  EXPECT_NE(KMeans(view, {}, {.entries = 100, .iterations = 6, .seed = 10}).centroids, results[0]);
}

TEST(KMeans, FindsClustersThatLieApart) {
  Rng rng(4);
  std::vector<float> points;
  for (int i = 0; i < 3200; ++i) {
    const float centre = static_cast<float>(i % 16) * 100;
    points.insert(points.end(), {centre + rng.Normal(), -centre + rng.Normal()});
  }
  const KMeansResult result = KMeans({points.data(), 3200, 2}, {}, {.entries = 16});
  EXPECT_EQ(result.unused, 0);
  std::set<int> found;
  for (size_t e = 0; e < 16; ++e) {
    const float centre = std::round(result.centroids[2 * e] / 100);
    found.insert(static_cast<int>(centre));
    // The mean of 200 standard normals: within 5 deviations.
    EXPECT_NEAR(result.centroids[2 * e], 100 * centre, 5 / std::sqrt(200.0));
    EXPECT_NEAR(result.centroids[2 * e + 1], -100 * centre, 5 / std::sqrt(200.0));
  }
  EXPECT_EQ(found.size(), 16u);
}

TEST(KMeans, EveryRoundOfLloydHelps) {
  const std::vector<float> points = Gaussian(5, 4000 * 2);
  const MatrixView<const float> view(points.data(), 4000, 2);
  double before = 1e30;
  for (const int rounds : {0, 1, 2, 4, 8, 16}) {
    const double error = Error(KMeans(view, {}, {.entries = 64, .iterations = rounds}), view);
    EXPECT_LT(error, before) << rounds;
    before = error;
  }
}

TEST(KMeans, WeightsPullCentroids) {
  // One entry: its place is the weighted mean, dimension by dimension.
  const std::vector<float> points = {0, 0, 4, 8};
  const std::vector<float> weights = {3, 1, 1, 1};
  const KMeansResult one = KMeans({points.data(), 2, 2}, {weights.data(), 2, 2}, {.entries = 1});
  EXPECT_EQ(one.centroids, (std::vector<float>{1, 4}));
  // Whole numbers: a weight of 3 equals three copies.
  Rng rng(6);
  std::vector<float> once;
  std::vector<float> thrice;
  std::vector<float> counted;
  for (int i = 0; i < 500; ++i) {
    const float x = rng.Normal();
    const int copies = 1 + static_cast<int>(rng.Below(3));
    once.push_back(x);
    counted.push_back(static_cast<float>(copies));
    for (int c = 0; c < copies; ++c) thrice.push_back(x);
  }
  const int64_t n = static_cast<int64_t>(thrice.size());
  const double weighted =
      Error(KMeans({once.data(), 500, 1}, {counted.data(), 500, 1}, {.entries = 8, .iterations = 200}),
            {thrice.data(), n, 1});
  const double copied =
      Error(KMeans({thrice.data(), n, 1}, {}, {.entries = 8, .iterations = 200}), {thrice.data(), n, 1});
  EXPECT_NEAR(weighted / copied, 1, 0.2);  // different local minima of one problem
}

TEST(KMeans, ZeroWeightsStayFinite) {
  const std::vector<float> points = Gaussian(7, 2000);
  const std::vector<float> weights(2000, 0.0f);
  const KMeansResult result = KMeans({points.data(), 1000, 2}, {weights.data(), 1000, 2}, {.entries = 32});
  for (const float value : result.centroids) ASSERT_TRUE(std::isfinite(value));
}

TEST(KMeans, EmptyEntriesComeBackToLife) {
  // 4000 equal points and 40 far ones. Above 1024 entries seeding takes evenly spread points, most of them
  // equal.
  std::vector<float> points(6000, 1.0f);
  Rng rng(8);
  for (size_t i = 0; i < 2000; ++i) points[i] = rng.Uniform(10, 1000);
  const KMeansResult result = KMeans({points.data(), 6000, 1}, {}, {.entries = 1100, .iterations = 25});
  EXPECT_LT(result.unused, 100);
}

}  // namespace
}  // namespace vqllm
