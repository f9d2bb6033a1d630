// What the planner predicts of a kernel's traffic is what the interpreter counts.
#include <map>

#include "codegen/decode/decoder.h"
#include "runtime/verify.h"
#include "tests/support/data.h"

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
  int split = 0;
  std::optional<Compute> compute = {};
  std::optional<Fusion> fusion = {};
};

std::string Title(const Case& c) {
  return fmt::format("{} {} m {} n {} k {} {} {}", ToString(c.op), c.format, c.m, c.n, c.k, c.gpu,
                     ToString(c.level));
}

void PrintTo(const Case& c, std::ostream* out) { *out << Title(c); }

/// Counts that random codes decide: how many banks and sectors the lookups of a warp meet.
bool DependsOnCodes(const Plan& plan, Metric metric) {
  switch (metric) {
    case Metric::kGlobalLoadRequests:
    case Metric::kGlobalLoadSectors:
    case Metric::kLoadSectorsPerBlock:
    case Metric::kLoadSectorsPerLaunch:
      for (const StageTier& tier : plan.stages) {
        if (std::max(tier.held, tier.shared) < tier.entries) return true;
      }
      return false;
    case Metric::kSharedLoadRequests:
    case Metric::kSharedLoadWavefronts:
    case Metric::kSharedLoadWavefrontsIdeal:
      return !plan.stages.empty();
    default:
      return false;
  }
}

class Prediction : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no CUDA toolkit: set CUDA_HOME";
  }
  test::TempDir temp_;
};

TEST_P(Prediction, EqualsWhatIsCounted) {
  const Case& c = GetParam();
  SCOPED_TRACE(Title(c));
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
  request.pins.split = c.split;
  request.pins.compute = c.compute;
  request.pins.fusion = c.fusion;
  const Generated generated = Generate(request);
  const VerifyReport report = Verify(generated, KernelCache(temp_.path()));
  EXPECT_TRUE(report.passed());
  const std::map<std::string, uint64_t> counted(report.counters.begin(), report.counters.end());
  const Traffic& traffic = generated.planned.best.counters.traffic;
  for (size_t i = 0; i < static_cast<size_t>(Metric::kCount); ++i) {
    const Metric metric = static_cast<Metric>(i);
    const double found = static_cast<double>(counted.at(std::string(NameOf(metric))));
    if (DependsOnCodes(generated.plan(), metric)) {
      EXPECT_NEAR(traffic[metric], found, 0.02 * found) << NameOf(metric);
    } else {
      EXPECT_DOUBLE_EQ(traffic[metric], found) << NameOf(metric);
    }
  }
}

constexpr OpKind kGemv = OpKind::kGemv;
constexpr OpKind kGemm = OpKind::kGemm;
// Sizes: some 2000 lookups of a warp keep the spread of their sum below half a per cent.
INSTANTIATE_TEST_SUITE_P(
    Plain, Prediction,
    testing::Values(Case{kGemv, "fp16", 1, 72, 200}, Case{kGemv, "int8-g128", 3, 130, 520, "h100"},
                    Case{kGemv, "int4-g128", 1, 136, 4096, "rtx4090", Level::kBest, DType::kF16, true, 4},
                    Case{kGemv, "int3-g128", 4, 72, 1000}, Case{kGemv, "int2-g64", 16, 136, 416},
                    Case{kGemm, "fp16", 33, 40, 200, "b200", Level::kBest, DType::kBF16, true},
                    Case{kGemm, "int4-g128", 64, 136, 1024, "h100", Level::kBest, DType::kF16, true, 2},
                    Case{kGemm, "int4-g128-sym", 17, 72, 37}));
INSTANTIATE_TEST_SUITE_P(
    Codebooks, Prediction,
    testing::Values(Case{kGemv, "aqlm-2x8", 1, 520, 1032},
                    Case{kGemv, "aqlm-2x8", 2, 520, 1032, "h100", Level::kGc},
                    Case{kGemv, "aqlm-2x8", 1, 520, 1032, "h100", Level::kO2},
                    Case{kGemv, "aqlm-3", 1, 520, 1032, "rtx4090", Level::kO2},
                    Case{kGemv, "aqlm-3", 3, 520, 1040, "rtx4090", Level::kSc},
                    Case{kGemv, "gptvq-2", 1, 520, 776}, Case{kGemv, "quip-4", 1, 520, 1032, "h100"},
                    Case{kGemv, "quip-2", 1, 520, 1032, "rtx4090", Level::kSc},
                    Case{kGemv, "VQ<6,10,2>-tile96x192", 1, 576, 768, "a100", Level::kGc},
                    Case{kGemv, "VQ<3,5,3>", 1, 260, 1030}, Case{kGemv, "VQ<16,16,1>", 1, 520, 2048},
                    Case{kGemv, "VQ<8,12,1>-out", 2, 1040, 520}, Case{kGemm, "aqlm-2x8", 40, 136, 2048},
                    Case{kGemm, "gptvq-2", 24, 512, 512, "h100", Level::kSc},
                    Case{kGemm, "VQ<5,6,1>-g5", 20, 136, 1200}, Case{kGemm, "quip-4", 20, 136, 2048},
                    Case{OpKind::kDequant, "gptvq-2", 1, 520, 776}));

constexpr Fusion kShared = Fusion::kShared;
constexpr Fusion kShuffle = Fusion::kRegisterShuffle;
INSTANTIATE_TEST_SUITE_P(
    Fusions, Prediction,
    testing::Values(
        Case{kGemm, "aqlm-2x8", 40, 136, 2048, "a100", Level::kBest, DType::kF16, false, 0, {}, kShared},
        Case{kGemm, "aqlm-2x8", 40, 136, 2048, "a100", Level::kBest, DType::kF16, false, 0, {}, kShuffle},
        Case{kGemm, "int4-g64", 20, 72, 520, "h100", Level::kBest, DType::kBF16, true, 0, {}, kShared},
        Case{kGemm, "int4-g128", 20, 72, 520, "h100", Level::kBest, DType::kF16, true, 2, {}, kShuffle},
        Case{kGemm, "VQ<6,8,1>", 20, 136, 1200, "a100", Level::kBest, DType::kF16, false, 0, {}, kShared},
        Case{kGemm, "gptvq-2", 24, 512, 512, "h100", Level::kO4},
        Case{kGemm, "VQ<4,8,1>-out-g64", 24, 264, 520},
        Case{
            kGemm, "VQ<8,8,1>-out", 24, 264, 520, "a100", Level::kBest, DType::kF16, false, 0, {}, kShared}));
constexpr Compute kTable = Compute::kTable;
INSTANTIATE_TEST_SUITE_P(
    Tables, Prediction,
    testing::Values(
        Case{kGemv, "aqlm-2x8", 1, 1040, 1032, "a100", Level::kBest, DType::kF16, false, 0, kTable},
        Case{kGemv, "VQ<4,6,2>", 3, 520, 1000, "h100", Level::kBest, DType::kBF16, true, 4, kTable},
        Case{kGemv, "VQ<3,5,3>", 1, 520, 1030, "a100", Level::kBest, DType::kF16, false, 0, kTable},
        Case{kGemv, "VQ<16,6,1>-g128", 2, 520, 1024, "a100", Level::kBest, DType::kF16, false, 0, kTable},
        Case{kGemv, "gptvq-2", 1, 512, 776, "h100", Level::kBest, DType::kF16, false, 0, kTable},
        Case{kGemv, "VQ<6,7,2>-ingroup96", 1, 1032, 768, "a100", Level::kBest, DType::kF16, false, 3,
             kTable}));

}  // namespace
}  // namespace vqllm
