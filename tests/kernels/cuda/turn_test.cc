// The transforms on both sides of turned weights, against vq's Hadamard and their definition in double.
#include <cmath>

#include "tests/kernels/cuda/support.h"
#include "vq/hadamard.h"

namespace vqllm {
namespace {

using test::CudaKernel;
using test::HalfTolerance;
using test::RandomFloats;
using test::RandomHalves;

constexpr int kThreads = 512;

/// The dense factor as the kernel reads it: [1] where the order is 1.
std::vector<int8_t> Dense(const Hadamard& hadamard, bool transposed) {
  const int64_t order = hadamard.paley();
  if (order == 1) return {1};
  std::vector<int8_t> matrix;
  for (int64_t i = 0; i < order; ++i) {
    for (int64_t j = 0; j < order; ++j) {
      const int64_t at = transposed ? j * order + i : i * order + j;
      matrix.push_back(static_cast<int8_t>(hadamard.paley_matrix()[static_cast<size_t>(at)]));
    }
  }
  return matrix;
}

float Norm(const Hadamard& hadamard) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(hadamard.paley() * hadamard.power())));
}

/// Powers of two, Paley orders of both kinds (12: 11 + 1, 28: 2 (13 + 1)), blocks (172 has no Paley order).
class CudaTurn : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { VQLLM_NEED_NVRTC(); }
};
INSTANTIATE_TEST_SUITE_P(Sizes, CudaTurn, testing::Values(1, 7, 64, 2048, 12, 96, 56, 172, 768));

TEST_P(CudaTurn, InputsArePermutedScaledAndRotated) {
  const int n = GetParam();
  const int64_t tokens = 2;
  const Hadamard hadamard(n);
  CudaKernel gpu("turn");
  const std::vector<Half> x = RandomHalves(tokens * n, 1, 1);
  const std::vector<float> factors = RandomFloats(n, 1, 2);
  const std::vector<float> offsets = RandomFloats(n, 1, 3);
  std::vector<int32_t> permutation;
  for (int c = 0; c < n; ++c) permutation.push_back(n - 1 - c);
  const uint64_t y = gpu.Allocate<Half>(tokens * n, "y");
  const uint64_t sums = gpu.Allocate<float>(tokens, "offset_sums");
  gpu.Launch("turn_inputs", tokens, kThreads, 4 * n, gpu.Upload(x, "x"),
             gpu.Upload(permutation, "permutation"), gpu.Upload(factors, "factors"),
             gpu.Upload(offsets, "offsets"), gpu.Upload(Dense(hadamard, false), "matrix"), n,
             static_cast<int>(hadamard.paley()), static_cast<int>(hadamard.power()), Norm(hadamard), y, sums);
  const auto found = gpu.Download<Half>(y, tokens * n);
  const auto found_sums = gpu.Download<float>(sums, tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<float> wanted(static_cast<size_t>(n));
    double sum = 0;
    double magnitude = 0;
    double square = 0;
    for (int c = 0; c < n; ++c) {
      const float value = static_cast<float>(x[static_cast<size_t>(t * n + c)]);
      wanted[static_cast<size_t>(n - 1 - c)] = value * factors[static_cast<size_t>(c)];
      sum += double{value} * offsets[static_cast<size_t>(c)];
      magnitude += std::fabs(double{value} * offsets[static_cast<size_t>(c)]);
      square += std::pow(double{value} * factors[static_cast<size_t>(c)], 2);
    }
    hadamard.Apply(wanted.data());
    // A rotated value is a sum of n terms +-v / sqrt(n), so at most |v|_1 / sqrt(n) <= |v|_2 bounds it; both
    // transforms are chains of dense + log2(power) roundings.
    const double chain = 2.0 * (static_cast<double>(hadamard.paley()) + std::log2(hadamard.power()) + 3);
    for (int c = 0; c < n; ++c) {
      ASSERT_NEAR(static_cast<float>(found[static_cast<size_t>(t * n + c)]), wanted[static_cast<size_t>(c)],
                  HalfTolerance(wanted[static_cast<size_t>(c)], std::sqrt(square), chain))
          << t << " " << c;
    }
    ASSERT_NEAR(found_sums[static_cast<size_t>(t)], sum, magnitude * 0x1p-24 * (n / 512.0 + 24));
  }
}

TEST_P(CudaTurn, OutputsAreRotatedBackSignedAndShifted) {
  const int n = GetParam();
  const int64_t tokens = 2;
  const Hadamard hadamard(n);
  CudaKernel gpu("turn", "sm_100");
  const std::vector<Half> product = RandomHalves(tokens * n, 1, 4);
  std::vector<float> signs(static_cast<size_t>(n));
  for (size_t i = 0; i < signs.size(); ++i) signs[i] = i % 3 == 0 ? -1.0f : 1.0f;
  const std::vector<float> sums = {0.5f, -2.0f};
  const std::vector<float> bias = RandomFloats(n, 1, 5);
  const uint64_t y = gpu.Upload(product, "y");
  gpu.Launch("turn_outputs", tokens, kThreads, 4 * n, gpu.Upload(Dense(hadamard, true), "matrix"), n,
             static_cast<int>(hadamard.paley()), static_cast<int>(hadamard.power()), Norm(hadamard),
             gpu.Upload(signs, "signs"), gpu.Upload(sums, "offset_sums"), gpu.Upload(bias, "bias"), y);
  const auto found = gpu.Download<Half>(y, tokens * n);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<float> wanted(product.begin() + t * n, product.begin() + (t + 1) * n);
    double square = 0;
    for (const float value : wanted) square += double{value} * value;
    hadamard.ApplyTransposed(wanted.data());
    const double chain = 2.0 * (static_cast<double>(hadamard.paley()) + std::log2(hadamard.power()) + 4);
    for (size_t c = 0; c < wanted.size(); ++c) {
      const double shifted = double{wanted[c]} * signs[c] + sums[static_cast<size_t>(t)] + bias[c];
      const double magnitude =
          std::sqrt(square) + std::fabs(sums[static_cast<size_t>(t)]) + std::fabs(bias[c]);
      ASSERT_NEAR(static_cast<float>(found[static_cast<size_t>(t * n) + c]), shifted,
                  HalfTolerance(shifted, magnitude, chain))
          << t << " " << c;
    }
  }
}

TEST(CudaTurnParts, AbsentPartsChangeNothing) {
  VQLLM_NEED_NVRTC();
  const int n = 12;
  CudaKernel gpu("turn");
  const std::vector<Half> x = RandomHalves(n, 1, 6);
  const uint64_t in = gpu.Upload(x, "x");
  const uint64_t y = gpu.Allocate<Half>(n, "y");
  const uint64_t none = 0;
  const uint64_t matrix = gpu.Upload(std::vector<int8_t>{1}, "matrix");
  gpu.Launch("turn_inputs", 1, kThreads, 4 * n, in, none, none, none, matrix, n, 1, 1, 1.0f, y, none);
  gpu.Launch("turn_outputs", 1, kThreads, 4 * n, matrix, n, 1, 1, 1.0f, none, none, none, y);
  EXPECT_EQ(gpu.Download<uint16_t>(y, n), gpu.Download<uint16_t>(in, n));
}

}  // namespace
}  // namespace vqllm
