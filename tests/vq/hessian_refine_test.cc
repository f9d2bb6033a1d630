#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "vq/base/error.h"
#include "vq/base/parallel.h"
#include "vq/base/rng.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kRows = 64;

struct Problem {
  int64_t cols;
  std::vector<float> w;
  std::vector<float> hessian;

  /// Inputs that share `common` of their variance.
  Problem(int64_t cols_in, float common) : cols(cols_in) {
    Rng rng(1);
    w.resize(static_cast<size_t>(kRows * cols));
    for (float& value : w) value = rng.Normal();
    hessian.resize(static_cast<size_t>(cols * cols));
    std::vector<double> sum(hessian.size());
    std::vector<float> x(static_cast<size_t>(cols));
    for (int sample = 0; sample < 500; ++sample) {
      const float shared = rng.Normal();
      for (float& value : x) value = common * shared + (1 - common) * rng.Normal();
      for (size_t i = 0; i < x.size(); ++i) {
        for (size_t j = 0; j < x.size(); ++j) sum[i * x.size() + j] += static_cast<double>(x[i]) * x[j];
      }
    }
    for (size_t i = 0; i < sum.size(); ++i) hessian[i] = static_cast<float>(sum[i] / 500);
  }

  Tensor Quantized(const char* format, bool with_hessian, Effort effort = Effort::kNormal) const {
    QuantizeOptions options;
    options.effort = effort;
    if (with_hessian) options.hessian = hessian;
    Tensor t = Quantize(ParseFormat(format), {w.data(), kRows, cols}, options, "w");
    ValidateTensor(t, "w");
    return t;
  }

  /// tr((W - W') H (W - W')^T), in double.
  double OutputError(const Tensor& t) const {
    std::vector<float> decoded(w.size());
    Dequantize(t, 0, {decoded.data(), kRows, cols});
    double sum = 0;
    const size_t n = static_cast<size_t>(cols);
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t i = 0; i < n; ++i) {
        double product = 0;
        for (size_t j = 0; j < n; ++j)
          product += hessian[i * n + j] * (static_cast<double>(w[r * n + j]) - decoded[r * n + j]);
        sum += product * (static_cast<double>(w[r * n + i]) - decoded[r * n + i]);
      }
    }
    return sum;
  }
};

class HessianFormats : public testing::TestWithParam<const char*> {};

TEST_P(HessianFormats, CorrelatedInputsAreServedBetter) {
  for (const int64_t cols : {64, 45}) {  // 45: a padded subvector
    const Problem problem(cols, 0.6f);
    const double plain = problem.OutputError(problem.Quantized(GetParam(), false));
    const double refined = problem.OutputError(problem.Quantized(GetParam(), true));
    EXPECT_LT(refined, 0.85 * plain) << cols;
  }
}

TEST_P(HessianFormats, IsTheSameAtAnyThreadCount) {
  const Problem problem(48, 0.5f);
  const int threads = Threads();
  SetThreads(1);
  const Tensor one = problem.Quantized(GetParam(), true);
  SetThreads(3);
  const Tensor three = problem.Quantized(GetParam(), true);
  SetThreads(threads);
  for (size_t m = 0; m < one.codes.size(); ++m) EXPECT_EQ(one.codes[m].words(), three.codes[m].words());
}

INSTANTIATE_TEST_SUITE_P(Formats, HessianFormats,
                         testing::Values("VQ<4,6,1>", "VQ<4,4,2>-g32", "VQ<8,4,4>-row", "VQ<4,4,1>-tile32x16",
                                         "VQ<2,3,1>-ingroup16"));

TEST(HessianRefine, TheIdentityChangesNothingWorthIt) {
  Problem problem(32, 0);
  std::fill(problem.hessian.begin(), problem.hessian.end(), 0.0f);
  for (size_t i = 0; i < 32; ++i) problem.hessian[i * 33] = 1;
  const Tensor plain = problem.Quantized("VQ<4,6,1>", false);
  const Tensor refined = problem.Quantized("VQ<4,6,1>", true);
  EXPECT_NEAR(problem.OutputError(refined), problem.OutputError(plain), 1e-4 * problem.OutputError(plain));
}

TEST(HessianRefine, DeadInputsAndBadHessiansAreHandled) {
  Problem problem(32, 0.5f);
  for (size_t i = 0; i < 32; ++i)
    problem.hessian[5 * 32 + i] = problem.hessian[i * 32 + 5] = 0;  // input 5 is always 0
  EXPECT_NO_THROW(problem.Quantized("VQ<4,4,1>", true));
  problem.hessian[3 * 33] = -1;
  EXPECT_THAT([&] { problem.Quantized("VQ<4,4,1>", true); },
              ThrowsMessage<Error>(HasSubstr("hessian [3, 3]")));
  problem.hessian[3 * 33] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT([&] { problem.Quantized("VQ<4,4,1>", true); },
              ThrowsMessage<Error>(HasSubstr("hessian [3, 3]")));
  problem.hessian[3 * 33] = 1;
  problem.hessian[3 * 32 + 2] = problem.hessian[2 * 32 + 3] = 1000;
  EXPECT_THAT([&] { problem.Quantized("VQ<4,4,1>", true); },
              ThrowsMessage<Error>(HasSubstr("positive definite")));
  problem.hessian.pop_back();
  EXPECT_THAT([&] { problem.Quantized("VQ<4,4,1>", true); }, ThrowsMessage<Error>(HasSubstr("1023")));
  EXPECT_THAT([&] { Problem(16, 0).Quantized("VQ<4,4,1>-out", true); },
              ThrowsMessage<Error>(HasSubstr("along inputs")));
}

}  // namespace
}  // namespace vqllm
