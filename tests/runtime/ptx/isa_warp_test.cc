#include <bit>
#include <limits>

#include "tests/runtime/ptx/support.h"
#include "vq/base/half.h"
#include "vq/base/rng.h"

/// Instructions across the lanes of a warp, matrices, atomics and control flow.
namespace vqllm::ptx::test {
namespace {

// The rule of shfl.sync in the PTX ISA, word for word.
void Shuffled(const std::string& mode, int lane, uint32_t b, uint32_t c, int* source, bool* in_range) {
  const int bval = b & 31;
  const int cval = c & 31;
  const int mask = c >> 8 & 31;
  const int max_lane = (lane & mask) | (cval & ~mask);
  const int min_lane = lane & mask;
  int j = 0;
  bool p = false;
  if (mode == "up") {
    j = lane - bval;
    p = j >= max_lane;
  } else if (mode == "down") {
    j = lane + bval;
    p = j <= max_lane;
  } else if (mode == "bfly") {
    j = lane ^ bval;
    p = j <= max_lane;
  } else {
    j = min_lane | (bval & ~mask);
    p = j <= max_lane;
  }
  *source = p ? j : lane;
  *in_range = p;
}

TEST(IsaWarp, ShuffleModesClampsAndSegments) {
  for (const char* mode : {"up", "down", "bfly", "idx"}) {
    for (const uint32_t c : {0x1fu, 0x0u, 0x181fu, 0x1c07u, 0x1800u, 0x100fu}) {
      for (const uint32_t b : {0u, 1u, 5u, 16u, 31u, 33u}) {
        const WarpResult result = RunWarp(
            fmt::format("add.u32 %r5, %r0, 100;\nshfl.sync.{}.b32 %r1|%p1, %r5, {}, {}, -1;\nselp.b32 %r2, "
                        "1, 0, %p1;\n",
                        mode, b, c),
            2);
        for (int lane = 0; lane < 32; ++lane) {
          int source = 0;
          bool in_range = false;
          Shuffled(mode, lane, b, c, &source, &in_range);
          ASSERT_EQ(result.out[lane * 2], 100u + static_cast<uint32_t>(source))
              << mode << " " << b << " " << c;
          ASSERT_EQ(result.out[lane * 2 + 1], in_range ? 1u : 0u) << mode << " " << b << " " << c;
        }
      }
    }
  }
}

TEST(IsaWarp, VoteMatchReduceElect) {
  const WarpResult result = RunWarp(
      "setp.lt.u32 %p1, %r0, 5;\nvote.sync.ballot.b32 %r1, %p1, -1;\nvote.sync.any.pred %p2, %p1, -1;\n"
      "vote.sync.all.pred %p3, %p1, -1;\nvote.sync.uni.pred %p4, !%p1, -1;\nselp.b32 %r20, 1, 0, %p2;\n"
      "selp.b32 %r21, 2, 0, %p3;\nselp.b32 %r22, 4, 0, %p4;\nor.b32 %r2, %r20, %r21;\nor.b32 %r2, %r2, "
      "%r22;\n"
      "and.b32 %r10, %r0, 3;\nmatch.any.sync.b32 %r3, %r10, -1;\nmatch.all.sync.b32 %r4|%p5, %r10, -1;\n"
      "redux.sync.add.u32 %r5, %r0, -1;\nsub.s32 %r11, %r0, 16;\nredux.sync.min.s32 %r6, %r11, -1;\n"
      "redux.sync.xor.b32 %r7, %r0, -1;\nelect.sync %r8|%p6, -16;\nactivemask.b32 %r9;\n",
      9);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t* out = &result.out[lane * 9];
    EXPECT_EQ(out[0], 31u);
    EXPECT_EQ(out[1], 1u);
    EXPECT_EQ(out[2], 0x11111111u << (lane & 3));
    EXPECT_EQ(out[3], 0u);
    EXPECT_EQ(out[4], 496u);
    EXPECT_EQ(out[5], static_cast<uint32_t>(-16));
    EXPECT_EQ(out[6], 0u);
    EXPECT_EQ(out[7], 4u);
    EXPECT_EQ(out[8], ~0u);
  }
}

TEST(IsaWarp, TilesOfAWarpWithTheirOwnMemberMasks) {
  // Lane l names the eight lanes of its tile.
  const WarpResult result = RunWarp(
      "and.b32 %r10, %r0, 24;\nshl.b32 %r11, 255, %r10;\nshfl.sync.bfly.b32 %r1, %r0, 1, 0x181f, "
      "%r11;\nredux.sync.add.u32 "
      "%r2, %r0, %r11;\nsetp.eq.u32 %p1, %r0, 9;\nvote.sync.any.pred %p2, %p1, %r11;\nselp.b32 %r3, 1, 0, "
      "%p2;\n",
      3);
  EXPECT_EQ(Text(result.report.hazards), "");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(result.out[lane * 3], lane ^ 1);
    EXPECT_EQ(result.out[lane * 3 + 1], 8 * (lane & 24) + 28);
    EXPECT_EQ(result.out[lane * 3 + 2], lane / 8 == 1 ? 1u : 0u);
  }
}

TEST(IsaWarp, ReductionsOfFloats) {
  const auto reduce = [](const std::string& opcode, std::vector<float> values) {
    values.resize(32, values[0]);
    std::vector<uint32_t> bits;
    for (const float v : values) bits.push_back(std::bit_cast<uint32_t>(v));
    const WarpResult result = RunWarp(
        "mul.wide.u32 %l2, %r0, 4;\nadd.s64 %l2, %l2, %l1;\nld.global.u32 %r5, "
        "[%l2];\n" +
            opcode + " %r1, %r5, -1;\n",
        1, bits);
    EXPECT_EQ(Text(result.report.hazards), "");
    for (const uint32_t lane : result.out) EXPECT_EQ(lane, result.out[0]);
    return result.out[0];
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  EXPECT_EQ(reduce("redux.sync.min.f32", {1, -3, 2}), bits(-3));
  EXPECT_EQ(reduce("redux.sync.max.f32", {1, -3, 2}), bits(2));
  EXPECT_EQ(reduce("redux.sync.max.abs.f32", {1, -3, 2}), bits(3));
  EXPECT_EQ(reduce("redux.sync.min.abs.f32", {-1, -3, 2}), bits(1));
  EXPECT_EQ(reduce("redux.sync.max.f32", {nan, -3, -2}), bits(-2)) << "numbers win";
  EXPECT_EQ(reduce("redux.sync.max.NaN.f32", {1, nan, 2}), 0x7fffffffu);
  EXPECT_EQ(reduce("redux.sync.min.abs.NaN.f32", {1, nan, 2}), 0x7fffffffu);
  EXPECT_EQ(reduce("redux.sync.min.f32", {nan}), 0x7fffffffu) << "nothing but NaN";
  EXPECT_EQ(reduce("redux.sync.min.f32", {0.0f, -0.0f}), bits(-0.0f));
}

TEST(IsaWarp, ReductionsOfIntegersAndBits) {
  const auto reduce = [](const std::string& opcode) {
    // -16 .. 15
    return RunWarp("sub.s32 %r5, %r0, 16;\n" + opcode + " %r1, %r5, -1;\n", 1).out[7];
  };
  EXPECT_EQ(reduce("redux.sync.add.s32"), static_cast<uint32_t>(-16));
  EXPECT_EQ(reduce("redux.sync.add.u32"), static_cast<uint32_t>(-16));
  EXPECT_EQ(reduce("redux.sync.min.s32"), static_cast<uint32_t>(-16));
  EXPECT_EQ(reduce("redux.sync.max.s32"), 15u);
  EXPECT_EQ(reduce("redux.sync.min.u32"), 0u);
  EXPECT_EQ(reduce("redux.sync.max.u32"), 0xffffffffu);
  EXPECT_EQ(reduce("redux.sync.and.b32"), 0u);
  EXPECT_EQ(reduce("redux.sync.or.b32"), 0xffffffffu);
  EXPECT_EQ(reduce("redux.sync.xor.b32"), 0u);
}

}  // namespace
}  // namespace vqllm::ptx::test
