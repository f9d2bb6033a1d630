// Every op on every kind of format, executed: NVRTC's PTX in the interpreter, all hazard checks, against the
// oracle.
#include "runtime/verify.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/support/data.h"
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

class Proof : public testing::TestWithParam<const char*> {
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

TEST_P(Proof, OddShapes) {
  const char* format = GetParam();
  Prove(Wanted({OpKind::kGemv, format, 1, 72, 200}));
  Prove(Wanted({OpKind::kGemv, format, 7, 136, 416, "b200", Level::kBest, DType::kBF16, true}));
  Prove(Wanted({OpKind::kGemm, format, 33, 24, 37}));
  Prove(Wanted({OpKind::kDequant, format, 1, 40, 96, "rtx5090"}));
}

INSTANTIATE_TEST_SUITE_P(Formats, Proof,
                         testing::Values("fp16", "int8-g128", "int4-g128", "int4-g128-sym", "int4-row",
                                         "int3-g128", "int2-g64", "quip-2", "quip-4", "aqlm-2x8", "aqlm-3",
                                         "gptvq-2", "VQ<2,4,1>-g128", "VQ<8,4,4>-g128", "cq-2",
                                         "VQ<6,10,2>-tile96x192", "VQ<3,5,3>", "VQ<16,16,1>", "VQ<5,6,1>-g5",
                                         "VQ<8,12,1>-out", "VQ<4,8,1>-ingroup128-out"));

class Levels : public Proof {};
TEST_P(Levels, EveryLevelComputesTheSame) {
  for (const Level level : {Level::kGc, Level::kSc, Level::kO1, Level::kO2, Level::kO3, Level::kO4}) {
    Prove(Wanted({OpKind::kGemv, GetParam(), 1, 128, 512, "h100", level}));
    Prove(Wanted({OpKind::kGemv, GetParam(), 9, 128, 512, "h100", level}));
  }
}
INSTANTIATE_TEST_SUITE_P(Formats, Levels, testing::Values("aqlm-2x8", "gptvq-2", "quip-4"));

class Fusions : public Proof {};
TEST_P(Fusions, EveryWayToFragmentsComputesTheSame) {
  for (const Fusion fusion : {Fusion::kShared, Fusion::kRegisterShuffle, Fusion::kZeroShuffle}) {
    SCOPED_TRACE(ToString(fusion));
    Request request = Wanted({OpKind::kGemm, GetParam(), 19, 104, 203});
    request.pins.fusion = fusion;
    Prove(request);
    request = Wanted({OpKind::kGemv, GetParam(), 11, 48, 256, "rtx4090", Level::kBest, DType::kBF16, true});
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

TEST_F(Proof, SplitsAddUpInOneOrder) {
  Request request = Wanted({OpKind::kGemv, "aqlm-2x8", 16, 64, 4096});
  uint64_t first = 0;
  for (const int split : {1, 2, 4}) {
    request.pins.split = split;
    const Generated generated = Generate(request);
    VerifyOptions options;
    const VerifyReport a = Verify(generated, KernelCache(temp_.path()), options);
    options.reverse_warps = true;
    options.workers = 2;
    const VerifyReport b = Verify(generated, KernelCache(temp_.path()), options);
    EXPECT_TRUE(a.passed()) << a.result.worst_share;
    EXPECT_EQ(a.output_hash, b.output_hash) << "split " << split;
    if (split == 1) first = a.output_hash;
  }
  EXPECT_NE(first, 0u);
}

TEST_F(Proof, TheCostsOfTheLinesAddUpToTheCounters) {
  Request request = Wanted({OpKind::kGemv, "aqlm-2x8", 4, 64, 2048});
  request.pins.split = 2;  // two launches
  const Generated generated = Generate(request);
  VerifyOptions options;
  options.lines = true;
  const VerifyReport report = Verify(generated, KernelCache(temp_.path()), options);
  LineCost all;
  for (const LineCost& line : report.lines) {
    all.warp_instructions += line.warp_instructions;
    all.sectors += line.sectors;
    all.wavefronts += line.wavefronts;
  }
  const auto counted = [&](std::initializer_list<std::string_view> names) {
    uint64_t sum = 0;
    for (const auto& [name, value] : report.counters) sum += std::ranges::count(names, name) * value;
    return sum;
  };
  EXPECT_EQ(all.warp_instructions, counted({"warp instructions"}));
  EXPECT_EQ(all.sectors, counted({"global load sectors", "global store sectors", "cp.async sectors"}));
  EXPECT_GE(all.wavefronts, counted({"shared load wavefronts", "shared store wavefronts"}));
  const auto lookup = std::ranges::find_if(report.lines, [](const LineCost& line) {
    return line.text.find("= book.shared") != std::string::npos && line.wavefronts > 0;
  });
  EXPECT_NE(lookup, report.lines.end()) << "a lookup in the codebook, by its text";
  EXPECT_TRUE(Verify(generated, KernelCache(temp_.path())).lines.empty());
}

TEST_F(Proof, AWrongKernelIsCaught) {
  Generated generated = Generate(Wanted({OpKind::kGemv, "aqlm-2x8", 1, 64, 512}));
  const std::string barrier = "__syncthreads();";
  std::string& text = generated.text;
  for (size_t at = text.find(barrier); at != std::string::npos; at = text.find(barrier, at))
    text.erase(at, barrier.size());
  const std::vector<std::string> hazards = Verify(generated, KernelCache(temp_.path())).hazards;
  ASSERT_FALSE(hazards.empty());
  EXPECT_THAT(hazards[0], testing::HasSubstr(generated.FileName() + ":")) << "names the line of the .cu";
  generated = Generate(Wanted({OpKind::kGemv, "aqlm-2x8", 1, 64, 512}));
  const size_t fma = generated.text.find("fmaf(w.y");
  ASSERT_NE(fma, std::string::npos);
  generated.text.replace(fma, 8, "fmaf(w.x");
  EXPECT_GT(Verify(generated, KernelCache(temp_.path())).result.worst_share, 1);
}

}  // namespace
}  // namespace vqllm
