#include "codegen/reorder.h"

#include "codegen/planner.h"
#include "codegen/proof.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

/// Codes with a known skew: entry e is drawn in proportion to 1 / (1 + (e * 37) % entries).
Tensor Skewed(const std::string& format, int64_t rows, int64_t cols) {
  Tensor t = RandomTensor(ParseFormat(format), rows, cols, 3);
  for (size_t stage = 0; stage < t.codes.size(); ++stage) {
    PackedCodes& codes = t.codes[stage];
    const uint32_t entries = static_cast<uint32_t>(t.format.entries[stage]);
    for (int64_t r = 0; r < codes.rows(); ++r) {
      for (int64_t c = 0; c < codes.count(); ++c) {
        if ((r + c) % 3 != 0) codes.Set(r, c, codes.Get(r, c) % 7 * 37 % entries);
      }
    }
  }
  return t;
}

TEST(Reorder, WeightsStayTheSameBitForBit) {
  for (const char* format : {"aqlm-2x8", "gptvq-2", "VQ<6,10,2>-tile96x192", "VQ<4,5,1>-out", "cq-2"}) {
    const Tensor before = Skewed(format, 200, 416);
    const Tensor after = ReorderByFrequency(before);
    ValidateTensor(after, format);
    std::vector<float> a(200 * 416), b(200 * 416);
    DequantizeStored(before, 0, {a.data(), 200, 416});
    DequantizeStored(after, 0, {b.data(), 200, 416});
    EXPECT_EQ(a, b) << format;
    EXPECT_NE(before.codes[0].words(), after.codes[0].words()) << format;
  }
}

TEST(Reorder, HotEntriesComeFirst) {
  const Tensor after = ReorderByFrequency(Skewed("aqlm-2x8", 128, 512));
  for (const StageHistogram& h : CountCodes(after)) {
    EXPECT_EQ(h.total, 128 * 64);
    EXPECT_TRUE(std::is_sorted(h.counts.begin(), h.counts.end(), std::greater<>()));
    EXPECT_GE(h.hot, 1);
    EXPECT_GT(h.hot_share, 0.5);  // two thirds of the codes are one of seven
  }
}

TEST(Reorder, SharesOfTiersFollowTheHistogram) {
  Request request;
  request.format = ParseFormat("aqlm-3");
  request.n = 512;
  request.k = 1024;
  request.gpu = ParseGpu("rtx4090");
  request.level = Level::kO2;
  const Plan plan = MakePlan(request).best.plan;
  ASSERT_EQ(plan.stages[0].held, 32);
  const Tensor before = Skewed("aqlm-3", 512, 1024);
  const auto random = SharesOfTiers(plan, before);
  const auto sorted = SharesOfTiers(plan, ReorderByFrequency(before));
  for (size_t stage = 0; stage < 2; ++stage) {
    EXPECT_NEAR(sorted[stage].held + sorted[stage].shared + sorted[stage].global, 1, 1e-12);
    EXPECT_GT(sorted[stage].held, 0.6);
    EXPECT_LE(sorted[stage].global, random[stage].global + 1e-12);
  }
}

}  // namespace
}  // namespace vqllm
