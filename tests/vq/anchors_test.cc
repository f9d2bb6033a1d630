// Relative mean squared errors on a unit Gaussian source, as the literature and our own simulations give them.
#include <gtest/gtest.h>

#include <vector>

#include "vq/base/rng.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

double GaussianMse(const char* name, int64_t rows, int64_t cols) {
  Rng rng(7);
  std::vector<float> w(static_cast<size_t>(rows * cols));
  for (float& value : w) value = rng.Normal();
  QuantizeReport report;
  const Tensor t = Quantize(ParseFormat(name), {w.data(), rows, cols}, {}, name, &report);
  ValidateTensor(t, name);
  return report.relative_mse;
}

struct Anchor {
  const char* format;
  double low;
  double high;
};

class Anchors : public testing::TestWithParam<Anchor> {};

TEST_P(Anchors, HoldOnAUnitGaussian) {
  const double mse = GaussianMse(GetParam().format, 512, 1024);
  RecordProperty("mse", std::to_string(mse));
  EXPECT_GE(mse, GetParam().low);
  EXPECT_LE(mse, GetParam().high);
}

// The lower bounds are rate-distortion limits (4^-bits) or measured values less sampling noise: below them something cheats.
INSTANTIATE_TEST_SUITE_P(Formats, Anchors,
                         testing::Values(Anchor{"VQ<2,4,1>", .105, .112}, Anchor{"VQ<4,8,1>", .093, .101},
                                         Anchor{"VQ<8,8,2>", .098, .110}, Anchor{"quip-2", .085, .092},
                                         Anchor{"quip-4", .0085, .0105}, Anchor{"int2-g128", .24, .26},
                                         Anchor{"int3-g128", .043, .048}, Anchor{"int4-g128", .0095, .0105},
                                         Anchor{"VQ<2,8,1>", .0070, .0082}, Anchor{"VQ<2,6,1>", .028, .0305},
                                         Anchor{"VQ<4,4,2>", .100, .125}, Anchor{"int8-g128", 2e-5, 5e-5}),
                         [](const testing::TestParamInfo<Anchor>& param) {
                           std::string name = param.param.format;
                           std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST(GaussianTiles, GptvqTilesOverfitALittleBecauseEachHasItsOwnCodebook) {
  EXPECT_LT(GaussianMse("gptvq-2", 512, 1024), GaussianMse("VQ<4,8,1>", 512, 1024));
}

}  // namespace
}  // namespace vqllm
