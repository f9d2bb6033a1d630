#include "codegen/lookup_model.h"

#include <bit>
#include <cmath>
#include <set>

#include "codegen/traffic.h"
#include "vq/base/rng.h"

namespace vqllm {
namespace {

StageTier Tier(int entries, int held, int shared, int replicas) {
  StageTier tier;
  tier.entries = entries;
  tier.held = held;
  tier.shared = shared;
  tier.replicas = replicas;
  return tier;
}

/// The same by drawing codes.
LookupCost Drawn(const StageTier& tier, int bytes, const LookupLanes& lanes, int trials) {
  Rng rng(3);
  LookupCost sum;
  for (int trial = 0; trial < trials; ++trial) {
    std::set<int64_t> sectors;
    const auto code_of = [&](int lane) {
      return (lanes.random >> lane & 1) != 0
                 ? static_cast<int64_t>(rng.Below(static_cast<uint64_t>(tier.entries)))
             : (lanes.zero >> lane & 1) != 0 ? 0
                                             : -1;
    };
    const WarpAccess shared = WarpAccess::Of([&](int lane) -> int64_t {
      const int64_t code = code_of(lane);
      if (code < tier.held) return -1;
      if (code < tier.shared) return (code * tier.replicas + lane % tier.replicas) * bytes;
      sectors.insert(code * bytes / 32);
      return -1;
    });
    const BankPasses passes = PassesOf(shared, bytes);
    sum.shared_requests += shared.mask != 0;
    sum.wavefronts += passes.actual;
    sum.ideal += passes.ideal;
    sum.global_requests += !sectors.empty();
    sum.sectors += static_cast<double>(sectors.size());
  }
  for (double* value :
       {&sum.shared_requests, &sum.wavefronts, &sum.ideal, &sum.global_requests, &sum.sectors})
    *value /= trials;
  return sum;
}

TEST(LookupModel, ExpectationsAreThoseOfDrawnCodes) {
  const struct {
    StageTier tier;
    int bytes;
    LookupLanes lanes;
  } cases[] = {
      {Tier(256, 0, 256, 1), 4, {}},
      {Tier(256, 0, 256, 1), 16, {}},
      {Tier(256, 0, 256, 4), 16, {}},
      {Tier(256, 0, 256, 8), 16, {}},
      {Tier(37, 0, 37, 2), 8, {}},
      {Tier(4096, 32, 2000, 1), 16, {}},
      {Tier(4096, 0, 0, 1), 16, {}},
      {Tier(65536, 0, 3000, 1), 8, {}},
      {Tier(256, 0, 256, 2), 8, {0x0003ffff, 0xfffc0000}},
      {Tier(64, 0, 64, 1), 16, {0x00ff0f0f, 0xff00f0f0}},
      {Tier(16, 0, 0, 1), 4, {0x0000ffff, 0xffff0000}},
      {Tier(40, 32, 40, 1), 4, {0x00ffffff, 0xff000000}},
  };
  constexpr int kTrials = 40000;
  for (const auto& c : cases) {
    SCOPED_TRACE(fmt::format("{} entries, {} held, {} shared x {}, {} bytes", c.tier.entries, c.tier.held,
                             c.tier.shared, c.tier.replicas, c.bytes));
    const LookupCost cost = ExpectedLookup(c.tier, c.bytes, c.bytes, c.lanes);
    const LookupCost drawn = Drawn(c.tier, c.bytes, c.lanes, kTrials);
    // A request's wavefronts and sectors spread by less than 3: five standard errors of the mean.
    const double tolerance = 5 * 3 / std::sqrt(kTrials);
    EXPECT_NEAR(cost.shared_requests, drawn.shared_requests, tolerance / 6);
    EXPECT_NEAR(cost.wavefronts, drawn.wavefronts, tolerance);
    EXPECT_NEAR(cost.ideal, drawn.ideal, tolerance);
    EXPECT_NEAR(cost.global_requests, drawn.global_requests, tolerance / 6);
    EXPECT_NEAR(cost.sectors, drawn.sectors, tolerance);
  }
}

TEST(LookupModel, ReplicasInEveryBankEndConflicts) {
  for (const auto& [bytes, replicas] : {std::pair{4, 32}, {8, 16}, {16, 8}}) {
    const LookupCost cost = ExpectedLookup(Tier(256, 0, 256, replicas), bytes, bytes, {});
    EXPECT_DOUBLE_EQ(cost.wavefronts, cost.ideal);
    EXPECT_DOUBLE_EQ(cost.ideal, bytes / 4);
  }
}

TEST(LookupModel, OneEntryIsOneWavefrontAPart) {
  const LookupCost cost = ExpectedLookup(Tier(1, 0, 1, 1), 16, 16, {});
  EXPECT_DOUBLE_EQ(cost.wavefronts, 4);
}

TEST(LookupModel, DistinctGroupsGrowToAll) {
  EXPECT_NEAR(ExpectedDistinct(0, 256, 256, 2, 1e6), 128, 1e-9);
  EXPECT_NEAR(ExpectedDistinct(0, 256, 256, 2, 1), 1, 1e-9);
  EXPECT_NEAR(ExpectedDistinct(3, 4, 8, 4, 1), 1.0 / 8, 1e-12);
  EXPECT_EQ(ExpectedDistinct(5, 5, 8, 2, 10), 0);
}

}  // namespace
}  // namespace vqllm
