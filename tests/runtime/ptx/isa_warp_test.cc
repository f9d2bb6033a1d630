#include <bit>

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

TEST(IsaControl, IndexedBranchTakesEveryLaneToItsTarget) {
  const WarpResult result = RunWarp(
      "and.b32 %r10, %r0, 3;\nTS: .branchtargets A, B, C, D;\nbrx.idx %r10, TS;\n"
      "A: mov.u32 %r1, 10;\nbra E;\nB: mov.u32 %r1, 11;\nbra E;\nC: mov.u32 %r1, 12;\nbra E;\nD: mov.u32 "
      "%r1, 13;\nE:\n"
      "activemask.b32 %r2;\n",
      2);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(result.out[lane * 2], 10 + lane % 4);
    EXPECT_EQ(result.out[lane * 2 + 1], ~0u) << "the lanes meet again";
  }
  EXPECT_EQ(result.report.counters[Counter::kDivergentBranches], 1u);
  EXPECT_TRUE(Has(RunWarp("mov.u32 %r10, 7;\nTS: .branchtargets A;\nbrx.idx %r10, TS;\nA:\n", 1).report,
                  HazardKind::kBadBranch));
}

TEST(IsaControl, FunctionsReturnFromDivergentPaths) {
  const std::string function = R"(
.func (.param .b32 result) twice_or_negative(.param .b32 value)
{
.reg .b32 %r<4>; .reg .pred %p<2>;
ld.param.b32 %r1, [value];
and.b32 %r2, %r1, 1;
setp.eq.u32 %p1, %r2, 0;
@%p1 bra EVEN;
neg.s32 %r3, %r1;
st.param.b32 [result], %r3;
ret;
EVEN:
add.u32 %r3, %r1, %r1;
st.param.b32 [result], %r3;
ret;
}
)";
  const WarpResult result = RunWarp(
      "{\n.param .b32 a0;\nst.param.b32 [a0], %r0;\n.param .b32 r0;\ncall.uni (r0), twice_or_negative, "
      "(a0);\n"
      "ld.param.b32 %r1, [r0];\n}\nactivemask.b32 %r2;\n",
      2, std::vector<uint32_t>{}, function);
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(static_cast<int>(result.out[lane * 2]), lane % 2 ? -lane : 2 * lane);
    EXPECT_EQ(result.out[lane * 2 + 1], ~0u);
  }
}

TEST(IsaControl, LoopsOfDifferentLengthConverge) {
  const WarpResult result = RunWarp(
      "mov.u32 %r1, 0;\nmov.u32 %r10, %r0;\nL:\nsetp.eq.u32 %p1, %r10, 0;\n@%p1 bra E;\nadd.u32 %r1, %r1, "
      "%r10;\nsub.u32 "
      "%r10, %r10, 1;\nbra L;\nE:\nactivemask.b32 %r2;\n",
      2);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(result.out[lane * 2], lane * (lane + 1) / 2);
    EXPECT_EQ(result.out[lane * 2 + 1], ~0u);
  }
}

TEST(IsaAtomic, OperationsOnSharedAndGlobal) {
  const WarpResult result = RunWarp(
      "mov.u32 %r20, sm;\nmov.u32 %r21, 0;\nst.shared.u32 [%r20], %r21;\nst.shared.u32 [%r20+4], "
      "%r21;\nbar.warp.sync "
      "-1;\natom.shared.add.u32 %r1, [%r20], 2;\nbar.warp.sync -1;\nld.shared.u32 %r2, [%r20];\n"
      "atom.shared.inc.u32 %r3, [%r20+4], 6;\natom.global.max.s32 %r4, [%l1], %r0;\natom.global.cas.b32 %r5, "
      "[%l1+4], "
      "%r0, 99;\natom.global.add.f32 %f1, [%l1+8], 0f3f800000;\nmov.b32 %r6, %f1;\natom.global.exch.b64 %l3, "
      "[%l1+16], "
      "5;\n",
      6, std::vector<uint32_t>{0xfffffff6u, 7, 0, 0, 1, 0}, ".shared .align 4 .b8 sm[8];\n");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t* out = &result.out[lane * 6];
    EXPECT_EQ(out[0], 2 * lane);
    EXPECT_EQ(out[1], 64u);
    EXPECT_EQ(out[2], lane % 7);
    EXPECT_EQ(out[3], lane == 0 ? 0xfffffff6u : lane - 1);
    EXPECT_EQ(out[4], lane <= 7 ? 7u : 99u);
    EXPECT_EQ(out[5], std::bit_cast<uint32_t>(static_cast<float>(lane)));
  }
}

TEST(IsaMemory, VectorsWidthsSignsAndGenericAddresses) {
  const WarpResult result = RunWarp(
      "ld.global.v2.u8 {%h1, %h2}, [%l1];\ncvt.u32.u16 %r1, %h2;\nld.global.s8 %r2, [%l1];\nld.global.s16 "
      "%r3, [%l1+2];\n"
      "ld.global.v4.u16 {%h3, %h4, %h5, %h6}, [%l1];\ncvt.u32.u16 %r4, %h6;\nld.u32 %r5, [%l1+4];\n"
      "mov.u32 %r20, sm;\nst.shared.u32 [%r20], 42;\nmov.u64 %l5, sm;\ncvta.shared.u64 %l5, %l5;\nld.u32 "
      "%r6, [%l5];\n"
      "isspacep.shared %p1, %l5;\nselp.b32 %r7, 1, 0, %p1;\nmov.b64 {%h7, %h1, _, %h2}, "
      "0x0004000300020001;\ncvt.u32.u16 "
      "%r8, %h2;\nld.const.u32 %r9, [table+4];\n",
      9, std::vector<uint32_t>{0x800380ffu, 0x12345678u},
      ".shared .align 4 .b8 sm[8];\n.const .align 4 .u32 table[2] = {5, 6};\n");
  const uint32_t expected[] = {0x80, 0xffffffffu, 0xffff8003u, 0x1234, 0x12345678u, 42, 1, 4, 6};
  for (int i = 0; i < 9; ++i) EXPECT_EQ(result.out[i], expected[i]) << i;
}

TEST(IsaMemory, CopiesFillWithZerosAndIgnoreTheirSource) {
  const WarpResult result = RunWarp(
      "mov.u32 %r20, sm;\nsetp.ne.u32 %p1, %r0, 0;\n@%p1 bra E;\ncp.async.ca.shared.global [%r20], [%l1], 8, "
      "4;\n"
      "setp.eq.u32 %p2, %r0, 0;\ncp.async.cg.shared.global [%r20+16], [%l1], 16, "
      "%p2;\ncp.async.wait_all;\nE:\n"
      "bar.warp.sync -1;\nld.shared.u32 %r1, [%r20];\nld.shared.u32 %r2, [%r20+4];\nld.shared.u32 %r3, "
      "[%r20+28];\n",
      3, std::vector<uint32_t>{1, 2, 3, 4}, ".shared .align 16 .b8 sm[32];\n");
  EXPECT_EQ(Text(result.report.hazards), "");
  EXPECT_EQ(result.out[0], 1u);
  EXPECT_EQ(result.out[1], 0u);
  EXPECT_EQ(result.out[2], 0u);
}

}  // namespace
}  // namespace vqllm::ptx::test
