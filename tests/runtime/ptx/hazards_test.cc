#include <algorithm>

#include "tests/runtime/ptx/support.h"
#include "vq/base/rng.h"

/// Seeded mistakes: every one must be found, with its place; the same kernel without it gives nothing.
namespace vqllm::ptx::test {
namespace {

// Two warps and shared memory `sm`; %r1 is the thread, %r6 the address of its word, %r2 its result.
LaunchReport RunPair(const std::string& body, LaunchOptions options = {}) {
  const std::string text = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .b32 %r<16>; .reg .b64 %rd<8>; .reg .pred %p<4>;
.shared .align 4 .b8 sm[512];
mov.u32 %r1, %tid.x;
ld.param.u64 %rd1, [p];
shl.b32 %r5, %r1, 2;
mov.u32 %r6, sm;
add.s32 %r6, %r6, %r5;
mov.u32 %r2, 0;
)" + body + R"(
cvta.to.global.u64 %rd2, %rd1;
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd2, %rd2, %rd3;
st.global.u32 [%rd2], %r2;
ret;
}
)";
  Memory memory;
  const uint64_t out = memory.Allocate(64 * 4, "out");
  return Launch(memory, Module::Parse(text, "pair.ptx"), "k", {1}, {64}, 0, Args(out), options);
}

TEST(Hazards, ShuffleWithAFullMaskInsideADivergentBranch) {
  const std::string body =
      "setp.lt.u32 %p1, %r1, 16;\n@!%p1 bra $L1;\nshfl.sync.bfly.b32 %r2, %r1, 16, 31, -1;\n$L1:\n";
  const LaunchReport report = RunPair(body);
  ASSERT_TRUE(Has(report, HazardKind::kInactiveLane)) << Text(report.hazards);
  const Hazard& hazard = report.hazards[0];
  EXPECT_EQ(hazard.ptx_line, 16);
  EXPECT_EQ(hazard.warp, 0u);
  EXPECT_EQ(hazard.lane, 16);
  EXPECT_EQ(hazard.text, "shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1;");
}

TEST(Hazards, BarrierInsideADivergentBranch) {
  EXPECT_TRUE(Has(RunPair("setp.lt.u32 %p1, %r1, 16;\n@!%p1 bra $L1;\nbar.sync 0;\n$L1:\n"),
                  HazardKind::kDivergentBarrier));
  EXPECT_TRUE(Has(RunPair("setp.lt.u32 %p1, %r1, 16;\n@%p1 bar.sync 0;\n"), HazardKind::kDivergentBarrier));
}

TEST(Hazards, ABarrierThatOneWarpSkipsWhileItWaitsAtAnotherDeadlocks) {
  const LaunchReport report =
      RunPair("setp.lt.u32 %p1, %r1, 32;\n@!%p1 bra $L1;\nbar.sync 1;\nbra $L2;\n$L1:\nbar.sync 2;\n$L2:\n");
  EXPECT_TRUE(Has(report, HazardKind::kDeadlock));
  EXPECT_FALSE(report.completed);
}

TEST(Hazards, WarpSynchronousExchangeNeedsSyncwarp) {
  const std::string store = "st.shared.u32 [%r6], %r1;\n";
  const std::string load =
      "xor.b32 %r7, %r5, 4;\nmov.u32 %r8, sm;\nadd.s32 %r8, %r8, %r7;\nld.shared.u32 %r2, [%r8];\n";
  EXPECT_TRUE(Has(RunPair(store + load), HazardKind::kMissingSyncwarp));
  const LaunchReport clean = RunPair(store + "bar.warp.sync -1;\n" + load);
  EXPECT_EQ(Text(clean.hazards), "");
}

TEST(Hazards, ExchangeBetweenWarpsNeedsABarrier) {
  const std::string store = "st.shared.u32 [%r6], %r1;\n";
  const std::string load =
      "xor.b32 %r7, %r5, 128;\nmov.u32 %r8, sm;\nadd.s32 %r8, %r8, %r7;\nld.shared.u32 %r2, [%r8];\n";
  EXPECT_TRUE(Has(RunPair(store + load), HazardKind::kSharedRace));
  EXPECT_TRUE(Has(RunPair(store + "bar.warp.sync -1;\n" + load), HazardKind::kSharedRace));
  EXPECT_EQ(Text(RunPair(store + "bar.sync 0;\n" + load).hazards), "");
}

TEST(Hazards, WriteAfterReadOfAnotherWarpIsARace) {
  const std::string body =
      "st.shared.u32 [%r6], %r1;\nbar.sync 0;\nxor.b32 %r7, %r5, 128;\nmov.u32 %r8, sm;\nadd.s32 %r8, %r8, "
      "%r7;\n"
      "ld.shared.u32 %r2, [%r8];\n";
  EXPECT_TRUE(Has(RunPair(body + "st.shared.u32 [%r6], %r2;\n"), HazardKind::kSharedRace));
  EXPECT_EQ(Text(RunPair(body + "bar.sync 0;\nst.shared.u32 [%r6], %r2;\n").hazards), "");
}

TEST(Hazards, UninitialisedSharedReadKnowsBytes) {
  EXPECT_TRUE(Has(RunPair("ld.shared.u32 %r2, [%r6];\n"), HazardKind::kUninitialisedShared));
  EXPECT_TRUE(Has(RunPair("st.shared.u8 [%r6], %r1;\nld.shared.u32 %r2, [%r6];\n"),
                  HazardKind::kUninitialisedShared));
  EXPECT_EQ(Text(RunPair("st.shared.u8 [%r6], %r1;\nld.shared.u8 %r2, [%r6];\n").hazards), "");
}

TEST(Hazards, OutOfBoundsAndMisalignedInEverySpace) {
  EXPECT_TRUE(Has(RunPair("ld.shared.u32 %r2, [%r6+512];\n"), HazardKind::kOutOfBounds));
  EXPECT_TRUE(Has(RunPair("ld.shared.u32 %r2, [%r6+2];\n"), HazardKind::kMisaligned));
  EXPECT_TRUE(Has(RunPair("ld.global.u32 %r2, [%rd1+256];\n"), HazardKind::kOutOfBounds));
  EXPECT_TRUE(Has(RunPair("ld.global.u32 %r2, [%rd1+-4];\n"), HazardKind::kOutOfBounds));
  EXPECT_TRUE(Has(RunPair("ld.global.u32 %r2, [%rd1+2];\n"), HazardKind::kMisaligned));
  EXPECT_TRUE(Has(RunPair("st.u32 [%rd1+4096], %r2;\n"), HazardKind::kOutOfBounds));
  EXPECT_TRUE(Has(RunPair(".local .align 4 .b8 loc[8];\nmov.u32 %r9, loc;\nst.local.u32 [%r9+16], %r1;\n"),
                  HazardKind::kOutOfBounds));
}

TEST(Hazards, AHazardNamesTheAllocation) {
  const LaunchReport report = RunPair("ld.global.u32 %r2, [%rd1+256];\n");
  ASSERT_EQ(report.hazards.size(), 1u);
  EXPECT_EQ(report.hazards[0].detail, "4 bytes at offset 256 of 'out', which has 256");
  EXPECT_EQ(report.hazards[0].count, 64u);
}

TEST(Hazards, AnEndlessLoopUsesUpItsBudget) {
  const LaunchReport report =
      RunPair("$L1:\nadd.s32 %r2, %r2, 1;\nbra $L1;\n", {.instruction_budget = 10000});
  EXPECT_TRUE(Has(report, HazardKind::kEndlessLoop));
  EXPECT_FALSE(report.completed);
}

TEST(Hazards, ATrapEndsTheLaunch) {
  const LaunchReport report = RunPair("setp.eq.u32 %p1, %r1, 40;\n@%p1 trap;\n");
  ASSERT_TRUE(Has(report, HazardKind::kTrap));
  EXPECT_FALSE(report.completed);
}

std::string CopyKernel(const std::string& after) {
  return "mul.wide.u32 %rd4, %r1, 4;\nadd.s64 %rd4, %rd4, %rd1;\nst.global.u32 [%rd4], %r1;\n"
         "cp.async.ca.shared.global [%r6], [%rd4], 4;\ncp.async.commit_group;\n" +
         after + "ld.shared.u32 %r2, [%r6];\n";
}

TEST(Hazards, CpAsyncNeedsItsWait) {
  EXPECT_TRUE(Has(RunPair(CopyKernel("")), HazardKind::kPendingCopy));
  EXPECT_TRUE(Has(RunPair(CopyKernel("cp.async.wait_group 1;\n")), HazardKind::kPendingCopy));
  EXPECT_EQ(Text(RunPair(CopyKernel("cp.async.wait_group 0;\n")).hazards), "");
  EXPECT_EQ(Text(RunPair(CopyKernel("cp.async.wait_all;\n")).hazards), "");
}

// %r7 gets the address of the word of the thread `r1 ^ with`.
std::string Partner(int with) {
  return fmt::format("xor.b32 %r7, %r5, {};\nmov.u32 %r8, sm;\nadd.s32 %r7, %r8, %r7;\n", 4 * with);
}

TEST(Hazards, ASharedRaceShowsBothOfItsSides) {
  const LaunchReport report = RunPair(Partner(32) + "st.shared.u32 [%r6], %r1;\nld.shared.u32 %r2, [%r7];\n");
  // Warp 0 reads before warp 1 has written; warp 1 writes what was read, then reads what was written.
  const auto found = std::ranges::find_if(report.hazards, [](const Hazard& h) {
    return h.kind == HazardKind::kSharedRace && h.text == "ld.shared.u32 %r2, [%r7];";
  });
  ASSERT_NE(found, report.hazards.end()) << Text(report.hazards);
  const Hazard& hazard = *found;
  EXPECT_EQ(hazard.warp, 1u);
  EXPECT_EQ(hazard.lane, 0);
  ASSERT_TRUE(hazard.other);
  EXPECT_EQ(hazard.other->text, "st.shared.u32 [%r6], %r1;");
  EXPECT_EQ(hazard.other->ptx_line, hazard.ptx_line - 1);
  EXPECT_EQ(hazard.other->warp, 0u);
  EXPECT_EQ(hazard.other->lane, 0);
  EXPECT_THAT(hazard.ToString(), testing::HasSubstr("; the other side: PTX line 17 [st.shared.u32 [%r6], "
                                                    "%r1;] block (0, 0, 0) warp 0 lane 0"));
  // A write after a read: the reader is the other side, that of the other warp where both read.
  const LaunchReport write = RunPair(
      "st.shared.u32 [%r6], %r1;\nbar.sync 0;\nld.shared.u32 %r2, [sm];\n"
      "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [sm], %r1;\n",
      {.reverse_warps = true});
  ASSERT_TRUE(Has(write, HazardKind::kSharedRace)) << Text(write.hazards);
  ASSERT_TRUE(write.hazards[0].other);
  EXPECT_EQ(write.hazards[0].text, "@%p1 st.shared.u32 [sm], %r1;");
  EXPECT_EQ(write.hazards[0].other->text, "ld.shared.u32 %r2, [sm];");
  EXPECT_EQ(write.hazards[0].other->warp, 1u);
}

TEST(Hazards, AMissingWaitShowsTheCopy) {
  const LaunchReport report = RunPair(CopyKernel(""));
  ASSERT_TRUE(Has(report, HazardKind::kPendingCopy));
  ASSERT_TRUE(report.hazards[0].other);
  EXPECT_EQ(report.hazards[0].other->text, "cp.async.ca.shared.global [%r6], [%rd4], 4;");
}

TEST(Hazards, PartsOfASharedWordAreJudgedByTheirBytes) {
  // %r7 gets the address of the half of this thread, %r8 that of its partner.
  const auto halves = [](int with) {
    return fmt::format(
        "shl.b32 %r7, %r1, 1;\nxor.b32 %r8, %r7, {};\nmov.u32 %r9, sm;\nadd.s32 %r7, %r7, %r9;\n"
        "add.s32 %r8, %r8, %r9;\n",
        2 * with);
  };
  const std::string store = "st.shared.u16 [%r7], %r1;\n";
  const std::string own = "ld.shared.u16 %r2, [%r7];\n";
  const std::string partner = "ld.shared.u16 %r2, [%r8];\n";
  // Neighbours of one word keep to their halves: they never meet.
  EXPECT_EQ(Text(RunPair(halves(0) + store + own + store + own).hazards), "");
  EXPECT_EQ(Text(RunPair(halves(0) + store + "bar.sync 0;\n" + own + store).hazards), "");
  EXPECT_TRUE(Has(RunPair(halves(1) + store + partner), HazardKind::kMissingSyncwarp));
  EXPECT_EQ(Text(RunPair(halves(1) + store + "bar.warp.sync -1;\n" + partner).hazards), "");
  EXPECT_TRUE(Has(RunPair(halves(32) + store + partner), HazardKind::kSharedRace));
  EXPECT_TRUE(Has(RunPair(halves(32) + store + "bar.sync 0;\n" + partner + store), HazardKind::kSharedRace));
  // Both halves of a word that two lanes of the other warp wrote.
  EXPECT_TRUE(Has(RunPair(halves(0) + store +
                          "and.b32 %r8, %r8, -4;\nxor.b32 %r8, %r8, 64;\n"
                          "ld.shared.u32 %r2, [%r8];\n"),
                  HazardKind::kSharedRace));
}

TEST(Hazards, AReadBeforeSyncwarpIsForgottenAfterIt) {
  const std::string all_read = "st.shared.u32 [%r6], %r1;\nbar.sync 0;\nld.shared.u32 %r2, [sm];\n";
  const std::string lane_0_writes =
      "setp.ge.u32 %p1, %r1, 32;\n@%p1 bra $L1;\nsetp.eq.u32 %p2, %r1, 0;\nbar.warp.sync -1;\n"
      "@%p2 ld.shared.u32 %r2, [sm+4];\n@%p2 st.shared.u32 [sm+4], %r1;\n$L1:\n";
  const std::string first_warp_reads =
      "st.shared.u32 [%r6], %r1;\nbar.sync 0;\nsetp.lt.u32 %p1, %r1, 32;\n@%p1 ld.shared.u32 %r2, [sm+4];\n";
  EXPECT_EQ(Text(RunPair(first_warp_reads + lane_0_writes).hazards), "");
  EXPECT_TRUE(Has(RunPair(first_warp_reads + Replaced(lane_0_writes, "bar.warp.sync -1;\n", "")),
                  HazardKind::kMissingSyncwarp));
  EXPECT_TRUE(Has(RunPair(Replaced(all_read, "[sm]", "[sm+4]") + lane_0_writes), HazardKind::kSharedRace));
}

// Blocks: `body` with %r1 = block, %rd2 = global address of `buffer`.
LaunchReport RunBlocks(const std::string& body, LaunchOptions options = {}) {
  const std::string text = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .b16 %rs<4>; .reg .b32 %r<16>; .reg .b64 %rd<8>; .reg .pred %p<4>;
mov.u32 %r1, %ctaid.x;
ld.param.u64 %rd1, [p];
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd2, %rd1, %rd3;
mov.u32 %r3, %tid.x;
setp.ne.u32 %p3, %r3, 0;
@%p3 bra $Lend;
)" + body + "$Lend:\nret;\n}\n";
  Memory memory;
  const uint64_t out = Upload(memory, std::vector<uint32_t>(64, 0), "buffer");
  return Launch(memory, Module::Parse(text, "blocks.ptx"), "k", {8}, {32}, 0, Args(out), options);
}

TEST(Hazards, RacesBetweenBlocksAtAnyNumberOfWorkers) {
  for (const int workers : {1, 3}) {
    const LaunchOptions options = {.workers = workers};
    EXPECT_EQ(Text(RunBlocks("st.global.u32 [%rd2], %r1;\n", options).hazards), "");
    const LaunchReport writes = RunBlocks("st.global.u32 [%rd1], %r1;\n", options);
    ASSERT_TRUE(Has(writes, HazardKind::kGlobalRace));
    EXPECT_EQ(writes.hazards[0].ptx_line, 14);
    EXPECT_EQ(writes.hazards[0].block[0], 0u);
    EXPECT_TRUE(Has(RunBlocks("st.global.u32 [%rd2], %r1;\nld.global.u32 %r2, [%rd2+4];\n", options),
                    HazardKind::kGlobalRace));
    // Neighbouring halves of one word, each by its own block: no race.
    EXPECT_EQ(Text(RunBlocks("cvt.u16.u32 %rs1, %r1;\nmul.wide.u32 %rd4, %r1, 2;\nadd.s64 %rd4, %rd4, %rd1;\n"
                             "st.global.u16 [%rd4], %rs1;\n",
                             options)
                       .hazards),
              "");
  }
}

TEST(Hazards, AGlobalRaceShowsBothOfItsSides) {
  // Block b writes its word, block b - 1 reads it: lane 0 of warp 0 on both sides.
  for (const int workers : {1, 3}) {
    const LaunchReport report =
        RunBlocks("st.global.u32 [%rd2], %r1;\nld.global.u32 %r2, [%rd2+4];\n", {.workers = workers});
    ASSERT_TRUE(Has(report, HazardKind::kGlobalRace));
    const Hazard& hazard = report.hazards[0];
    EXPECT_EQ(hazard.text, "st.global.u32 [%rd2], %r1;");
    EXPECT_EQ(hazard.count, 7u);
    EXPECT_EQ(hazard.block[0], 1u);
    ASSERT_TRUE(hazard.other);
    EXPECT_EQ(hazard.other->text, "ld.global.u32 %r2, [%rd2+4];");
    EXPECT_EQ(hazard.other->block[0], 0u);
    EXPECT_EQ(hazard.other->lane, 0);
  }
}

TEST(Hazards, ARaceBetweenBlocksNamesWarpAndLane) {
  // Thread t of each block writes word t: block 0 against block 1, first of all thread 0 of warp 0.
  const std::string text = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .pred %p<4>;
mov.u32 %r1, %tid.x;
setp.ne.u32 %p1, %r1, 45;
ld.param.u64 %rd1, [p];
@%p1 bra $Lend;
st.global.u32 [%rd1], %r1;
$Lend:
ret;
}
)";
  Memory memory;
  const uint64_t out = memory.Allocate(4, "out");
  const LaunchReport report = Launch(memory, Module::Parse(text), "k", {2}, {64}, 0, Args(out));
  ASSERT_EQ(report.hazards.size(), 1u);
  EXPECT_EQ(report.hazards[0].warp, 1u);
  EXPECT_EQ(report.hazards[0].lane, 13);
  ASSERT_TRUE(report.hazards[0].other);
  EXPECT_EQ(report.hazards[0].other->block[0], 1u);
  EXPECT_EQ(report.hazards[0].other->warp, 1u);
  EXPECT_EQ(report.hazards[0].other->lane, 13);
}

TEST(Hazards, PartsOfAGlobalWordAreJudgedByTheirBytes) {
  const std::string address =
      "cvt.u16.u32 %rs1, %r1;\nmul.wide.u32 %rd4, %r1, 2;\nadd.s64 %rd4, %rd4, %rd1;\n";
  const std::string own = "st.global.u16 [%rd4], %rs1;\n";
  for (const int workers : {1, 3}) {
    const LaunchOptions options = {.workers = workers};
    const auto races = [&](const std::string& body) {
      return Has(RunBlocks(address + body, options), HazardKind::kGlobalRace);
    };
    EXPECT_FALSE(races(own + "ld.global.u16 %rs2, [%rd4];\n"));
    EXPECT_TRUE(races("st.global.u16 [%rd1], %rs1;\n")) << "all blocks write one half";
    EXPECT_TRUE(races("st.global.u8 [%rd1+3], %rs1;\n")) << "all blocks write one byte";
    EXPECT_TRUE(races(own + "ld.global.u16 %rs2, [%rd4+2];\n")) << "the half of the next block";
    EXPECT_TRUE(races(own + "ld.global.u8 %rs2, [%rd4+2];\n")) << "a byte of the half of the next block";
    EXPECT_TRUE(races(own + "ld.global.u32 %r2, [%rd1];\n")) << "the word of two blocks";
    EXPECT_TRUE(races(own + "st.global.u32 [%rd1+4], %r1;\n")) << "a word over the halves of two blocks";
  }
  // With atomics the blocks run in order, and races are judged at once.
  const std::string ticket = "atom.global.add.u32 %r4, [%rd1+128], 1;\n";
  EXPECT_EQ(Text(RunBlocks(address + own + ticket).hazards), "");
  EXPECT_TRUE(Has(RunBlocks(address + "st.global.u16 [%rd1], %rs1;\n" + ticket), HazardKind::kGlobalRace));
  EXPECT_TRUE(
      Has(RunBlocks(address + own + "ld.global.u16 %rs2, [%rd1];\n" + ticket), HazardKind::kGlobalRace));
}

TEST(Hazards, AtomicsDoNotRaceAndATicketOrdersBlocks) {
  EXPECT_EQ(Text(RunBlocks("red.global.add.u32 [%rd1], 1;\n").hazards), "");
  const std::string publish = "st.global.u32 [%rd2], %r1;\n";
  const std::string ticket =
      "atom.global.add.u32 %r4, [%rd1+128], 1;\nsetp.ne.u32 %p1, %r4, 7;\n@%p1 bra $Lend;\n"
      "ld.global.u32 %r5, [%rd1+4];\nld.global.u32 %r6, [%rd1+24];\n";
  EXPECT_EQ(Text(RunBlocks(publish + "membar.gl;\n" + ticket).hazards), "");
  EXPECT_TRUE(Has(RunBlocks(publish + ticket), HazardKind::kGlobalRace)) << "without the fence";
}

TEST(Hazards, UninitialisedGlobalReadsOnRequest) {
  const std::string text = OneWarp("ld.global.u32 %r1, [%l1];\n", 1);
  Memory memory;
  const uint64_t out = memory.Allocate(128, "out");
  const uint64_t in = memory.Allocate(64, "in");
  const Module module = Module::Parse(text);
  EXPECT_EQ(Text(Launch(memory, module, "k", {1}, {32}, 0, Args(out, in)).hazards), "");
  const LaunchOptions options = {.uninitialised_global = true};
  EXPECT_TRUE(Has(Launch(memory, module, "k", {1}, {32}, 0, Args(out, in), options),
                  HazardKind::kUninitialisedGlobal));
  memory.Fill(in, 0, 4);
  EXPECT_EQ(Text(Launch(memory, module, "k", {1}, {32}, 0, Args(out, in), options).hazards), "");
}

}  // namespace
}  // namespace vqllm::ptx::test
