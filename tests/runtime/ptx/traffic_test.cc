#include "runtime/ptx/traffic.h"

#include <functional>

#include "tests/runtime/ptx/support.h"

/// Bank and sector patterns whose answers are counted by hand.
namespace vqllm::ptx::test {
namespace {

struct Pattern {
  const char* name;
  std::function<uint32_t(uint32_t)> address;
  uint32_t bytes;
  uint32_t wavefronts;
  uint32_t ideal;
  uint32_t mask = kAllLanes;
};

TEST(Wavefronts, OfPatternsCountedByHand) {
  const std::vector<Pattern> patterns = {
      {"words in a row", [](uint32_t i) { return i * 4; }, 4, 1, 1},
      {"one word for all", [](uint32_t) { return 64u; }, 4, 1, 1},
      {"every second word: two lanes a bank", [](uint32_t i) { return i * 8; }, 4, 2, 1},
      {"every fourth word", [](uint32_t i) { return i * 16; }, 4, 4, 1},
      {"a column of 32 words", [](uint32_t i) { return i * 128; }, 4, 32, 1},
      {"a padded column of 33 words", [](uint32_t i) { return i * 132; }, 4, 1, 1},
      {"bytes in a row share words", [](uint32_t i) { return i; }, 1, 1, 1},
      {"halves in a row", [](uint32_t i) { return i * 2; }, 2, 1, 1},
      {"two rows of one bank", [](uint32_t i) { return (i & 1) * 128; }, 4, 2, 1},
      {"8 bytes in a row: two halves of the warp", [](uint32_t i) { return i * 8; }, 8, 2, 2},
      {"8 bytes, every second", [](uint32_t i) { return i * 16; }, 8, 4, 2},
      {"8 bytes, one for all", [](uint32_t) { return 8u; }, 8, 2, 2},
      {"16 bytes in a row: four quarters", [](uint32_t i) { return i * 16; }, 16, 4, 4},
      {"16 bytes, four of them for all", [](uint32_t i) { return (i % 4) * 16; }, 16, 4, 4},
      {"16 bytes in one bank group", [](uint32_t i) { return i * 128; }, 16, 32, 4},
      {"rows of 144 bytes", [](uint32_t i) { return i * 144; }, 16, 4, 4},
      {"half of the lanes", [](uint32_t i) { return i * 16; }, 16, 2, 2, 0xffff},
      {"no lane", [](uint32_t i) { return i * 4; }, 4, 0, 0, 0},
  };
  for (const Pattern& pattern : patterns) {
    uint32_t address[32];
    for (uint32_t i = 0; i < 32; ++i) address[i] = pattern.address(i);
    const Wavefronts result = CountWavefronts(address, pattern.mask, pattern.bytes);
    EXPECT_EQ(result.actual, pattern.wavefronts) << pattern.name;
    EXPECT_EQ(result.ideal, pattern.ideal) << pattern.name;
  }
}

TEST(Wavefronts, AtomicsOnOneWordGoOneAfterAnother) {
  uint32_t same[32] = {};
  uint32_t row[32];
  for (uint32_t i = 0; i < 32; ++i) row[i] = i * 4;
  EXPECT_EQ(CountAtomicWavefronts(same, kAllLanes, 4), 32u);
  EXPECT_EQ(CountAtomicWavefronts(row, kAllLanes, 4), 1u);
}

TEST(Sectors, OfPatternsCountedByHand) {
  struct SectorPattern {
    const char* name;
    std::function<uint64_t(uint64_t)> address;
    uint32_t bytes;
    uint32_t sectors;
  };
  const std::vector<SectorPattern> patterns = {
      {"words in a row", [](uint64_t i) { return i * 4; }, 4, 4},
      {"words in a row, off by one", [](uint64_t i) { return i * 4 + 4; }, 4, 5},
      {"16 bytes in a row", [](uint64_t i) { return i * 16; }, 16, 16},
      {"a sector each", [](uint64_t i) { return i * 32; }, 4, 32},
      {"one word for all", [](uint64_t) { return uint64_t{0}; }, 4, 1},
      {"backwards", [](uint64_t i) { return (31 - i) * 4; }, 4, 4},
      {"to and fro between two", [](uint64_t i) { return (i & 1) * 4096; }, 4, 2},
      {"bytes in a row", [](uint64_t i) { return i; }, 1, 1},
      {"32 bytes each", [](uint64_t i) { return i * 32; }, 32, 32},
      {"shuffled sectors", [](uint64_t i) { return (i * 7 % 32) * 32; }, 8, 32},
  };
  for (const SectorPattern& pattern : patterns) {
    uint64_t address[32];
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < 32; ++i) address[i] = 0x7f0000000000u + pattern.address(i);
    SectorList list;
    ListSectors(address, kAllLanes, pattern.bytes, list);
    EXPECT_EQ(list.count, pattern.sectors) << pattern.name;
    for (uint32_t i = 0; i < list.count; ++i)
      bytes += static_cast<uint64_t>(std::popcount(list.words[i])) * 4;
    EXPECT_LE(bytes, list.count * 32u) << pattern.name;
  }
}

TEST(Counters, EveryCounterHasARowOfTheTable) {
  for (size_t i = 0; i < static_cast<size_t>(Counter::kCount); ++i) {
    const CounterInfo& info = Describe(static_cast<Counter>(i));
    EXPECT_FALSE(info.name.empty());
    EXPECT_FALSE(info.meaning.empty());
  }
}

TEST(Counters, OfOneWarpByHand) {
  const WarpResult result = RunWarp(
      "mul.wide.u32 %l2, %r0, 4;\nadd.s64 %l2, %l2, %l1;\nld.global.u32 %r1, [%l2];\nsetp.lt.u32 %p1, %r0, "
      "8;\n@%p1 "
      "ld.global.u32 %r2, [%l2+128];\n@!%p1 bra E;\nadd.u32 %r1, %r1, 1;\nE:\nmul.lo.u32 %r20, %r0, "
      "8;\nmov.u32 %r21, "
      "sm;\nadd.u32 %r20, %r20, %r21;\nst.shared.u32 [%r20], %r0;\n",
      1, std::vector<uint32_t>(64, 1), ".shared .align 4 .b8 sm[256];\n");
  const Counters& c = result.report.counters;
  EXPECT_EQ(c[Counter::kGlobalLoadRequests], 2u);
  EXPECT_EQ(c[Counter::kGlobalLoadBytes], 128u + 32);
  EXPECT_EQ(c[Counter::kGlobalLoadSectors], 5u);
  EXPECT_EQ(c[Counter::kGlobalStoreSectors], 4u);
  EXPECT_EQ(c[Counter::kSharedStoreRequests], 1u);
  EXPECT_EQ(c[Counter::kSharedStoreWavefronts], 2u);
  EXPECT_EQ(c[Counter::kSharedStoreWavefrontsIdeal], 1u);
  EXPECT_EQ(c[Counter::kBranches], 1u);
  EXPECT_EQ(c[Counter::kDivergentBranches], 1u);
  // 3 of the frame, 6 to the branch, 1 behind it, 4 for the store, 4 for the result.
  EXPECT_EQ(c[Counter::kWarpInstructions], 18u);
  EXPECT_EQ(c[Counter::kThreadInstructions], (18u - 3) * 32 + 8 + 24 + 8);
  EXPECT_EQ(c.Warp(InstructionClass::kLoadGlobal), 2u);
  EXPECT_EQ(c.Thread(InstructionClass::kLoadGlobal), 40u);
}

TEST(Counters, LinesTellWhereTheTrafficIs) {
  const Module module = Module::Parse(
      ".version 8.0\n.target sm_80\n.address_size 64\n.file 1 \"gemv.cu\"\n.visible .entry k(.param .u64 "
      "p)\n{\n"
      ".reg .b64 %l<4>; .reg .b32 %r<4>;\n.loc 1 12 3\nld.param.u64 %l1, [p];\n.loc 1 17 5\nld.global.u32 "
      "%r1, "
      "[%l1];\nret;\n}\n");
  Memory memory;
  const uint64_t p = Upload(memory, std::vector<uint32_t>{1}, "p");
  const LaunchReport report = Launch(memory, module, "k", {3}, {64}, 0, Args(p), {.lines = true});
  ASSERT_EQ(report.lines.size(), 3u);
  EXPECT_EQ(report.lines[1].ptx_line, 11);
  EXPECT_EQ(report.lines[1].source_line, 17);
  EXPECT_EQ(report.lines[1].source_file, "gemv.cu");
  EXPECT_EQ(report.lines[1].warp_instructions, 6u);
  EXPECT_EQ(report.lines[1].thread_instructions, 192u);
  EXPECT_EQ(report.lines[1].sectors, 6u);
}

TEST(Counters, WhatAHeaderInlinesCountsForTheLineThatCalledIt) {
  // kernel.cu calls at line 9 its own function of line 3, which calls one of half.h at line 4.
  const Module module = Module::Parse(
      ".version 8.0\n.target sm_80\n.address_size 64\n.file 1 \"kernel.cu\"\n.file 2 \"half.h\"\n"
      ".visible .entry k()\n{\n.reg .b32 %r<9>;\n"
      ".loc 1 9 1\nmov.u32 %r1, 1;\n"
      ".loc 1 3 1, function_name $L__info0, inlined_at 1 9 1\nmov.u32 %r2, 1;\n"
      ".loc 1 4 2, function_name $L__info0, inlined_at 1 9 1\n"
      ".loc 2 77 5, function_name $L__info1, inlined_at 1 4 2\nmov.u32 %r3, 1;\n"
      ".loc 2 70 5, function_name $L__info2, inlined_at 1 9 1\nmov.u32 %r4, 1;\n"
      ".loc 1 0 1\nmov.u32 %r5, 1;\n"
      ".loc 2 60 1\nmov.u32 %r6, 1;\nret;\n}\n");
  Memory memory;
  const LaunchReport report = Launch(memory, module, "k", {1}, {32}, 0, {}, {.lines = true});
  ASSERT_EQ(report.lines.size(), 7u);
  const int expected[] = {9, 3, 4, 9, 0};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(report.lines[i].source_line, expected[i]) << i;
    EXPECT_EQ(report.lines[i].source_file, "kernel.cu") << i;
  }
  EXPECT_EQ(report.lines[5].source_line, 60);
  EXPECT_EQ(report.lines[5].source_file, "half.h");
}

}  // namespace
}  // namespace vqllm::ptx::test
