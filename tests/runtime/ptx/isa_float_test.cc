#include <bit>
#include <cmath>
#include <limits>

#include "tests/runtime/ptx/support.h"
#include "vq/base/half.h"
#include "vq/base/rng.h"

/// Floats: NaN, infinities, subnormals, signed zeros, ties and the rounding modes of the PTX ISA tables.
namespace vqllm::ptx::test {
namespace {

uint32_t Eval32(const std::string& body) { return RunWarp(body + "\n", 1).out[0]; }

struct Case {
  std::string body;  // result in %f1, or in %r1 where `in_r`
  uint32_t expected;
};
void CheckFloats(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(Eval32(c.body + "\nmov.b32 %r1, %f1;"), c.expected) << c.body;
}
void Check(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(Eval32(c.body), c.expected) << c.body;
}

TEST(IsaFloat, SpecialValuesGiveTheCanonicalNan) {
  CheckFloats({{"add.f32 %f1, 0f7f800000, 0fff800000;", 0x7fffffffu},
               {"mul.f32 %f1, 0f00000000, 0f7f800000;", 0x7fffffffu},
               {"fma.rn.f32 %f1, 0f7fc01234, 0f3f800000, 0f3f800000;", 0x7fffffffu},
               {"div.rn.f32 %f1, 0f00000000, 0f00000000;", 0x7fffffffu},
               {"sqrt.rn.f32 %f1, 0fbf800000;", 0x7fffffffu},
               {"neg.f32 %f1, 0f7fc01234;", 0xffc01234u},
               {"abs.f32 %f1, 0fffc01234;", 0x7fc01234u},
               {"sqrt.rn.f32 %f1, 0f80000000;", 0x80000000u},
               {"rcp.rn.f32 %f1, 0f80000000;", 0xff800000u},
               {"copysign.f32 %f1, 0f80000000, 0f3f800000;", 0xbf800000u}});
}

TEST(IsaFloat, SubnormalsAreKeptUnlessFtz) {
  CheckFloats({{"add.f32 %f1, 0f00000001, 0f00000001;", 2u},
               {"add.ftz.f32 %f1, 0f00000001, 0f00000001;", 0u},
               {"mul.f32 %f1, 0f00800000, 0f3f000000;", 0x00400000u},
               {"mul.ftz.f32 %f1, 0f80800000, 0f3f000000;", 0x80000000u},
               {"neg.ftz.f32 %f1, 0f00000001;", 0x80000000u},
               {"abs.ftz.f32 %f1, 0f80000001;", 0u},
               {"max.ftz.f32 %f1, 0f00000001, 0f80000000;", 0u},
               {"fma.rn.ftz.f32 %f1, 0f00000001, 0f7f000000, 0f00000001;", 0u}});
}

TEST(IsaFloat, SaturationMapsNanToZero) {
  CheckFloats({{"add.sat.f32 %f1, 0f3f800000, 0f3f800000;", 0x3f800000u},
               {"mul.sat.f32 %f1, 0fbf800000, 0f3f800000;", 0u},
               {"fma.rn.sat.f32 %f1, 0f7fffffff, 0f3f800000, 0f3f800000;", 0u}});
}

TEST(IsaFloat, DirectedRounding) {
  // 1 + 2^-24 lies half-way; 1 / 3 and sqrt(2) are inexact.
  CheckFloats({{"add.rn.f32 %f1, 0f3f800000, 0f33800000;", 0x3f800000u},
               {"add.rz.f32 %f1, 0f3f800000, 0f33800001;", 0x3f800000u},
               {"add.rp.f32 %f1, 0f3f800000, 0f00000001;", 0x3f800001u},
               {"add.rm.f32 %f1, 0f3f800000, 0f80000001;", 0x3f7fffffu},
               {"sub.rm.f32 %f1, 0f3f800000, 0f3f800000;", 0x80000000u},
               {"mul.rz.f32 %f1, 0f3f800001, 0f3f800001;", 0x3f800002u},
               {"mul.rp.f32 %f1, 0f3f800001, 0f3f800001;", 0x3f800003u},
               {"fma.rz.f32 %f1, 0f3f800001, 0f3f800001, 0f00000000;", 0x3f800002u},
               {"fma.rp.f32 %f1, 0f3f800001, 0f3f800001, 0f00000000;", 0x3f800003u},
               {"div.rn.f32 %f1, 0f3f800000, 0f40400000;", 0x3eaaaaabu},
               {"div.rz.f32 %f1, 0f3f800000, 0f40400000;", 0x3eaaaaaau},
               {"rcp.rp.f32 %f1, 0f40400000;", 0x3eaaaaabu},
               {"sqrt.rm.f32 %f1, 0f40000000;", 0x3fb504f3u},
               {"sqrt.rp.f32 %f1, 0f40000000;", 0x3fb504f4u},
               {"mul.rz.f32 %f1, 0f7f7fffff, 0f40000000;", 0x7f7fffffu},
               {"mul.rm.f32 %f1, 0f7f7fffff, 0fc0000000;", 0xff800000u}});
}

TEST(IsaFloat, MinAndMaxPreferNumbersAndKnowSignedZeros) {
  CheckFloats({{"max.f32 %f1, 0f7fffffff, 0f3f800000;", 0x3f800000u},
               {"max.NaN.f32 %f1, 0f7fffffff, 0f3f800000;", 0x7fffffffu},
               {"min.f32 %f1, 0f7fffffff, 0f7fc00001;", 0x7fffffffu},
               {"max.f32 %f1, 0f80000000, 0f00000000;", 0u},
               {"max.f32 %f1, 0f00000000, 0f80000000;", 0u},
               {"min.f32 %f1, 0f00000000, 0f80000000;", 0x80000000u},
               {"min.f32 %f1, 0f80000000, 0f00000000;", 0x80000000u},
               {"max.xorsign.abs.f32 %f1, 0fc0000000, 0f3f800000;", 0xc0000000u},
               {"max.f32 %f1, 0f3f800000, 0f40000000, 0f40400000;", 0x40400000u}});
}

TEST(IsaFloat, ComparisonsOrderedAndUnordered) {
  const auto holds = [](const std::string& relation, const std::string& a, const std::string& b) {
    return Eval32("setp." + relation + ".f32 %p1, " + a + ", " + b + ";\nselp.b32 %r1, 1, 0, %p1;") == 1;
  };
  const std::string nan = "0f7fffffff";
  const std::string one = "0f3f800000";
  const std::string two = "0f40000000";
  for (const char* relation : {"eq", "ne", "lt", "le", "gt", "ge", "num"}) {
    EXPECT_FALSE(holds(relation, nan, one)) << relation;
    EXPECT_FALSE(holds(relation, one, nan)) << relation;
  }
  for (const char* relation : {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"}) {
    EXPECT_TRUE(holds(relation, nan, one)) << relation;
    EXPECT_TRUE(holds(relation, one, nan)) << relation;
  }
  EXPECT_TRUE(holds("lt", one, two) && holds("ltu", one, two) && holds("ne", one, two) &&
              holds("neu", one, two));
  EXPECT_FALSE(holds("gt", one, two) || holds("gtu", one, two) || holds("eq", one, two) ||
               holds("equ", one, two));
  EXPECT_TRUE(holds("eq", "0f80000000", "0f00000000"));
  EXPECT_TRUE(holds("lt", "0f00000000", "0f00000001"));
  EXPECT_FALSE(holds("lt.ftz", "0f00000000", "0f00000001"));
  Check({{"testp.subnormal.f32 %p1, 0f00000001;\nselp.b32 %r1, 1, 0, %p1;", 1u},
         {"testp.normal.f32 %p1, 0f00000001;\nselp.b32 %r1, 1, 0, %p1;", 0u},
         {"testp.infinite.f32 %p1, 0fff800000;\nselp.b32 %r1, 1, 0, %p1;", 1u},
         {"testp.notanumber.f32 %p1, 0f7fffffff;\nselp.b32 %r1, 1, 0, %p1;", 1u}});
}

TEST(IsaFloat, FloatsToIntegersClampAndRound) {
  Check({{"cvt.rni.s32.f32 %r1, 0f40200000;", 2u},
         {"cvt.rni.s32.f32 %r1, 0f40600000;", 4u},
         {"cvt.rzi.s32.f32 %r1, 0fc02ccccd;", static_cast<uint32_t>(-2)},
         {"cvt.rmi.s32.f32 %r1, 0fc0200000;", static_cast<uint32_t>(-3)},
         {"cvt.rpi.s32.f32 %r1, 0f40066666;", 3u},
         {"cvt.rzi.s32.f32 %r1, 0f7f800000;", 0x7fffffffu},
         {"cvt.rzi.s32.f32 %r1, 0fff800000;", 0x80000000u},
         {"cvt.rzi.s32.f32 %r1, 0f7fffffff;", 0u},
         {"cvt.rzi.u32.f32 %r1, 0fbf800000;", 0u},
         {"cvt.rzi.u32.f32 %r1, 0f4f800000;", 0xffffffffu},
         {"cvt.rzi.u32.f32 %r1, 0f4f7fffff;", 0xffffff00u},
         {"cvt.rzi.s8.f32 %r1, 0f43480000;", 127u},
         {"cvt.rni.s32.f64 %r1, 0d4004000000000000;", 2u}});
}

TEST(IsaFloat, IntegersAndDoublesToFloatsRoundOnce) {
  CheckFloats({{"cvt.rn.f32.s32 %f1, 16777217;", 0x4b800000u},
               {"cvt.rp.f32.s32 %f1, 16777217;", 0x4b800001u},
               {"cvt.rz.f32.s32 %f1, -16777217;", 0xcb800000u},
               {"cvt.rm.f32.s32 %f1, -16777217;", 0xcb800001u},
               {"cvt.rn.f32.u64 %f1, 0x8000008000000001;", 0x5f000001u},
               {"cvt.rz.f32.u64 %f1, 0xffffffffffffffff;", 0x5f7fffffu},
               {"cvt.rn.f32.f64 %f1, 0d3ff0000010000000;", 0x3f800000u},
               {"cvt.rn.f32.f64 %f1, 0d3ff0000010000001;", 0x3f800001u},
               {"cvt.rz.f32.f64 %f1, 0d7fefffffffffffff;", 0x7f7fffffu},
               {"cvt.rni.f32.f32 %f1, 0fc0200000;", 0xc0000000u},
               {"cvt.rni.f32.f32 %f1, 0fbe800000;", 0x80000000u},
               {"cvt.sat.f32.f32 %f1, 0f40000000;", 0x3f800000u},
               {"cvt.ftz.f32.f32 %f1, 0f80000001;", 0x80000000u}});
}

TEST(IsaFloat, Double) {
  const auto eval = [](const std::string& body) {
    const WarpResult r = RunWarp(body + "\nmov.b64 {%r1, %r2}, %d1;\n", 2);
    return r.out[0] | static_cast<uint64_t>(r.out[1]) << 32;
  };
  EXPECT_EQ(eval("add.f64 %d1, 0d3ff0000000000000, 0d3ca0000000000000;"), 0x3ff0000000000000u);
  EXPECT_EQ(eval("add.rp.f64 %d1, 0d3ff0000000000000, 0d0000000000000001;"), 0x3ff0000000000001u);
  EXPECT_EQ(eval("fma.rn.f64 %d1, 0d3ff0000000000001, 0d3ff0000000000001, 0dbff0000000000002;"),
            0x3970000000000000u);
  EXPECT_EQ(eval("max.f64 %d1, 0d7fffffffffffffff, 0dc000000000000000;"), 0xc000000000000000u);
  EXPECT_EQ(eval("div.rz.f64 %d1, 0d3ff0000000000000, 0d4008000000000000;"), 0x3fd5555555555555u);
  EXPECT_EQ(eval("cvt.f64.f32 %d1, 0f3f800000;"), 0x3ff0000000000000u);
  EXPECT_EQ(eval("cvt.rn.f64.s64 %d1, 9007199254740993;"), 0x4340000000000000u);
  EXPECT_EQ(eval("cvt.rp.f64.s64 %d1, 9007199254740993;"), 0x4340000000000001u);
}

// f16x2 arithmetic against exact double arithmetic rounded once, on patterns of all magnitudes.
TEST(IsaHalf, ArithmeticRoundsOnce) {
  Rng rng(7);
  const auto round_half = [](double value) -> uint16_t {
    if (std::isnan(value)) return 0x7fff;
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double m = std::fabs(value);
    if (m >= 65520) return sign | 0x7c00;
    if (m < 0x1p-14)
      return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(m, 24))));
    const int e = std::ilogb(m);
    const int units = static_cast<int>(std::nearbyint(std::ldexp(m, 10 - e)));
    return static_cast<uint16_t>(sign | (((e + 15) << 10) + (units - 1024)));
  };
  for (int round = 0; round < 40; ++round) {
    std::vector<uint32_t> input(32 * 3);
    for (int lane = 0; lane < 32; ++lane) {
      for (int half = 0; half < 2; ++half) {
        const uint16_t a = static_cast<uint16_t>(rng.Next());
        const uint16_t b = static_cast<uint16_t>(rng.Next());
        uint16_t c = static_cast<uint16_t>(rng.Next());
        // Every other case cancels: c is the rounded -a b, give or take a few units.
        if (round % 2) c = round_half(-double{HalfBitsToFloat(a)} * HalfBitsToFloat(b)) ^ (rng.Next() & 3);
        input[lane * 3] |= static_cast<uint32_t>(a) << (16 * half);
        input[lane * 3 + 1] |= static_cast<uint32_t>(b) << (16 * half);
        input[lane * 3 + 2] |= static_cast<uint32_t>(c) << (16 * half);
      }
    }
    const WarpResult result = RunWarp(
        "mul.wide.u32 %l2, %r0, 12;\nadd.s64 %l2, %l2, %l1;\nld.global.u32 %r10, [%l2];\nld.global.u32 %r11, "
        "[%l2+4];\nld.global.u32 %r12, [%l2+8];\n"
        "fma.rn.f16x2 %r1, %r10, %r11, %r12;\nadd.f16x2 %r2, %r10, %r12;\nmul.f16x2 %r3, %r10, %r11;\n"
        "fma.rn.bf16x2 %r4, %r10, %r11, %r12;\n",
        4, input);
    for (int i = 0; i < 64; ++i) {
      const int lane = i / 2;
      const int shift = 16 * (i % 2);
      const auto in = [&](int k) { return static_cast<uint16_t>(input[lane * 3 + k] >> shift); };
      const auto out = [&](int k) { return static_cast<uint16_t>(result.out[lane * 4 + k] >> shift); };
      const double a = HalfBitsToFloat(in(0));
      const double b = HalfBitsToFloat(in(1));
      const double c = HalfBitsToFloat(in(2));
      ASSERT_EQ(out(0), round_half(a * b + c)) << in(0) << " " << in(1) << " " << in(2);
      ASSERT_EQ(out(1), round_half(a + c));
      ASSERT_EQ(out(2), round_half(a * b));
      // bf16: long double holds a product exactly, and its sum with c to 64 bits; skip what that rounds.
      const long double p = static_cast<long double>(BFloat16BitsToFloat(in(0))) * BFloat16BitsToFloat(in(1));
      const long double z = BFloat16BitsToFloat(in(2));
      const long double sum = p + z;
      if (!(sum - p == z && sum - z == p) || std::isnan(sum)) continue;
      const float f = static_cast<float>(sum);
      if (static_cast<long double>(f) != sum) continue;  // a float rounds to bf16 once
      ASSERT_EQ(BFloat16BitsToFloat(out(3)), BFloat16BitsToFloat(FloatToBFloat16Bits(f)));
    }
  }
}

TEST(IsaHalf, ModifiersAndSpecialValues) {
  Check({{"add.sat.f16x2 %r1, 0x3c003c00, 0x3c00fc00;", 0x3c000000u},
         {"fma.rn.relu.f16x2 %r1, 0xbc003c00, 0x3c003c00, 0x00000000;", 0x00003c00u},
         {"fma.rn.ftz.f16x2 %r1, 0x00010001, 0x3c003c00, 0x00000000;", 0u},
         {"add.f16x2 %r1, 0x7c007bff, 0xfc007bff;", 0x7fff7c00u},
         {"max.f16x2 %r1, 0x7fff8000, 0x3c000000;", 0x3c000000u},
         {"min.NaN.f16x2 %r1, 0x7fff8000, 0x3c000000;", 0x7fff8000u},
         {"max.bf16x2 %r1, 0x3f80bf80, 0x4000c000;", 0x4000bf80u},
         {"neg.f16x2 %r1, 0x3c00bc00;", 0xbc003c00u},
         {"abs.bf16x2 %r1, 0xbf80bf80;", 0x3f803f80u},
         {"ex2.approx.f16x2 %r1, 0x3c000000;", 0x40003c00u},
         {"set.lt.f16x2.f16x2 %r1, 0x3c003c00, 0x40003c00;", 0x3c000000u},
         {"set.eq.u32.f16x2 %r1, 0x3c003c00, 0x40003c00;", 0x0000ffffu},
         {"setp.lt.f16x2 %p1|%p2, 0x40003c00, 0x3c004000;\nselp.b32 %r3, 1, 0, %p1;\nselp.b32 %r4, 2, 0, "
          "%p2;\nadd.u32 "
          "%r1, %r3, %r4;",
          1u}});
}

TEST(IsaHalf, Conversions) {
  Check({{"cvt.rn.f16x2.f32 %r1, 0f3f800000, 0f40000000;", 0x3c004000u},
         {"cvt.rz.f16x2.f32 %r1, 0f3f801fff, 0f477fffff;", 0x3c007bffu},
         {"cvt.rn.satfinite.f16x2.f32 %r1, 0f7f800000, 0fff800000;", 0x7bfffbffu},
         {"cvt.rn.bf16x2.f32 %r1, 0f3f808000, 0f3f818000;", 0x3f803f82u},
         {"cvt.rn.relu.bf16x2.f32 %r1, 0fbf800000, 0f3f800000;", 0x00003f80u},
         {"cvt.rna.tf32.f32 %r1, 0f3f801000;", 0x3f802000u},
         {"cvt.rn.satfinite.e4m3x2.f32 %h1, 0f43e00000, 0f44000000;\ncvt.u32.u16 %r1, %h1;", 0x7e7eu},
         {"cvt.rn.satfinite.e5m2x2.f32 %h1, 0f3f800000, 0fbfa00000;\ncvt.u32.u16 %r1, %h1;", 0x3cbdu},
         {"mov.b16 %h1, 0x7e38;\ncvt.rn.f16x2.e4m3x2 %r1, %h1;", 0x5f003c00u},
         {"mov.b16 %h1, 0x3c01;\ncvt.rn.f16x2.e5m2x2 %r1, %h1;", 0x3c000100u},
         {"mov.b16 %h1, 0x3c01;\ncvt.f32.f16 %f1, %h1;\nmov.b32 %r1, %f1;", 0x3f802000u},
         {"mov.b16 %h1, 0x0001;\ncvt.f32.f16 %f1, %h1;\nmov.b32 %r1, %f1;", 0x33800000u},
         {"mov.b16 %h1, 0xc100;\ncvt.rni.s32.f16 %r1, %h1;", static_cast<uint32_t>(-2)},
         {"cvt.rn.f16.s32 %h1, 65520;\ncvt.u32.u16 %r1, %h1;", 0x7c00u},
         {"cvt.rn.f16.s32 %h1, 2049;\ncvt.u32.u16 %r1, %h1;", 0x6800u}});
}

TEST(IsaFloat, FunctionsOfSpecialValues) {
  CheckFloats({{"ex2.approx.f32 %f1, 0f40400000;", 0x41000000u},
               {"ex2.approx.f32 %f1, 0fff800000;", 0u},
               {"ex2.approx.ftz.f32 %f1, 0fc3000000;", 0u},
               {"lg2.approx.f32 %f1, 0f41000000;", 0x40400000u},
               {"lg2.approx.f32 %f1, 0f00000000;", 0xff800000u},
               {"rsqrt.approx.f32 %f1, 0f40800000;", 0x3f000000u},
               {"rsqrt.approx.f32 %f1, 0f00000000;", 0x7f800000u},
               {"rcp.approx.ftz.f32 %f1, 0f00000001;", 0x7f800000u},
               {"tanh.approx.f32 %f1, 0f7f800000;", 0x3f800000u},
               {"sin.approx.f32 %f1, 0f00000000;", 0u},
               {"cos.approx.f32 %f1, 0f00000000;", 0x3f800000u},
               {"div.approx.f32 %f1, 0f40c00000, 0f40000000;", 0x40400000u},
               {"div.full.ftz.f32 %f1, 0f40c00000, 0f40000000;", 0x40400000u}});
}

// The .f64 approximations: the upper half of the result, the lower half zero; subnormals count as zeros.
TEST(IsaFloat, ApproximationsOfDoubles) {
  const auto eval = [](const std::string& opcode, double x) {
    const WarpResult r =
        RunWarp(fmt::format("mov.b64 %d1, 0x{:016x};\n{} %d2, %d1;\nmov.b64 {{%r1, %r2}}, %d2;\n",
                            std::bit_cast<uint64_t>(x), opcode),
                2);
    return std::bit_cast<double>(r.out[0] | static_cast<uint64_t>(r.out[1]) << 32);
  };
  for (const double x : {1.0, 3.0, -7.25, 1e100, 1e-100}) {
    const double found = eval("rcp.approx.ftz.f64", x);
    EXPECT_NEAR(found * x, 1.0, 0x1p-19);
    EXPECT_EQ(std::bit_cast<uint64_t>(found) & 0xffffffffu, 0u);
    if (x < 0) continue;
    const double root = eval("rsqrt.approx.ftz.f64", x);
    EXPECT_NEAR(root * root * x, 1.0, 0x1p-18);
    EXPECT_EQ(std::bit_cast<uint64_t>(root) & 0xffffffffu, 0u);
    EXPECT_NEAR(eval("rsqrt.approx.f64", x) * std::sqrt(x), 1.0, 0x1p-19);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(eval("rcp.approx.ftz.f64", 0.0), infinity);
  EXPECT_EQ(eval("rcp.approx.ftz.f64", -0.0), -infinity);
  EXPECT_EQ(eval("rcp.approx.ftz.f64", 5e-324), infinity);
  EXPECT_EQ(eval("rcp.approx.ftz.f64", -infinity), -0.0);
  EXPECT_TRUE(std::signbit(eval("rcp.approx.ftz.f64", -infinity)));
  EXPECT_EQ(eval("rsqrt.approx.ftz.f64", 0.0), infinity);
  EXPECT_EQ(eval("rsqrt.approx.f64", infinity), 0.0);
  EXPECT_TRUE(std::isnan(eval("rsqrt.approx.f64", -1.0)));
  EXPECT_TRUE(std::isnan(eval("rcp.approx.ftz.f64", std::nan(""))));
}

TEST(IsaHalf, FunctionsOfSpecialValues) {
  Check({{"ex2.approx.f16x2 %r1, 0x7c00fc00;", 0x7c000000u},
         {"ex2.approx.f16x2 %r1, 0x7e00c000;", 0x7fff3400u},
         {"ex2.approx.ftz.bf16x2 %r1, 0x4000bf80;", 0x40803f00u},
         {"ex2.approx.ftz.bf16x2 %r1, 0x7f80ff80;", 0x7f800000u},
         {"ex2.approx.ftz.bf16x2 %r1, 0x00018001;", 0x3f803f80u},
         {"tanh.approx.f16x2 %r1, 0x7c00fc00;", 0x3c00bc00u},
         {"tanh.approx.f16x2 %r1, 0x00008000;", 0x00008000u},
         {"tanh.approx.bf16x2 %r1, 0x7f80ff80;", 0x3f80bf80u},
         {"tanh.approx.bf16x2 %r1, 0x7fc08000;", 0x7fff8000u},
         {"mov.b16 %h1, 0xbf80;\nex2.approx.ftz.bf16 %h2, %h1;\ncvt.u32.u16 %r1, %h2;", 0x3f00u},
         {"mov.b16 %h1, 0xff80;\ntanh.approx.bf16 %h2, %h1;\ncvt.u32.u16 %r1, %h2;", 0xbf80u},
         {"mov.b16 %h1, 0xc000;\nex2.approx.f16 %h2, %h1;\ncvt.u32.u16 %r1, %h2;", 0x3400u},
         {"mov.b16 %h1, 0x7c00;\ntanh.approx.f16 %h2, %h1;\ncvt.u32.u16 %r1, %h2;", 0x3c00u}});
}

}  // namespace
}  // namespace vqllm::ptx::test
