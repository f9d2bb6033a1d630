#include "vq/additive.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "vq/additive_fit.h"
#include "vq/base/parallel.h"
#include "vq/base/rng.h"

namespace vqllm {
namespace {

using Stages = std::vector<std::vector<float>>;

std::vector<float> Gaussian(uint64_t seed, int64_t n) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = rng.Normal();
  return values;
}

/// The weighted squared error of every point, by the definition.
double Error(const Stages& stages, MatrixView<const float> points, MatrixView<const float> weights,
             const std::vector<uint16_t>& codes) {
  double sum = 0;
  for (int64_t i = 0; i < points.rows; ++i) {
    for (int64_t d = 0; d < points.cols; ++d) {
      double rest = points(i, d);
      for (size_t m = 0; m < stages.size(); ++m) {
        const int64_t code = codes[static_cast<size_t>(i) * stages.size() + m];
        rest -= stages[m][static_cast<size_t>(code * points.cols + d)];
      }
      sum += rest * rest * (weights.data ? weights(i, d) : 1);
    }
  }
  return sum;
}

std::vector<uint16_t> Encode(const Stages& stages, MatrixView<const float> points,
                             MatrixView<const float> weights, int beam, double* error = nullptr) {
  std::vector<uint16_t> codes(static_cast<size_t>(points.rows) * stages.size());
  std::vector<float> errors(static_cast<size_t>(points.rows));
  AdditiveEncoder(stages, points.cols, beam).Encode(points, weights, codes.data(), errors.data());
  double sum = 0;
  for (const float e : errors) sum += e;
  if (error) *error = sum;
  // What the encoder says of its errors is what its codes give: float sums of v terms against double ones.
  EXPECT_NEAR(sum, Error(stages, points, weights, codes), 1e-4 * (1 + sum));
  return codes;
}

class AdditiveWeights : public testing::TestWithParam<bool> {};

TEST_P(AdditiveWeights, AFullBeamFindsTheBestSumOfAll) {
  const Stages stages = {Gaussian(1, 5 * 3), Gaussian(2, 4 * 3), Gaussian(3, 6 * 3)};
  const std::vector<float> points = Gaussian(4, 60 * 3);
  std::vector<float> weights = Gaussian(5, 60 * 3);
  for (float& w : weights) w = std::fabs(w);
  const MatrixView<const float> view(points.data(), 60, 3);
  MatrixView<const float> weight_view;
  if (GetParam()) weight_view = {weights.data(), 60, 3};
  const std::vector<uint16_t> codes = Encode(stages, view, weight_view, 5 * 4);
  double greedy = 0;
  double full = 0;
  Encode(stages, view, weight_view, 1, &greedy);
  Encode(stages, view, weight_view, 20, &full);
  EXPECT_LT(full, greedy);
  for (int64_t i = 0; i < 60; ++i) {
    const MatrixView<const float> one(view.Row(i), 1, 3);
    MatrixView<const float> one_weight;
    if (GetParam()) one_weight = {weight_view.Row(i), 1, 3};
    double best = std::numeric_limits<double>::infinity();
    for (uint16_t a = 0; a < 5; ++a) {
      for (uint16_t b = 0; b < 4; ++b) {
        for (uint16_t c = 0; c < 6; ++c) best = std::min(best, Error(stages, one, one_weight, {a, b, c}));
      }
    }
    const std::vector<uint16_t> found(codes.begin() + 3 * i, codes.begin() + 3 * i + 3);
    EXPECT_NEAR(Error(stages, one, one_weight, found), best, 1e-5 * (1 + best));
  }
}

TEST_P(AdditiveWeights, FitSolvesTheLeastSquaresProblem) {
  // Points that are sums of unknown entries, with their codes given: the fit finds entries with the same
  // sums.
  const Stages truth = {Gaussian(1, 7 * 4), Gaussian(2, 5 * 4)};
  Rng rng(3);
  std::vector<float> points;
  std::vector<uint16_t> codes;
  std::vector<float> weights;
  for (int i = 0; i < 400; ++i) {
    const size_t a = rng.Below(6);  // entry 6 stays unused
    const size_t b = rng.Below(5);
    codes.insert(codes.end(), {static_cast<uint16_t>(a), static_cast<uint16_t>(b)});
    for (size_t d = 0; d < 4; ++d) {
      points.push_back(truth[0][a * 4 + d] + truth[1][b * 4 + d]);
      weights.push_back(rng.Uniform(0.1f, 2));
    }
  }
  const MatrixView<const float> view(points.data(), 400, 4);
  MatrixView<const float> weight_view;
  if (GetParam()) weight_view = {weights.data(), 400, 4};
  Stages stages = {Gaussian(8, 7 * 4), Gaussian(9, 5 * 4)};
  const std::vector<float> untouched(stages[0].end() - 4, stages[0].end());
  const AdditiveFit fit(view, weight_view, codes, stages);
  const double before = Error(stages, view, weight_view, codes);
  fit.Improve(stages);
  // Twelve unknowns a dimension, eleven of them determined, twelve steps: solved but for rounding.
  EXPECT_LT(Error(stages, view, weight_view, codes), 1e-9 * before);
  EXPECT_EQ(std::vector<float>(stages[0].end() - 4, stages[0].end()), untouched);
  ASSERT_EQ(fit.Unused().size(), 1u);
  EXPECT_EQ(fit.Unused()[0].stage, 0u);
  EXPECT_EQ(fit.Unused()[0].code, 6);
  fit.MeetPoint(17, fit.Unused()[0], stages);
  std::vector<uint16_t> replaced = {6, codes[2 * 17 + 1]};
  EXPECT_NEAR(Error(stages, {view.Row(17), 1, 4}, {}, replaced), 0, 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Weighted, AdditiveWeights, testing::Bool());

TEST(Additive, EveryStepUpHelps) {
  const std::vector<float> points = Gaussian(1, 8000 * 4);
  const MatrixView<const float> view(points.data(), 8000, 4);
  const int entries[] = {16, 16};
  double residual = 0;
  double refined = 0;
  double wide = 0;
  Encode(TrainAdditive(view, {}, entries, {}), view, {}, 1, &residual);
  const Stages trained = TrainAdditive(view, {}, entries, {.rounds = 8, .beam = 4});
  Encode(trained, view, {}, 4, &refined);
  Encode(trained, view, {}, 16, &wide);
  EXPECT_LT(refined, 0.92 * residual);
  EXPECT_LE(wide, refined);
}

TEST(Additive, StagesMayDifferInEntriesAndAreDeterministic) {
  const std::vector<float> points = Gaussian(1, 3000 * 6);
  const MatrixView<const float> view(points.data(), 3000, 6);
  const int entries[] = {100, 3, 17};
  const AdditiveOptions options{.rounds = 3, .beam = 3, .seed = 4};
  const int threads = Threads();
  std::vector<Stages> results;
  for (const int count : {1, 2, 5}) {
    SetThreads(count);
    results.push_back(TrainAdditive(view, {}, entries, options));
  }
  SetThreads(threads);
  ASSERT_EQ(results[0].size(), 3u);
  for (size_t m = 0; m < 3; ++m) EXPECT_EQ(results[0][m].size(), static_cast<size_t>(entries[m]) * 6);
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST(Additive, FewPointsAreLossless) {
  const std::vector<float> points = {1, 2, 3, 4, 5, 6, 0.5, 0.25};  // values of fp16
  const MatrixView<const float> view(points.data(), 2, 4);
  const int entries[] = {16, 16, 4};
  double error = -1;
  Encode(TrainAdditive(view, {}, entries, {.rounds = 3, .beam = 4}), view, {}, 4, &error);
  EXPECT_EQ(error, 0);
}

TEST(Additive, ANanGetsSomeCode) {
  const Stages stages = {Gaussian(1, 16 * 2), Gaussian(2, 16 * 2)};
  const float points[] = {std::nanf(""), 1, 0, 0};
  uint16_t codes[4] = {99, 99, 99, 99};
  AdditiveEncoder(stages, 2, 4).Encode({points, 2, 2}, {}, codes, nullptr);
  for (const uint16_t code : codes) EXPECT_LT(code, 16);
}

}  // namespace
}  // namespace vqllm
