// Relative mean squared errors on a unit Gaussian source, as the literature and our own simulations give
// them.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "vq/base/rng.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

constexpr int64_t kRows = 512;
constexpr int64_t kCols = 1024;

double GaussianMse(const char* name, Effort effort = Effort::kNormal) {
  Rng rng(7);
  std::vector<float> w(static_cast<size_t>(kRows * kCols));
  for (float& value : w) value = rng.Normal();
  QuantizeReport report;
  QuantizeOptions options;
  options.effort = effort;
  const Tensor t = Quantize(ParseFormat(name), {w.data(), kRows, kCols}, options, name, &report);
  ValidateTensor(t, name);
  return report.relative_mse;
}

struct Anchor {
  const char* format;
  double low;
  double high;
  Effort effort = Effort::kNormal;
};

std::string NameOf(const testing::TestParamInfo<Anchor>& param) {
  std::string name = param.param.format;
  std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
  if (param.param.effort == Effort::kBest) name += "Best";
  if (param.param.effort == Effort::kFast) name += "Fast";
  return name;
}

class Anchors : public testing::TestWithParam<Anchor> {};

TEST_P(Anchors, HoldOnAUnitGaussian) {
  const Anchor& anchor = GetParam();
  const double mse = GaussianMse(anchor.format, anchor.effort);
  RecordProperty("mse", std::to_string(mse));
  EXPECT_GE(mse, anchor.low);
  EXPECT_LE(mse, anchor.high);
  // Nothing beats the rate-distortion bound of the bits that were counted; what does has lost some of them.
  EXPECT_GT(mse, std::pow(4, -EffectiveBits(ParseFormat(anchor.format), kRows, kCols)));
}

INSTANTIATE_TEST_SUITE_P(Integers, Anchors,
                         testing::Values(Anchor{"int2-g128", .24, .26}, Anchor{"int3-g128", .043, .048},
                                         Anchor{"int4-g128", .0095, .0105}, Anchor{"int8-g128", 2e-5, 5e-5}),
                         NameOf);
// Above: the bounds that k-means reaches with many points (data of 2 M vectors) and the loss of training on
// these few. Below: the codebook fits its own training data somewhat better than fresh data.
INSTANTIATE_TEST_SUITE_P(Tables, Anchors,
                         testing::Values(Anchor{"VQ<2,4,1>", .107, .112}, Anchor{"VQ<4,8,1>", .094, .101},
                                         Anchor{"VQ<2,6,1>", .028, .0307}, Anchor{"VQ<2,8,1>", .0072, .0081}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Lattice, Anchors,
                         testing::Values(Anchor{"quip-2", .090, .092}, Anchor{"quip-4", .0085, .0092}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Additive, Anchors,
                         testing::Values(Anchor{"VQ<8,8,2>", .08, .110, Effort::kFast},
                                         Anchor{"VQ<8,8,2>", .08, .096}, Anchor{"VQ<4,4,2>", .10, .109},
                                         Anchor{"VQ<8,4,4>", .09, .103},
                                         Anchor{"VQ<4,4,2>", .10, .107, Effort::kBest},
                                         Anchor{"VQ<8,4,4>", .09, .097, Effort::kBest}),
                         NameOf);

TEST(GaussianTiles, OverfitALittleBecauseEachHasItsOwnCodebook) {
  EXPECT_LT(GaussianMse("VQ<4,8,1>-tile256x256", Effort::kFast), GaussianMse("VQ<4,8,1>"));
}

}  // namespace
}  // namespace vqllm
