#include "codegen/traffic.h"

#include <set>

#include "vq/base/rng.h"

namespace vqllm {
namespace {

TEST(Traffic, SectorsOfLoopsAreThoseOfEveryTurn) {
  Rng rng(7);
  for (int trial = 0; trial < 50; ++trial) {
    const int bytes = 1 << (1 + rng.Below(4));
    const Loop loops[] = {
        {static_cast<int64_t>(1 + rng.Below(70)), static_cast<int64_t>(bytes * rng.Below(99))},
        {static_cast<int64_t>(1 + rng.Below(9)), static_cast<int64_t>(bytes * rng.Below(5000))}};
    const WarpAccess access = WarpAccess::Of([&](int) -> int64_t {
      return rng.Below(5) == 0 ? -1 : static_cast<int64_t>(rng.Below(64) * static_cast<uint64_t>(bytes));
    });
    Traffic traffic;
    traffic.GlobalLoad(access, bytes, {loops[0], loops[1]});
    double sectors = 0;
    double lines = 0;
    for (int64_t i = 0; i < loops[0].count; ++i) {
      for (int64_t j = 0; j < loops[1].count; ++j) {
        std::set<int64_t> touched, touched_lines;
        for (int lane = 0; lane < 32; ++lane) {
          if ((access.mask >> lane & 1) == 0) continue;
          const int64_t at = access.at[static_cast<size_t>(lane)] + i * loops[0].stride + j * loops[1].stride;
          touched.insert(at / 32);
          touched_lines.insert(at / 128);
        }
        sectors += static_cast<double>(touched.size());
        lines += static_cast<double>(touched_lines.size());
      }
    }
    EXPECT_EQ(traffic[Metric::kGlobalLoadSectors], sectors);
    EXPECT_EQ(traffic.global_lines, lines);
    EXPECT_EQ(traffic[Metric::kGlobalLoadRequests],
              access.mask == 0 ? 0.0 : static_cast<double>(loops[0].count * loops[1].count));
  }
}

TEST(Traffic, TouchCountsASectorOnceABlock) {
  Traffic traffic;
  const ByteRange ranges[] = {{0, 40}, {40, 8}, {64, 1}, {200, 0}, {320, 64}};
  traffic.Touch(Metric::kLoadSectorsPerBlock, ranges, {});
  EXPECT_EQ(traffic[Metric::kLoadSectorsPerBlock], 2 + 1 + 2);
  // Every second block lies across sectors: [16, 48) is two of them.
  const ByteRange range[] = {{0, 32}};
  traffic.Touch(Metric::kStoreSectorsPerBlock, range, {{10, 16}});
  EXPECT_EQ(traffic[Metric::kStoreSectorsPerBlock], 5 * 1 + 5 * 2);
}

TEST(Traffic, PassesOverBanks) {
  const auto strided = [](int64_t stride) { return WarpAccess::Of([=](int lane) { return lane * stride; }); };
  EXPECT_EQ(PassesOf(strided(4), 4).actual, 1);
  EXPECT_EQ(PassesOf(strided(8), 4).actual, 2);
  EXPECT_EQ(PassesOf(strided(128), 4).actual, 32);
  EXPECT_EQ(PassesOf(strided(0), 4).actual, 1);  // one word for all
  EXPECT_EQ(PassesOf(strided(2), 2).actual, 1);
  EXPECT_EQ(PassesOf(strided(16), 16).actual, 4);
  EXPECT_EQ(PassesOf(strided(16), 16).ideal, 4);
  EXPECT_EQ(PassesOf(strided(32), 16).actual, 8);
  EXPECT_EQ(PassesOf(strided(80), 16).actual, 4);  // an odd number of 16 bytes
  EXPECT_EQ(PassesOf(strided(8), 8).actual, 2);
  const WarpAccess one = WarpAccess::Of([](int lane) { return lane == 9 ? 0 : -1; });
  EXPECT_EQ(PassesOf(one, 16).ideal, 1);
}

}  // namespace
}  // namespace vqllm
