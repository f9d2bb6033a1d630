// What is predicted of the traffic of decode attention is what the interpreter counts.
#include <algorithm>
#include <map>

#include "codegen/kv/cost.h"
#include "runtime/verify_kv.h"
#include "tests/support/data.h"

namespace vqllm {
namespace {

struct Case {
  const char* key;
  const char* value;
  int kv_heads = 1;
  int group = 1;
  int head_dim = 128;
  std::vector<int> lengths = {512};
  int split_tokens = 256;
  int q_tokens = 1;
  int key_compute = 0;
  int value_compute = 0;
  Level level = Level::kBest;
  const char* gpu = "a100";
  int warps = 4;
  int tile = 0;
};

std::string Title(const Case& c) {
  return fmt::format("{}/{} {}x{}x{} split {} {} {}", c.key, c.value, c.kv_heads, c.group, c.head_dim,
                     c.split_tokens, ToString(c.level), c.gpu);
}
void PrintTo(const Case& c, std::ostream* out) { *out << Title(c); }

/// Counts that random codes decide: how many banks and sectors the lookups of a warp meet.
bool DependsOnCodes(const KvPlan& plan, Metric metric) {
  bool lookups = false;
  bool global = false;
  for (const KvSidePlan* side : {&plan.key, &plan.value}) {
    for (const StageTier& tier : side->stages) {
      lookups = true;
      global |= side->Codes() || tier.shared < tier.entries;
    }
  }
  switch (metric) {
    case Metric::kGlobalLoadRequests:
    case Metric::kGlobalLoadSectors:
    case Metric::kLoadSectorsPerBlock:
    case Metric::kLoadSectorsPerLaunch:
      return global;
    case Metric::kSharedLoadRequests:
    case Metric::kSharedLoadWavefronts:
    case Metric::kSharedLoadWavefrontsIdeal:
      return lookups;
    default:
      return false;
  }
}

class KvPrediction : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no CUDA toolkit: set CUDA_HOME";
  }
  test::TempDir temp_;
};

TEST_P(KvPrediction, EqualsWhatIsCounted) {
  const Case& c = GetParam();
  KvRequest request;
  request.shape.key = ParseFormat(c.key);
  request.shape.value = ParseFormat(c.value);
  request.shape.kv_heads = c.kv_heads;
  request.shape.head_dim = request.shape.rope_dim = c.head_dim;
  request.shape.context = *std::max_element(c.lengths.begin(), c.lengths.end());
  request.group = c.group;
  request.q_tokens = request.shape.chunk = c.q_tokens;
  request.rows = static_cast<int>(c.lengths.size());
  request.level = c.level;
  request.gpu = ParseGpu(c.gpu);
  request.pins.split_tokens = c.split_tokens;
  request.pins.key_compute = c.key_compute;
  request.pins.value_compute = c.value_compute;
  request.pins.warps = c.warps;
  request.pins.tile = c.tile;
  KvProofOptions data;
  for (const int length : c.lengths) data.rows.push_back({c.q_tokens, length});
  const GeneratedKv generated = Generate(request);
  const VerifyReport report = Verify(generated, KernelCache(temp_.path()), {}, data);
  EXPECT_TRUE(report.passed());
  const std::map<std::string, uint64_t> counted(report.counters.begin(), report.counters.end());
  ASSERT_EQ(report.predicted.size(), static_cast<size_t>(Metric::kCount));
  // Instructions are an estimate for full rows: within what would turn a choice.
  const bool full = std::all_of(c.lengths.begin(), c.lengths.end(),
                                [&](int length) { return length == request.shape.context; });
  const double instructions = static_cast<double>(counted.at("warp instructions"));
  if (full) {
    EXPECT_NEAR(PredictKvCounters(generated.plan).instructions, instructions, 0.25 * instructions);
  }
  for (size_t i = 0; i < static_cast<size_t>(Metric::kCount); ++i) {
    const double predicted = report.predicted[i].second;
    const double found = static_cast<double>(counted.at(report.predicted[i].first));
    if (DependsOnCodes(generated.plan, static_cast<Metric>(i))) {
      EXPECT_NEAR(predicted, found, 0.02 * found) << report.predicted[i].first;
    } else {
      EXPECT_DOUBLE_EQ(predicted, found) << report.predicted[i].first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scalar, KvPrediction,
                         testing::Values(Case{"kv-fp16", "kv-fp16"},
                                         Case{"kv-int4", "kv-int8", 2, 4, 128, {300, 0, 77}, 128, 1},
                                         Case{"kv-bf16", "kv-int4", 2, 5, 80, {200}, 256, 2},
                                         Case{"kv-int8", "kv-fp16", 1, 3, 96, {131, 500}, 64, 5}));
INSTANTIATE_TEST_SUITE_P(
    Codebooks, KvPrediction,
    testing::Values(Case{"cq-4", "cq-2", 2, 1, 128, {512}, 256, 1, 0, 0, Level::kGc},
                    Case{"cq-1", "cq-1", 1, 4, 128, {512}, 512, 1, 0, 0, Level::kO1},
                    Case{"cq-4", "cq-4", 1, 2, 128, {1024}, 512, 1, 0, 0, Level::kSc},
                    Case{"cq-4", "cq-4", 1, 2, 128, {1024}, 512, 1, 0, 0, Level::kBest},
                    Case{"VQ<2,6,2>-head", "VQ<4,7,1>-head", 1, 2, 80, {1024}, 512, 1, 0, 0, Level::kSc},
                    Case{"cq-2", "cq-4", 2, 2, 64, {1024, 1024}, 256, 1, 0, 0, Level::kSc, "rtx4090"}));
INSTANTIATE_TEST_SUITE_P(
    Codes, KvPrediction,
    testing::Values(Case{"cq-2", "cq-2", 2, 1, 128, {1024}, 512, 1, 1, 0},
                    Case{"cq-1", "cq-1", 1, 2, 128, {2048}, 2048, 1, 1, 1, Level::kBest, "h100", 2, 1},
                    Case{"cq-4", "VQ<4,5,1>-head", 1, 1, 128, {1024}, 1024, 1, 1, 1, Level::kBest, "h100", 4},
                    Case{"VQ<8,7,2>-head", "VQ<16,4,1>-head", 2, 3, 64, {700, 350}, 256, 2, 1, 1}));

}  // namespace
}  // namespace vqllm
