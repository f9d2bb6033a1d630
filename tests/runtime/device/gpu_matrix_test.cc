#include "runtime/device/gpu_matrix.h"

#include <gtest/gtest.h>

#include <cmath>

#include "codegen/proof.h"
#include "kernels/cpu/reference.h"
#include "tests/support/data.h"
#include "tests/support/random_tensor.h"
#include "vq/base/error.h"
#include "vq/base/rng.h"
#include "vq/quantizer.h"

// Products of the GPU device in the interpreter: the planned kernels, the layouts that several numbers of
// tokens share, and what stands round them. A hazard is an Error.
namespace vqllm {
namespace {

class GpuMatrixTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no NVRTC: set CUDA_HOME";
  }

  /// x [rows, cols] -> y [rows, outputs], both as fp16.
  std::vector<float> Multiply(const GpuMatrix& matrix, const std::vector<Half>& x, int64_t rows) {
    const int64_t bucket = TokenBucket(rows);
    GpuBuffer in(*driver_, 2 * bucket * matrix.cols(), "x");
    GpuBuffer out(*driver_, 2 * bucket * matrix.rows(), "y");
    driver_->Upload(in.address(), x.data(), 2 * rows * matrix.cols());
    matrix.Multiply(in.address(), rows, out.address(), scratch_);
    std::vector<Half> y(static_cast<size_t>(rows * matrix.rows()));
    driver_->Download(y.data(), out.address(), 2 * rows * matrix.rows());
    return {y.begin(), y.end()};
  }

  std::vector<Half> Random(int64_t n, uint64_t seed) {
    Rng rng(seed);
    std::vector<Half> values(static_cast<size_t>(n));
    for (Half& value : values) value = Half(rng.Normal());
    return values;
  }

  test::TempDir temp_;
  std::unique_ptr<GpuDriver> driver_ = NewPtxDriver(ParseGpu("a100"));
  GpuKernels kernels_{*driver_, KernelCache(temp_.path())};
  GpuLinears linears_{kernels_};
  GpuScratch scratch_{*driver_};
};

class GpuFormats : public GpuMatrixTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Formats, GpuFormats,
                         testing::Values("fp16", "int8-g64", "int4-g128", "int3-g64", "aqlm-2x8", "gptvq-2",
                                         "VQ<2,4,2>-g128", "VQ<8,8,1>-out", "cq-2"));

TEST_P(GpuFormats, AtMostTwoOrdersOfTheCodesServeEveryNumberOfTokens) {
  const Format format = ParseFormat(GetParam());
  const Tensor tensor = RandomTensor(format, 72, 512, 1);
  Rng rng(3);
  std::vector<float> bias(72);
  for (float& value : bias) value = static_cast<float>(Half(rng.Normal()));
  const GpuMatrix matrix(kernels_, linears_, tensor, bias);
  EXPECT_LE(linears_.Get(format, 72, 512, true)->layouts().size(), 2u);
  for (const int64_t rows : {1, 7, 20}) {
    const std::vector<Half> x = Random(rows * 512, 4);
    const std::vector<float> found = Multiply(matrix, x, rows);
    // The tolerance of the kernel's own plan, on the data of this test.
    const Plan& plan = linears_.Get(format, 72, 512, true)->PlanOf(TokenBucket(rows));
    ProofCase proof = MakeProofCase(plan, tensor, 5);
    const std::vector<float> floats(x.begin(), x.end());
    std::vector<float> wanted(found.size());
    reference::MatMul({floats.data(), rows, 512}, tensor, bias, {wanted.data(), rows, 72});
    double tolerance = 0;
    for (const double value : proof.tolerance) tolerance = std::max(tolerance, value);
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], wanted[i], 2 * tolerance) << rows << " rows, " << i;
  }
}

TEST_F(GpuMatrixTest, DenseWeightsOfOtherTypesBecomeFp16) {
  Rng rng(1);
  std::vector<float> values(40 * 64);
  for (float& value : values) value = BFloat16BitsToFloat(FloatToBFloat16Bits(rng.Normal()));
  const std::vector<Half> x = Random(64, 2);
  const auto product = [&](DType dtype) {
    const Tensor tensor = DenseTensor(dtype, 40, 64, values.data());
    return Multiply(GpuMatrix(kernels_, linears_, tensor, {}), x, 1);
  };
  const std::vector<float> exact = product(DType::kF16);
  EXPECT_EQ(product(DType::kBF16), exact);
  EXPECT_EQ(product(DType::kF32), exact);
  values[7] = 1e5f;
  EXPECT_THROW(product(DType::kF32), Error);
}

class GpuTurned : public GpuMatrixTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Formats, GpuTurned,
    testing::Values(
        "quip-2", "quip-4",
        R"({"name":"act-order","kind":"int","bits":4,"scale":"group","group":32,"permutation":true})",
        R"({"name":"affine","kind":"table","subvector":8,"axis":"out","entries":[64],"input_affine":true,"permutation":true})"));

TEST_P(GpuTurned, ActivationsAreTurnedInsteadOfWeights) {
  const Format format = ParseFormat(GetParam());
  const Tensor tensor = test::RandomTensor(format, 56, 96, 7);  // Paley orders 28 and 12
  std::vector<float> bias(56, 0.25f);
  const GpuMatrix matrix(kernels_, linears_, tensor, bias);
  std::vector<float> w(56 * 96);
  Dequantize(tensor, 0, {w.data(), 56, 96});
  double norm = 0;
  for (const float value : w) norm += double{value} * value;
  for (const int64_t rows : {1, 5}) {
    const std::vector<Half> x = Random(rows * 96, 8);
    const std::vector<float> floats(x.begin(), x.end());
    const std::vector<float> found = Multiply(matrix, x, rows);
    std::vector<float> wanted(found.size());
    reference::MatMul({floats.data(), rows, 96}, tensor, bias, {wanted.data(), rows, 56});
    for (int64_t t = 0; t < rows; ++t) {
      double square = 0;
      for (int64_t c = 0; c < 96; ++c) square += std::pow(double{floats[static_cast<size_t>(t * 96 + c)]}, 2);
      // Turned inputs, stage sums and scaled weights, products and outputs are rounded to fp16, each an error
      // of 2^-11 in the norm; rotations keep norms, so no output is off by more than |W| |x| of these. Column
      // offsets reach the products unrounded.
      const double tolerance = 5 * 0x1p-11 * std::sqrt(norm * square);
      for (int64_t i = 0; i < 56; ++i) {
        const size_t at = static_cast<size_t>(t * 56 + i);
        ASSERT_NEAR(found[at], wanted[at], tolerance) << t << " " << i;
      }
    }
  }
}

TEST_F(GpuMatrixTest, KernelsAreSharedByMatricesOfOneShape) {
  const Tensor tensor = RandomTensor(ParseFormat("aqlm-2x8"), 64, 256, 1);
  const GpuMatrix a(kernels_, linears_, tensor, {});
  const GpuMatrix b(kernels_, linears_, tensor, {});
  const std::vector<Half> x = Random(256, 1);
  EXPECT_EQ(Multiply(a, x, 1), Multiply(b, x, 1));
  ASSERT_EQ(kernels_.Uses().size(), 1u);
  const KernelUse use = kernels_.Uses().front();
  EXPECT_EQ(use.op, "gemv aqlm-2x8 64x256");
  EXPECT_GE(use.launches, 2);
  // Codes, both codebooks, the activations and the outputs, twice.
  EXPECT_GE(use.dram_bytes, 2.0 * (64 * 32 * 2 + 2 * 256 * 16 + 2 * 256 + 2 * 64));
  EXPECT_GT(use.modelled_lower_us, 0);
  EXPECT_LT(use.modelled_lower_us, use.modelled_upper_us);
}

}  // namespace
}  // namespace vqllm
