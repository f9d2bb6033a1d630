#include <bit>
#include <functional>

#include "tests/runtime/ptx/support.h"
#include "vq/base/half.h"

/// Loads, stores, copies and atomics in the forms of the PTX ISA.
namespace vqllm::ptx::test {
namespace {

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

// Every width from one to eight elements, with and without hints: `elements` values of `type` starting at the
// lane's place are loaded and stored elsewhere.
TEST(IsaMemory, LoadsAndStoresOfEveryWidthSpaceAndHint) {
  struct Width {
    std::string type;
    int bytes;
    std::string registers;
  };
  const std::vector<Width> widths = {{"b8", 1, "h"},  {"u8", 1, "h"},  {"s8", 1, "h"},  {"b16", 2, "h"},
                                     {"u16", 2, "h"}, {"s16", 2, "h"}, {"b32", 4, "r"}, {"u32", 4, "r"},
                                     {"s32", 4, "r"}, {"f32", 4, "f"}, {"b64", 8, "l"}, {"u64", 8, "l"},
                                     {"s64", 8, "l"}, {"f64", 8, "d"}};
  const std::vector<std::pair<std::string, std::string>> ways = {
      {"ld", "st"},
      {"ld.global", "st.global"},
      {"ld.weak.global.ca", "st.weak.global.wb"},
      {"ld.volatile.global", "st.volatile.global"},
      {"ld.global.cg.L2::128B", "st.global.cg"},
      {"ld.global.nc", "st.global.cs"},
      {"ld.global.nc.L1::no_allocate.L2::256B", "st.global.L1::no_allocate"},
      {"ld.relaxed.gpu.global", "st.relaxed.gpu.global"},
      {"ld.acquire.sys", "st.release.cta"},
      {"ldu.global", "st.global.wt"}};
  std::vector<uint8_t> input(32 * 32);
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<uint8_t>(i * 37 + 11);
  for (const Width& width : widths) {
    for (const int elements : {1, 2, 4, 8}) {
      const int bytes = width.bytes * elements;
      if (bytes > 32 || (elements == 8 && width.bytes != 4)) continue;
      for (const auto& [load, store] : ways) {
        if (elements == 8 && load == "ldu.global") continue;
        const std::string vector = elements == 1 ? "" : fmt::format(".v{}", elements);
        std::string list;
        for (int e = 0; e < elements; ++e)
          list += fmt::format("{}%{}{}", e ? ", " : "", width.registers, 4 + e);
        if (elements > 1) list = "{" + list + "}";
        const std::string text = OneWarp(
            fmt::format("mul.wide.u32 %l2, %r0, {};\nadd.s64 %l3, %l1, %l2;\nadd.s64 %l2, %l0, %l2;\n",
                        bytes) +
                fmt::format("{}{}.{} {}, [%l3];\n{}{}.{} [%l2], {};\nexit;\n", load, vector, width.type, list,
                            store, vector, width.type, list),
            1);
        const Module module = Module::Parse(text);
        Memory memory;
        const uint64_t out = memory.Allocate(1024, "out");
        const uint64_t in = Upload(memory, input, "in");
        LaunchOptions options;
        options.lines = OpcodeLogWanted();
        const LaunchReport report = Launch(memory, module, "k", {1}, {32}, 0, Args(out, in), options);
        LogOpcodes(report);
        ASSERT_EQ(Text(report.hazards), "") << load << vector << "." << width.type;
        const std::vector<uint8_t> found = Download<uint8_t>(memory, out, static_cast<size_t>(32 * bytes));
        ASSERT_TRUE(std::equal(found.begin(), found.end(), input.begin()))
            << load << vector << "." << width.type;
        ASSERT_EQ(report.counters[Counter::kGlobalLoadBytes], static_cast<uint64_t>(32 * bytes));
        ASSERT_EQ(report.counters[Counter::kGlobalStoreBytes], static_cast<uint64_t>(32 * bytes));
      }
    }
  }
}

TEST(IsaMemory, PrefetchesAndFencesChangeNothing) {
  const WarpResult result = RunWarp(
      "prefetch.global.L1 [%l1];\nprefetch.global.L2 [%l1];\nprefetchu.L1 "
      "[%l1];\nprefetch.global.L2::evict_last "
      "[%l1];\nmembar.cta;\nmembar.gl;\nmembar.sys;\nfence.sc.gpu;\nfence.acq_rel.cta;\nnanosleep.u32 "
      "100;\npmevent 1;\n"
      "griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\nld.global.u32 %r1, [%l1];\n",
      1, std::vector<uint32_t>{77});
  EXPECT_EQ(Text(result.report.hazards), "");
  for (const uint32_t value : result.out) EXPECT_EQ(value, 77u);
}

// cp.async in groups: the last two of three groups may stay under way.
TEST(IsaMemory, CopiesArriveGroupByGroup) {
  std::string body =
      "shl.b32 %r20, %r0, 4;\nmov.u32 %r21, sm;\nmul.wide.u32 %l2, %r0, 16;\nadd.s64 %l2, %l2, %l1;\n"
      "add.u32 %r20, %r20, %r21;\n";
  for (const int at : {0, 4, 8}) {
    body += fmt::format("cp.async.ca.shared.global [%r20+{0}], [%l2+{0}], 4;\ncp.async.commit_group;\n", at);
  }
  const std::string declaration = ".shared .align 16 .b8 sm[512];\n";
  std::vector<uint32_t> input(128);
  for (uint32_t i = 0; i < 128; ++i) input[i] = i;
  const auto run = [&](int keep, int at) {
    return RunWarp(body + fmt::format("cp.async.wait_group {};\nld.shared.u32 %r1, [%r20+{}];\n", keep, at),
                   1, input, declaration);
  };
  for (int keep = 0; keep <= 3; ++keep) {
    for (int group = 0; group < 3; ++group) {
      const WarpResult result = run(keep, 4 * group);
      const bool here = group < 3 - keep;
      EXPECT_EQ(Has(result.report, HazardKind::kPendingCopy), !here) << keep << " " << group;
      if (!here) continue;
      for (uint32_t lane = 0; lane < 32; ++lane) {
        EXPECT_EQ(result.out[lane], 4 * lane + static_cast<uint32_t>(group));
      }
    }
  }
}

// One lane after the other: lane i applies the operation with operand b(i) to one place.
struct AtomicCase {
  std::string operation;  // "add.u32"
  int bytes;
  uint64_t start;
  std::function<uint64_t(uint64_t old, uint64_t lane)> next;
};

TEST(IsaAtomic, EveryOperationOfEveryTypeInBothSpaces) {
  const auto u32 = [](auto&& f) {
    return [f](uint64_t old, uint64_t b) {
      return uint64_t{static_cast<uint32_t>(f(static_cast<uint32_t>(old), static_cast<uint32_t>(b)))};
    };
  };
  const auto u64 = [](auto&& f) {
    return [f](uint64_t old, uint64_t b) { return static_cast<uint64_t>(f(old, b)); };
  };
  const auto s32 = [](bool max) {
    return [max](uint64_t old, uint64_t b) {
      const int32_t x = static_cast<int32_t>(old);
      const int32_t y = static_cast<int32_t>(b);
      return uint64_t{static_cast<uint32_t>(max ? std::max(x, y) : std::min(x, y))};
    };
  };
  const auto s64 = [](bool max) {
    return [max](uint64_t old, uint64_t b) {
      const int64_t x = static_cast<int64_t>(old);
      const int64_t y = static_cast<int64_t>(b);
      return static_cast<uint64_t>(max ? std::max(x, y) : std::min(x, y));
    };
  };
  const auto f32 = [](uint64_t old, uint64_t b) {
    return uint64_t{
        std::bit_cast<uint32_t>(std::bit_cast<float>(static_cast<uint32_t>(old)) + static_cast<float>(b))};
  };
  const auto f64 = [](uint64_t old, uint64_t b) {
    return std::bit_cast<uint64_t>(std::bit_cast<double>(old) + static_cast<double>(b));
  };
  // The lane as a number in each half that there is.
  const auto half = [](int halves, bool bf16) {
    return [=](uint64_t old, uint64_t b) {
      uint64_t bits = 0;
      for (int h = 0; h < halves; ++h) {
        const uint16_t x = static_cast<uint16_t>(old >> (16 * h));
        const float sum = (bf16 ? BFloat16BitsToFloat(x) : HalfBitsToFloat(x)) + static_cast<float>(b);
        bits |= uint64_t{bf16 ? FloatToBFloat16Bits(sum) : FloatToHalfBits(sum)} << (16 * h);
      }
      return bits;
    };
  };
  const uint32_t low = 0x80000000u;
  const std::vector<AtomicCase> cases = {
      {"add.u32", 4, 0xfffffff0u, u32([](uint32_t a, uint32_t b) { return a + b; })},
      {"add.s32", 4, 0x7ffffff0u, u32([](uint32_t a, uint32_t b) { return a + b; })},
      {"add.u64", 8, ~uint64_t{0}, u64([](uint64_t a, uint64_t b) { return a + b; })},
      {"add.f32", 4, std::bit_cast<uint32_t>(0.5f), f32},
      {"add.f64", 8, std::bit_cast<uint64_t>(0.25), f64},
      {"min.u32", 4, low, u32([](uint32_t a, uint32_t b) { return std::min(a, b); })},
      {"max.u32", 4, 9, u32([](uint32_t a, uint32_t b) { return std::max(a, b); })},
      {"min.s32", 4, low, s32(false)},
      {"max.s32", 4, low, s32(true)},
      {"min.u64", 8, ~uint64_t{0}, u64([](uint64_t a, uint64_t b) { return std::min(a, b); })},
      {"max.u64", 8, 9, u64([](uint64_t a, uint64_t b) { return std::max(a, b); })},
      {"min.s64", 8, uint64_t{1} << 63, s64(false)},
      {"max.s64", 8, uint64_t{1} << 63, s64(true)},
      {"and.b32", 4, 0x5555ff15u, u32([](uint32_t a, uint32_t b) { return a & b; })},
      {"or.b32", 4, 0x100, u32([](uint32_t a, uint32_t b) { return a | b; })},
      {"xor.b32", 4, 0x100, u32([](uint32_t a, uint32_t b) { return a ^ b; })},
      {"and.b64", 8, ~uint64_t{0}, u64([](uint64_t a, uint64_t b) { return a & b; })},
      {"or.b64", 8, uint64_t{1} << 40, u64([](uint64_t a, uint64_t b) { return a | b; })},
      {"xor.b64", 8, uint64_t{1} << 40, u64([](uint64_t a, uint64_t b) { return a ^ b; })},
      {"inc.u32", 4, 30, u32([](uint32_t a, uint32_t b) { return a >= b ? 0 : a + 1; })},
      {"dec.u32", 4, 3, u32([](uint32_t a, uint32_t b) { return a == 0 || a > b ? b : a - 1; })},
      {"exch.b32", 4, 7, u32([](uint32_t, uint32_t b) { return b; })},
      {"exch.b64", 8, 7, u64([](uint64_t, uint64_t b) { return b; })},
      {"add.noftz.f16", 2, 1, half(1, false)},
      {"add.noftz.f16x2", 4, 0x00013c00, half(2, false)},
      {"add.noftz.bf16", 2, 1, half(1, true)},
      {"add.noftz.bf16x2", 4, 0x00013f80, half(2, true)},
  };
  for (const AtomicCase& c : cases) {
    for (const std::string& space : {std::string("global"), std::string("shared"), std::string("")}) {
      for (const bool reduce : {false, true}) {
        if (reduce && c.operation.starts_with("exch")) continue;
        SCOPED_TRACE(c.operation + " " + space + (reduce ? " red" : " atom"));
        // The operand in a register of the right kind, the place in %l2 (or %r20 in shared memory).
        const bool is_float = c.operation.starts_with("add.f");
        const bool is_half = c.operation.find("noftz") != std::string::npos;
        const bool bf16 = c.operation.find("bf16") != std::string::npos;
        std::string body = "cvt.u64.u32 %l3, %r0;\ncvt.rn.f32.u32 %f1, %r0;\ncvt.rn.f64.u32 %d1, %r0;\n";
        body += fmt::format("cvt.rn.{0}.f32 %h1, %f1;\nmov.b32 %r6, {{%h1, %h1}};\n", bf16 ? "bf16" : "f16");
        const std::string operand = is_half        ? (c.bytes == 2 ? "%h1" : "%r6")
                                    : is_float     ? (c.bytes == 4 ? "%f1" : "%d1")
                                    : c.bytes == 8 ? "%l3"
                                                   : "%r0";
        const std::string dest = is_half        ? (c.bytes == 2 ? "%h2" : "%r7")
                                 : is_float     ? (c.bytes == 4 ? "%f2" : "%d2")
                                 : c.bytes == 8 ? "%l4"
                                                : "%r7";
        const bool shared = space == "shared";
        const std::string width = c.bytes == 2 ? "u16" : c.bytes == 4 ? "u32" : "u64";
        const std::string moved = c.bytes == 2 ? "%h5" : c.bytes == 4 ? "%r5" : "%l5";
        if (shared) {
          body += "mov.u32 %r20, sm;\nld.global." + width + " " + moved +
                  ", [%l1];\nsetp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared." + width + " [%r20], " + moved +
                  ";\nbar.warp.sync -1;\n";
        }
        const std::string place = shared ? "[%r20]" : "[%l1]";
        const std::string prefix = (reduce ? "red" : "atom") + (space.empty() ? "" : "." + space) + ".";
        body += prefix + c.operation + " " + (reduce ? "" : dest + ", ") + place + ", " + operand + ";\n";
        body += "bar.warp.sync -1;\n";
        if (!reduce) {
          body += "cvt.u64.u16 %l6, %h2;\nmov.b32 %r8, %f2;\nmov.b64 %l7, %d2;\nmov.u64 %l8, %l4;\n";
          const std::string wide = dest == "%h2"   ? "mov.u64 %l9, %l6;\n"
                                   : dest == "%f2" ? "cvt.u64.u32 %l9, %r8;\n"
                                   : dest == "%d2" ? "mov.u64 %l9, %l7;\n"
                                   : dest == "%l4" ? "mov.u64 %l9, %l8;\n"
                                                   : "cvt.u64.u32 %l9, %r7;\n";
          body += wide;
        } else {
          body += "mov.u64 %l9, 0;\n";
        }
        body += "ld." + (shared ? "shared." : std::string("global.")) + width + " " + moved + ", " + place +
                ";\n";
        body += c.bytes == 2   ? "cvt.u64.u16 %l10, %h5;\n"
                : c.bytes == 4 ? "cvt.u64.u32 %l10, %r5;\n"
                               : "mov.u64 %l10, %l5;\n";
        body += "mov.b64 {%r1, %r2}, %l9;\nmov.b64 {%r3, %r4}, %l10;\n";
        const std::vector<uint64_t> input = {c.start};
        const WarpResult result = RunWarp(body, 4, input, ".shared .align 8 .b8 sm[8];\n");
        EXPECT_EQ(Text(result.report.hazards), "");
        const auto wide_at = [&](size_t at) {
          return result.out[at] | static_cast<uint64_t>(result.out[at + 1]) << 32;
        };
        uint64_t value = c.start;
        for (uint64_t lane = 0; lane < 32; ++lane) {
          if (!reduce) {
            ASSERT_EQ(wide_at(lane * 4), value) << "what lane " << lane << " found";
          }
          value = c.next(value, lane);
        }
        ASSERT_EQ(wide_at(2), value) << "what is left";
      }
    }
  }
}

TEST(IsaAtomic, CompareAndSwapOfEveryWidth) {
  // Each lane replaces its own number by the next: all of them succeed, one after the other.
  for (const auto& [type, reg] : {std::pair("b16", "%h"), std::pair("b32", "%r"), std::pair("b64", "%l")}) {
    for (const char* order : {"", ".relaxed.gpu", ".acq_rel.sys"}) {
      const WarpResult result = RunWarp(
          "add.u32 %r10, %r0, 1;\ncvt.u64.u32 %l10, %r0;\ncvt.u64.u32 %l11, %r10;\ncvt.u16.u32 %h10, "
          "%r0;\ncvt.u16.u32 "
          "%h11, %r10;\nmov.u32 %r11, %r10;\nmov.u32 %r10, %r0;\n" +
              fmt::format("atom{0}.global.cas.{1} {2}12, [%l1], {2}10, {2}11;\n", order, type, reg) +
              "cvt.u32.u16 %r13, %h12;\ncvt.u32.u64 %r14, %l12;\nld.global.u32 %r2, [%l1];\n" +
              fmt::format("mov.u32 %r1, {};\n", reg[1] == 'h'   ? "%r13"
                                                : reg[1] == 'r' ? "%r12"
                                                                : "%r14"),
          2, std::vector<uint64_t>{0});
      for (uint32_t lane = 0; lane < 32; ++lane) {
        EXPECT_EQ(result.out[lane * 2], lane) << type << order;
        EXPECT_EQ(result.out[lane * 2 + 1], 32u) << type << order;
      }
    }
  }
}

}  // namespace
}  // namespace vqllm::ptx::test
