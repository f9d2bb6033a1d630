#include "tests/runtime/ptx/support.h"

/// Control flow: branches, calls, ends of threads, barriers of blocks.
namespace vqllm::ptx::test {
namespace {

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

TEST(IsaControl, ThreadsEndByThemselvesAndByPredicate) {
  // Odd lanes leave; the others reduce among themselves.
  const WarpResult result = RunWarp(
      "mov.u32 %r1, 0;\nand.b32 %r5, %r0, 1;\nsetp.ne.u32 %p1, %r5, 0;\n@%p1 exit;\nredux.sync.add.u32 %r1, "
      "%r0, "
      "0x55555555;\n",
      1);
  EXPECT_EQ(Text(result.report.hazards), "");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(result.out[lane], lane % 2 ? 0xffffffffu : 240u) << "odd lanes store nothing";
  }
  for (const char* end : {"trap;\n", "brkpt;\n"}) {
    const WarpResult ended = RunWarp(std::string("setp.eq.u32 %p1, %r0, 9;\n@%p1 ") + end, 1);
    ASSERT_TRUE(Has(ended.report, HazardKind::kTrap));
    EXPECT_FALSE(ended.report.completed);
  }
}

// `threads` threads with their number in %r1 run `body`, which leaves a result in %r2.
struct BlockResult {
  std::vector<uint32_t> out;
  LaunchReport report;
};
BlockResult RunBlock(uint32_t threads, const std::string& body) {
  const std::string text =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b32 %r<16>; "
      ".reg .b64 "
      "%rd<8>; .reg .pred %p<8>;\n.shared .align 4 .b8 sm[4096];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, "
      "0;\nshl.b32 %r3, "
      "%r1, 2;\nmov.u32 %r4, sm;\nadd.u32 %r3, %r3, %r4;\n" +
      body +
      "ld.param.u64 %rd1, [p];\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd1, %rd1, %rd2;\nst.global.u32 [%rd1], "
      "%r2;\nret;\n}\n";
  Memory memory;
  const uint64_t out = memory.Allocate(threads * 4, "out");
  LaunchOptions options;
  options.lines = OpcodeLogWanted();
  BlockResult result;
  result.report = Launch(memory, Module::Parse(text), "k", {1}, {threads}, 0, Args(out), options);
  LogOpcodes(result.report);
  result.out = Download<uint32_t>(memory, out, threads);
  return result;
}

TEST(IsaBarrier, EverySpellingOfAPlainBarrierOrdersTheBlock) {
  for (const char* barrier :
       {"bar.sync 0;\n", "bar.cta.sync 1;\n", "barrier.sync 2;\n", "barrier.cta.sync.aligned 15;\n",
        "bar.sync 3, 96;\n", "barrier.sync.aligned 4, 96;\n"}) {
    const BlockResult result = RunBlock(
        96, std::string("st.shared.u32 [%r3], %r1;\n") + barrier +
                "add.u32 %r5, %r1, 32;\nrem.u32 %r5, %r5, 96;\nshl.b32 %r5, %r5, 2;\nadd.u32 %r5, %r5, %r4;\n"
                "ld.shared.u32 %r2, [%r5];\n");
    EXPECT_EQ(Text(result.report.hazards), "") << barrier;
    EXPECT_EQ(result.report.counters[Counter::kBarriers], 3u) << barrier;
    for (uint32_t i = 0; i < 96; ++i) EXPECT_EQ(result.out[i], (i + 32) % 96) << barrier;
  }
}

TEST(IsaBarrier, VotesOfTheBlock) {
  // %p1 holds in the threads 0, 3, 6 ...: 22 of 64; %p2 in all, %p3 in none.
  const std::string predicates =
      "rem.u32 %r5, %r1, 3;\nsetp.eq.u32 %p1, %r5, 0;\nsetp.lt.u32 %p2, %r1, 64;\nsetp.gt.u32 %p3, %r1, "
      "64;\n";
  for (const std::string& count : {std::string(""), std::string(", 64")}) {
    for (const std::string& name :
         {std::string("bar.red"), std::string("barrier.cta.red"), std::string("barrier.red")}) {
      const std::string aligned = name == "barrier.red" ? ".aligned" : "";
      const auto value = [&](const std::string& operation, const std::string& predicate) {
        const bool popc = operation == "popc";
        const std::string text = predicates + name + "." + operation + aligned +
                                 (popc ? ".u32 %r2, 1" : ".pred %p4, 1") + count + ", " + predicate + ";\n" +
                                 (popc ? "" : "selp.u32 %r2, 1, 0, %p4;\n");
        const BlockResult result = RunBlock(64, text);
        EXPECT_EQ(Text(result.report.hazards), "") << text;
        for (const uint32_t found : result.out) EXPECT_EQ(found, result.out[0]);
        return result.out[0];
      };
      EXPECT_EQ(value("popc", "%p1"), 22u);
      EXPECT_EQ(value("popc", "!%p1"), 42u);
      EXPECT_EQ(value("and", "%p1"), 0u);
      EXPECT_EQ(value("and", "%p2"), 1u);
      EXPECT_EQ(value("or", "%p1"), 1u);
      EXPECT_EQ(value("or", "%p3"), 0u);
    }
  }
}

TEST(IsaBarrier, ProducersArriveAndConsumersWait) {
  // Warp 0 writes and arrives, warp 1 waits and reads; 64 threads take part.
  for (const char* arrive : {"bar.arrive 1, 64;\n", "bar.cta.arrive 1, 64;\n",
                             "barrier.arrive.aligned 1, 64;\n", "barrier.cta.arrive 1, 64;\n"}) {
    const BlockResult result = RunBlock(
        64, std::string("setp.ge.u32 %p1, %r1, 32;\n@%p1 bra WAIT;\nst.shared.u32 [%r3], %r1;\n") + arrive +
                "bra DONE;\nWAIT:\nbar.sync 1, 64;\nld.shared.u32 %r2, [%r3+-128];\nDONE:\n");
    EXPECT_EQ(Text(result.report.hazards), "") << arrive;
    for (uint32_t i = 32; i < 64; ++i) EXPECT_EQ(result.out[i], i - 32) << arrive;
  }
  // Without the arrival the wait never ends.
  const BlockResult stuck =
      RunBlock(64, "setp.ge.u32 %p1, %r1, 32;\n@!%p1 bra DONE;\nbar.sync 1, 64;\nDONE:\n");
  EXPECT_TRUE(Has(stuck.report, HazardKind::kDeadlock));
}

TEST(IsaSpecial, RegistersOfEveryThread) {
  const std::vector<std::string> names = {"tid.x",          "tid.y",       "tid.z",
                                          "ntid.x",         "ntid.y",      "ntid.z",
                                          "ctaid.x",        "ctaid.y",     "ctaid.z",
                                          "nctaid.x",       "nctaid.y",    "nctaid.z",
                                          "laneid",         "warpid",      "nwarpid",
                                          "lanemask_eq",    "lanemask_lt", "lanemask_le",
                                          "lanemask_gt",    "lanemask_ge", "dynamic_smem_size",
                                          "total_smem_size"};
  std::string text =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b32 %r<8>; "
      ".reg .b64 "
      "%rd<4>;\n.shared .align 16 .b8 sm[16];\n"
      // The number of the thread in the grid, by the registers under test.
      "mov.u32 %r1, %ctaid.z;\nmov.u32 %r2, %nctaid.y;\nmov.u32 %r3, %ctaid.y;\nmad.lo.u32 %r1, %r1, %r2, "
      "%r3;\n"
      "mov.u32 %r2, %nctaid.x;\nmov.u32 %r3, %ctaid.x;\nmad.lo.u32 %r1, %r1, %r2, %r3;\nmov.u32 %r2, "
      "%warpid;\n"
      "mov.u32 %r3, %nwarpid;\nmad.lo.u32 %r1, %r1, %r3, %r2;\nmov.u32 %r2, %laneid;\nmad.lo.u32 %r1, %r1, "
      "32, %r2;\n"
      "mov.u32 %r4, sm;\nld.param.u64 %rd1, [p];\n" +
      fmt::format("mad.wide.u32 %rd1, %r1, {}, %rd1;\n", 4 * names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("mov.u32 %r4, %{};\nst.global.u32 [%rd1+{}], %r4;\n", names[i], 4 * i);
  }
  text += "ret;\n}\n";
  const Dim3 grid = {3, 2, 2};
  const Dim3 block = {8, 4, 2};
  Memory memory;
  const uint64_t out = memory.Allocate(12 * 64 * names.size() * 4, "out");
  const LaunchReport report = Launch(memory, Module::Parse(text), "k", grid, block, 128, Args(out));
  EXPECT_EQ(Text(report.hazards), "");
  const std::vector<uint32_t> found = Download<uint32_t>(memory, out, 12 * 64 * names.size());
  for (uint32_t i = 0; i < 12 * 64; ++i) {
    const uint32_t thread = i % 64;
    const uint32_t lane = i % 32;
    const uint32_t b = i / 64;
    const uint32_t below = (1u << lane) - 1;
    const std::vector<uint32_t> expected = {thread % 8,
                                            thread / 8 % 4,
                                            thread / 32,
                                            8,
                                            4,
                                            2,
                                            b % 3,
                                            b / 3 % 2,
                                            b / 6,
                                            3,
                                            2,
                                            2,
                                            lane,
                                            thread / 32,
                                            2,
                                            1u << lane,
                                            below,
                                            below | 1u << lane,
                                            ~(below | 1u << lane),
                                            ~below,
                                            128,
                                            144};
    const std::vector<uint32_t> row(found.begin() + i * names.size(), found.begin() + (i + 1) * names.size());
    ASSERT_EQ(row, expected) << "thread " << thread << " of block " << b;
  }
}

}  // namespace
}  // namespace vqllm::ptx::test
