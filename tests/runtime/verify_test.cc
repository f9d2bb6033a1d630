// Every op on every kind of format, executed: NVRTC's PTX in the interpreter, all hazard checks, against the
// oracle.
#include "runtime/verify.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/support/data.h"
#include "tests/support/formats.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

struct Case {
  OpKind op;
  const char* format;
  int m, n, k;
  const char* gpu = "a100";
  Level level = Level::kBest;
  DType activation = DType::kF16;
  bool bias = false;
};

Request Wanted(const Case& c) {
  Request request;
  request.op = c.op;
  request.format = ParseFormat(c.format);
  request.m = c.m;
  request.n = c.n;
  request.k = c.k;
  request.gpu = ParseGpu(c.gpu);
  request.level = c.level;
  request.activation = c.activation;
  request.bias = c.bias;
  return request;
}

class Proof : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no CUDA toolkit: set CUDA_HOME";
  }
  void Prove(const Request& request, VerifyOptions options = {}) {
    SCOPED_TRACE(fmt::format("{} {} m {} n {} k {} {} {}", ToString(request.op), request.format.name,
                             request.m, request.n, request.k, request.gpu.name, ToString(request.level)));
    const VerifyReport report = Verify(Generate(request), KernelCache(temp_.path()), options);
    EXPECT_LE(report.result.worst_share, 1) << "at " << report.result.worst_index;
    EXPECT_EQ(report.hazards, std::vector<std::string>());
  }
  test::TempDir temp_;
};

class RegistryProof : public Proof {};
// One arch of each code generator: the sample has every op with every format once or twice.
TEST_P(RegistryProof, OddShapes) {
  const char* format = GetParam().c_str();
  const bool all = test::FullMatrix();
  const bool odd = GetParam().size() % 2 != 0;
  if (all || odd) Prove(Wanted({OpKind::kGemv, format, 1, 72, 200}));
  if (all || !odd)
    Prove(Wanted({OpKind::kGemv, format, 7, 136, 416, "b200", Level::kBest, DType::kBF16, true}));
  Prove(Wanted({OpKind::kGemm, format, 33, 24, 37, odd ? "a100" : "h100"}));
  Prove(Wanted({OpKind::kDequant, format, 1, 40, 96, odd ? "rtx5090" : "rtx4090"}));
  if (!all) return;
  for (const char* gpu : {"a100", "a10", "rtx4090", "h100", "b200", "rtx5090"}) {
    Prove(Wanted({OpKind::kGemv, format, 3, 133, 517, gpu, Level::kBest, DType::kF16, true}));
    Prove(Wanted({OpKind::kGemv, format, 16, 96, 512, gpu}));
    Prove(Wanted({OpKind::kGemm, format, 70, 130, 264, gpu, Level::kBest, DType::kBF16}));
    Prove(Wanted({OpKind::kDequant, format, 1, 33, 131, gpu}));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, RegistryProof, testing::ValuesIn(test::RegistryFormats()));

class Levels : public Proof {};
TEST_P(Levels, EveryLevelComputesTheSame) {
  for (const Level level : {Level::kGc, Level::kSc, Level::kO1, Level::kO2, Level::kO3, Level::kO4}) {
    Prove(Wanted({OpKind::kGemv, GetParam().c_str(), 1, 128, 512, "h100", level}));
    Prove(Wanted({OpKind::kGemv, GetParam().c_str(), 9, 128, 512, "h100", level}));
  }
}
INSTANTIATE_TEST_SUITE_P(Formats, Levels, testing::Values("aqlm-2x8", "gptvq-2", "quip-4"));

class Fusions : public Proof {};
TEST_P(Fusions, EveryWayToFragmentsComputesTheSame) {
  for (const Fusion fusion : {Fusion::kShared, Fusion::kRegisterShuffle, Fusion::kZeroShuffle}) {
    SCOPED_TRACE(ToString(fusion));
    Request request = Wanted({OpKind::kGemm, GetParam().c_str(), 19, 104, 203});
    request.pins.fusion = fusion;
    Prove(request);
    request =
        Wanted({OpKind::kGemv, GetParam().c_str(), 11, 48, 256, "rtx4090", Level::kBest, DType::kBF16, true});
    request.pins.fusion = fusion;
    Prove(request);
  }
}
INSTANTIATE_TEST_SUITE_P(Formats, Fusions,
                         testing::Values("fp16", "int4-g64", "int3-g64", "quip-4", "aqlm-2x8", "gptvq-2",
                                         "VQ<16,4,2>-g64", "VQ<2,4,1>"));

TEST_F(Proof, FusionsThatFormatsCannotHaveAreRefused) {
  Request request = Wanted({OpKind::kGemm, "VQ<6,10,2>", 32, 64, 192});
  request.pins.fusion = Fusion::kRegisterShuffle;
  EXPECT_THROW(Generate(request), Error);
  request.pins.fusion = Fusion::kShared;
  Prove(request);
}

class Tables : public Proof {};
TEST_P(Tables, LookupTablesComputeTheSame) {
  Request request = Wanted({OpKind::kGemv, GetParam().c_str(), 1, 264, 512});
  request.pins.compute = Compute::kTable;
  Prove(request);
  request =
      Wanted({OpKind::kGemv, GetParam().c_str(), 3, 520, 384, "h100", Level::kBest, DType::kBF16, true});
  request.pins.compute = Compute::kTable;
  request.pins.split = 3;
  Prove(request);
}
INSTANTIATE_TEST_SUITE_P(Formats, Tables,
                         testing::Values("aqlm-2x8", "gptvq-2", "VQ<3,5,3>", "VQ<16,6,2>", "VQ<8,4,4>-g128",
                                         "VQ<6,7,2>-ingroup96"));

/// Split-K shapes (m, n, k) that raced or lost accuracy elsewhere.
struct SplitCase {
  OpKind op;
  const char* format;
  int m, n, k;
  std::optional<Compute> compute = {};
};
constexpr SplitCase kSplitCases[] = {{OpKind::kGemv, "aqlm-2x8", 16, 256, 512},
                                     {OpKind::kGemv, "VQ<8,8,1>-row", 1, 64, 4096},
                                     {OpKind::kGemv, "VQ<8,8,1>-row", 1, 64, 4096, Compute::kTable},
                                     {OpKind::kGemm, "VQ<4,6,1>-g32", 17, 264, 1056}};

TEST_F(Proof, SplitsAddUpInOneOrder) {
  const int repeats = test::FullMatrix() ? 500 : 3;
  for (const SplitCase& c : kSplitCases) {
    double whole = 0;
    for (const int split : {1, 2, 3, 5, 8}) {
      // bf16: sums of such terms leave the range of fp16.
      Request request = Wanted({c.op, c.format, c.m, c.n, c.k, "a100", Level::kBest, DType::kBF16});
      request.pins.split = split;
      request.pins.compute = c.compute;
      const Generated generated = Generate(request);
      SCOPED_TRACE(fmt::format("{} m {} split {}", c.format, c.m, generated.plan().split));
      std::optional<uint64_t> first;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        VerifyOptions options;
        options.inputs = ProofInputs::kCancelling;
        options.hazards = repeat == 0;
        options.reverse_warps = repeat % 2 != 0;
        options.workers = 1 + repeat % 3;
        const VerifyReport report = Verify(generated, KernelCache(temp_.path()), options);
        ASSERT_TRUE(report.passed()) << report.result.worst_share;
        if (!first) {
          first = report.output_hash;
          // Parts are summed in fp32: more of them lose nothing.
          if (split == 1) whole = report.result.max_relative_error;
          EXPECT_LE(report.result.max_relative_error, std::max(2 * whole, 0x1p-10));
        }
        ASSERT_EQ(report.output_hash, *first) << "repeat " << repeat;
      }
    }
  }
}

TEST_F(Proof, AWrongKernelIsCaught) {
  Request request = Wanted({OpKind::kGemv, "aqlm-2x8", 1, 64, 512});
  request.pins.compute = Compute::kFma;
  Generated generated = Generate(request);
  const std::string barrier = "__syncthreads();";
  std::string& text = generated.text;
  for (size_t at = text.find(barrier); at != std::string::npos; at = text.find(barrier, at))
    text.erase(at, barrier.size());
  const std::vector<std::string> hazards = Verify(generated, KernelCache(temp_.path())).hazards;
  ASSERT_FALSE(hazards.empty());
  EXPECT_THAT(hazards[0], testing::HasSubstr(generated.FileName() + ":")) << "names the line of the .cu";
  generated = Generate(request);
  const size_t fma = generated.text.find("fmaf(w.y");
  ASSERT_NE(fma, std::string::npos);
  generated.text.replace(fma, 8, "fmaf(w.x");
  EXPECT_GT(Verify(generated, KernelCache(temp_.path())).result.worst_share, 1);
}

}  // namespace
}  // namespace vqllm
