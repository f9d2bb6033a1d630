// The comparison on emitted kernels: what a decode step launches, counted in the interpreter and named behind
// libcuda's interface.
#include "runtime/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "runtime/device/gpu.h"
#include "tests/runtime/support/tiny_model.h"
#include "tests/support/data.h"

namespace vqllm {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class CompareOnKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no NVRTC: set CUDA_HOME";
    test::WriteTinyModel(temp_ / "model", test::TinyConfig());
    model_ = LoadModel(temp_ / "model");
    text_.resize(16);
    for (size_t i = 0; i < text_.size(); ++i) text_[i] = static_cast<int32_t>(i * 37 % 256);
  }

  std::vector<CompareRow> Run(std::unique_ptr<GpuDriver> driver, const std::vector<std::string>& weights) {
    const auto device = std::make_shared<GpuDevice>(
        std::move(driver), KernelCache(std::filesystem::temp_directory_path() / "vqllm-test-kernels"));
    CompareOptions options;
    options.weights = weights;
    options.kv = {"kv-fp16"};
    options.context = 16;
    options.decode_tokens = 3;
    return Compare(model_, device, options, text_, {}, NewCpuDevice());
  }

  test::TempDir temp_;
  Model model_;
  std::vector<int32_t> text_;
};

/// Launches of the ops that begin so.
int64_t Launches(const CompareRow& row, const std::string& begin) {
  return std::accumulate(row.ops.begin(), row.ops.end(), int64_t{0}, [&](int64_t sum, const KernelUse& use) {
    return sum + (use.op.starts_with(begin) ? use.launches : 0);
  });
}

TEST_F(CompareOnKernels, CountsADecodeStepInTheInterpreter) {
  const std::vector<CompareRow> rows = Run(NewPtxDriver(ParseGpu("a100")), {"original", "int4-g64"});
  ASSERT_EQ(rows.size(), 2u);
  // Layers' matrices: 64x64 twice, 32x64 twice, 128x64 twice, 64x128; two layers, and lm_head of 259x64.
  const double weights = 2 * (2.0 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64);
  const double head = 2 * 259 * 64;
  EXPECT_GE(rows[0].dram_bytes, 2 * weights + head);
  // Every weight once, and activations, norms, the cache: far less than the weights again.
  EXPECT_LT(rows[0].dram_bytes, 2 * (2 * weights + head));
  EXPECT_GE(rows[1].dram_bytes, weights / 2 + head);
  EXPECT_LT(rows[1].dram_bytes, rows[0].dram_bytes);
  for (const CompareRow& row : rows) {
    EXPECT_EQ(row.decode_tps, 0);
    EXPECT_EQ(Launches(row, "rms_norm"), 2 * 2 + 1);
    EXPECT_EQ(Launches(row, "kv_append"), 2);
    EXPECT_GT(row.shared_wavefronts, 0);
    EXPECT_GT(row.modelled_lower_us, 0);
    EXPECT_GT(row.modelled_upper_us, row.modelled_lower_us);
    double sum = 0;
    for (const KernelUse& use : row.ops) sum += use.dram_bytes;
    EXPECT_DOUBLE_EQ(sum, row.dram_bytes);
  }
  EXPECT_GE(Launches(rows[0], "gemv fp16"), 2 * 7 + 1);
  EXPECT_GE(Launches(rows[1], "gemv int4-g64"), 2 * 7);

  const std::string table = CompareTable(rows);
  EXPECT_THAT(table, HasSubstr("DRAM KiB/tok"));
  EXPECT_THAT(table, HasSubstr("modelled us/tok"));
  EXPECT_THAT(table, Not(HasSubstr("decode t/s")));
  EXPECT_THAT(CompareKernels(rows), HasSubstr("int4-g64 kv-fp16: kernels of a decode step"));
  const json out = json::parse(CompareJson(rows))["rows"][1];
  EXPECT_EQ(out["dram_bytes"].get<double>(), rows[1].dram_bytes);
  EXPECT_EQ(out["ops"].size(), rows[1].ops.size());
  EXPECT_EQ(out["ops"][0]["modelled_lower_us"].get<double>(), rows[1].ops[0].modelled_lower_us);
}

TEST_F(CompareOnKernels, NamesTheKernelsOfAGpuAndMeasuresIt) {
  const CompareRow counted = Run(NewPtxDriver(NewCudaDriver(test::FakeLibcuda())->gpu()), {"original"})[0];
  const std::vector<CompareRow> rows = Run(NewCudaDriver(test::FakeLibcuda()), {"original"});
  // The second step is recorded and the third repeated, which must not hide a launch.
  ASSERT_EQ(rows[0].ops.size(), counted.ops.size());
  for (size_t i = 0; i < counted.ops.size(); ++i) {
    EXPECT_EQ(rows[0].ops[i].op, counted.ops[i].op);
    EXPECT_EQ(rows[0].ops[i].kernels, counted.ops[i].kernels);
    EXPECT_EQ(rows[0].ops[i].launches, counted.ops[i].launches);
  }
  EXPECT_GT(rows[0].decode_tps, 0);
  EXPECT_EQ(rows[0].dram_bytes, 0);
  EXPECT_THAT(CompareTable(rows), Not(HasSubstr("DRAM")));
  EXPECT_THAT(CompareTable(rows), HasSubstr("KL mean"));  // 0, but never left out
  const json out = json::parse(CompareJson(rows))["rows"][0];
  EXPECT_FALSE(out.contains("dram_bytes"));
  EXPECT_EQ(out["ops"].size(), counted.ops.size());
}

}  // namespace
}  // namespace vqllm
