#include "codegen/kv/planner.h"

#include <gtest/gtest.h>

#include <vector>

#include "codegen/kv/cost.h"
#include "codegen/kv/traffic.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

KvRequest Wanted(const char* format, int kv_heads, int group, int context, int rows, const char* gpu) {
  KvRequest request;
  request.shape.key = request.shape.value = ParseFormat(format);
  request.shape.kv_heads = kv_heads;
  request.shape.head_dim = request.shape.rope_dim = 128;
  request.shape.context = context;
  request.group = group;
  request.rows = rows;
  request.gpu = ParseGpu(gpu);
  return request;
}
double Modelled(const KvRequest& request) {
  const KvPlan plan = MakeKvPlan(request);
  return ModelKvTime(plan, PredictKvCounters(plan), request.gpu).lower_us;
}

constexpr const char* kGpus[] = {"a100", "h100", "rtx4090"};
constexpr const char* kFormats[] = {"kv-fp16", "kv-int4", "cq-4", "cq-2"};

// One sequence alone must not leave SMs idle: splits share its tokens out.
TEST(KvPlanner, SplitsFillTheGpuAtBatchOne) {
  for (const char* gpu : kGpus) {
    for (const char* format : kFormats) {
      for (const int context : {4096, 16384}) {
        for (const int kv_heads : {32, 8}) {
          const KvRequest request = Wanted(format, kv_heads, 32 / kv_heads, context, 1, gpu);
          const KvPlan plan = MakeKvPlan(request);
          EXPECT_GE(WaveEfficiency(plan, request.gpu), 0.85) << gpu << " " << format << " " << context << " "
                                                             << kv_heads << ": " << plan.splits << " splits";
        }
      }
    }
  }
}

TEST(KvPlanner, BestIsNoWorseThanAnyLevel) {
  for (const char* format : {"cq-4", "cq-2", "cq-1"}) {
    for (const int kv_heads : {32, 8}) {
      KvRequest request = Wanted(format, kv_heads, 32 / kv_heads, 4096, 1, "h100");
      const double best = Modelled(request);
      for (const Level level : {Level::kGc, Level::kSc, Level::kO1, Level::kO2, Level::kO3, Level::kO4}) {
        request.level = level;
        EXPECT_LE(best, 1.02 * Modelled(request)) << format << " " << ToString(level);
      }
    }
  }
}

// Products of q with all entries pay off where one table serves many tokens and few heads.
TEST(KvPlanner, TakesTablesForLongContextsAndFewHeads) {
  EXPECT_EQ(MakeKvPlan(Wanted("cq-2", 32, 1, 16384, 8, "a100")).key.compute, KvCompute::kCodes);
  EXPECT_EQ(MakeKvPlan(Wanted("cq-4", 4, 8, 16384, 8, "a100")).key.compute, KvCompute::kDequantise);
  KvRequest turning = Wanted("cq-2", 32, 1, 16384, 8, "a100");
  turning.shape.keys_before_rope = true;
  EXPECT_EQ(MakeKvPlan(turning).key.compute, KvCompute::kDequantise);
}

// A histogram takes a word of shared memory for each entry and lane: small codebooks of long subvectors, many
// tokens.
TEST(KvPlanner, TakesHistogramsForSmallCodebooksOfLongSubvectors) {
  EXPECT_EQ(MakeKvPlan(Wanted("VQ<16,4,1>-head", 32, 1, 16384, 8, "a100")).value.compute, KvCompute::kCodes);
  EXPECT_EQ(MakeKvPlan(Wanted("cq-4", 32, 1, 16384, 8, "a100")).value.compute, KvCompute::kDequantise);
}

TEST(KvPlanner, LevelsKeepWhatTheyAllow) {
  KvRequest request = Wanted("cq-2", 8, 4, 4096, 1, "a100");
  request.level = Level::kGc;
  KvPlan plan = MakeKvPlan(request);
  EXPECT_EQ(plan.key.EntryBytes() + plan.value.EntryBytes(), 0);
  request.level = Level::kSc;
  plan = MakeKvPlan(request);
  EXPECT_EQ(plan.key.stages[0].shared, 256);
  EXPECT_EQ(plan.value.stages[0].shared, 256);
  request.level = Level::kO1;
  plan = MakeKvPlan(request);
  EXPECT_GT(plan.key.stages[0].shared, 0);
  EXPECT_LT(plan.key.stages[0].shared, 256);
  // No resident block is lost to entries.
  KvRequest without = request;
  without.level = Level::kGc;
  const KvPlan bare = MakeKvPlan(without);
  const auto resident = [](const KvPlan& p) {
    return ComputeOccupancy(LimitsOf(p.arch), p.Threads(), p.register_budget, p.shared_bytes).blocks;
  };
  EXPECT_EQ(resident(plan), resident(bare));
}

// The planner's shortcut against the sum over all rows, splits and heads.
TEST(KvTraffic, EstimateIsTheSumWhereRowsAreAlike) {
  for (const char* format : kFormats) {
    const KvRequest request = Wanted(format, 8, 4, 4096, 3, "a100");
    const KvPlan plan = MakeKvPlan(request);
    const std::vector<int> lengths(3, 4096);
    const Traffic sum = KvTraffic(plan, lengths);
    const Traffic estimate = EstimateKvTraffic(plan);
    for (size_t i = 0; i < static_cast<size_t>(Metric::kCount); ++i) {
      const Metric metric = static_cast<Metric>(i);
      EXPECT_NEAR(estimate[metric], sum[metric], 0.01 * sum[metric]) << format << " " << NameOf(metric);
    }
  }
}

}  // namespace
}  // namespace vqllm
