#include <gtest/gtest.h>

#include <cmath>

#include "vq/base/rng.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

constexpr int64_t kSize = 64;

std::vector<float> Uniform(float low, float high) {
  Rng rng(3);
  std::vector<float> w(kSize * kSize);
  for (float& value : w) value = rng.Uniform(low, high);
  return w;
}

Format Int(int bits, bool symmetric, int group) {
  Format f;
  f.name = "test";
  f.kind = FormatKind::kInt;
  f.bits = bits;
  f.symmetric = symmetric;
  f.scale = group > 0 ? ScaleKind::kGroup : ScaleKind::kPerOutput;
  f.group = group;
  return f;
}

/// The largest error of any weight over the scale of its group.
double WorstSteps(const Format& f, const std::vector<float>& w) {
  const Tensor t = Quantize(f, {w.data(), kSize, kSize}, {}, "w");
  ValidateTensor(t, "w");
  std::vector<float> decoded(w.size());
  Dequantize(t, 0, {decoded.data(), kSize, kSize});
  double worst = 0;
  for (int64_t i = 0; i < kSize * kSize; ++i) {
    const double error = std::fabs(decoded[static_cast<size_t>(i)] - w[static_cast<size_t>(i)]);
    worst = std::max(worst, error / ScaleOf(t, i / kSize, i % kSize));
  }
  return worst;
}

// Half a step, and the rounding of the zero point (half a step more at the ends of the range, where codes are
// clamped). The fp16 scale is rounded up, so no weight is clipped by that.
constexpr double kRounding = 1e-3;

class IntFormats : public testing::TestWithParam<std::tuple<int, int>> {};

// Q08: one-sided weights with a symmetric quantiser.
TEST_P(IntFormats, SymmetricErrorsAreHalfAStepWhateverTheSigns) {
  const auto [bits, group] = GetParam();
  const Format f = Int(bits, true, group);
  std::vector<float> mixed = Uniform(0.2f, 1);
  for (size_t i = 0; i < mixed.size(); ++i) {
    if (i / 32 % 3 == 1) mixed[i] = -mixed[i];
    if (i / 32 % 3 == 2) mixed[i] = mixed[i] - 0.6f;
  }
  for (const std::vector<float>& w : {Uniform(0.2f, 1), Uniform(-1, -0.2f), Uniform(-1, 1), mixed}) {
    EXPECT_LE(WorstSteps(f, w), 0.5 + kRounding);
    const Tensor t = Quantize(f, {w.data(), kSize, kSize}, {}, "w");
    float largest = 0;
    const int64_t width = group > 0 ? std::min<int64_t>(group, kSize) : kSize;
    for (int64_t c = 0; c < width; ++c) largest = std::max(largest, std::fabs(w[static_cast<size_t>(c)]));
    EXPECT_NEAR(t.scales[0], largest / static_cast<float>((1 << (bits - 1)) - 1), 1e-3);
  }
}

TEST_P(IntFormats, AsymmetricErrorsAreHalfAStepAndZeroIsExact) {
  const auto [bits, group] = GetParam();
  std::vector<float> w = Uniform(-0.3f, 1);
  for (size_t i = 0; i < w.size(); i += 5) w[i] = 0;
  EXPECT_LE(WorstSteps(Int(bits, false, group), w), 1 + kRounding);
  const Tensor t = Quantize(Int(bits, false, group), {w.data(), kSize, kSize}, {}, "w");
  std::vector<float> decoded(w.size());
  Dequantize(t, 0, {decoded.data(), kSize, kSize});
  for (size_t i = 0; i < w.size(); i += 5) ASSERT_EQ(decoded[i], 0);
}

INSTANTIATE_TEST_SUITE_P(Widths, IntFormats,
                         testing::Combine(testing::Values(2, 3, 4, 8), testing::Values(0, 7, 32, 64, 128)));

TEST(QuantizeInt, ValuesOnTheGridAreLossless) {
  Rng rng(1);
  for (const int bits : {2, 3, 4, 8}) {
    std::vector<float> w(4 * 32);
    for (size_t i = 0; i < w.size(); ++i) {
      const int code = i % 32 == 0   ? 0
                       : i % 32 == 1 ? (1 << bits) - 1
                                     : static_cast<int>(rng.Below(uint64_t{1} << bits));
      w[i] = 0.25f * static_cast<float>(code - (1 << (bits - 1)));
    }
    QuantizeReport report;
    Quantize(Int(bits, false, 32), {w.data(), 4, 32}, {}, "w", &report);
    EXPECT_EQ(report.relative_mse, 0) << bits;
  }
}

}  // namespace
}  // namespace vqllm
