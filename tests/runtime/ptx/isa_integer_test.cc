#include "tests/runtime/ptx/support.h"

/// Integer instructions, each with the edge values of its table in the PTX ISA.
namespace vqllm::ptx::test {
namespace {

// One instruction on immediates: the 32-bit result in %r1.
uint32_t Eval32(const std::string& body) { return RunWarp(body + "\n", 1).out[0]; }
// A 64-bit result in %l2.
uint64_t Eval64(const std::string& body) {
  const WarpResult result = RunWarp(body + "\nmov.b64 {%r1, %r2}, %l2;\n", 2);
  return result.out[0] | static_cast<uint64_t>(result.out[1]) << 32;
}

struct Case {
  std::string body;
  uint32_t expected;
};
void Check(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(Eval32(c.body), c.expected) << c.body;
}

TEST(IsaInteger, ArithmeticWrapsAndSaturates) {
  Check({{"add.s32 %r1, 0x7fffffff, 1;", 0x80000000u},
         {"add.sat.s32 %r1, 0x7fffffff, 1;", 0x7fffffffu},
         {"add.sat.s32 %r1, -2147483648, -1;", 0x80000000u},
         {"sub.sat.s32 %r1, -2147483648, 1;", 0x80000000u},
         {"sub.u32 %r1, 0, 1;", 0xffffffffu},
         {"mul.lo.u32 %r1, 0x10001, 0x10001;", 0x20001u},
         {"mul.hi.u32 %r1, 0xffffffff, 0xffffffff;", 0xfffffffeu},
         {"mul.hi.s32 %r1, -1, -1;", 0u},
         {"mul.hi.s32 %r1, -2147483648, 2;", 0xffffffffu},
         {"mul.wide.u16 %r1, 0xffff, 0xffff;", 0xfffe0001u},
         {"mul.wide.s16 %r1, -32768, -32768;", 0x40000000u},
         {"mad.lo.s32 %r1, 7, -3, 1;", static_cast<uint32_t>(-20)},
         {"mad.hi.u32 %r1, 0x80000000, 4, 5;", 7u},
         {"mad.hi.sat.s32 %r1, 0x7fffffff, 0x7fffffff, 0x7fffffff;", 0x7fffffffu},
         {"mad.wide.u16 %r1, 0xffff, 2, 0xffffffff;", 0x1fffdu},
         {"mul24.lo.u32 %r1, 0xff000003, 5;", 15u},
         {"mul24.lo.s32 %r1, 0xffffff, 5;", static_cast<uint32_t>(-5)},
         {"mul24.hi.u32 %r1, 0xffffff, 0xffffff;", 0xfffffe00u},
         {"mad24.lo.s32 %r1, -2, 3, 10;", 4u},
         {"sad.s32 %r1, -5, 7, 100;", 112u},
         {"sad.u32 %r1, 3, 10, 1;", 8u},
         {"abs.s32 %r1, -2147483648;", 0x80000000u},
         {"neg.s32 %r1, -2147483648;", 0x80000000u},
         {"min.s32 %r1, -1, 1;", 0xffffffffu},
         {"min.u32 %r1, 0xffffffff, 1;", 1u},
         {"max.s32 %r1, -1, 1;", 1u},
         {"max.relu.s32 %r1, -7, -1;", 0u},
         {"min.relu.s32 %r1, 4, 9;", 4u}});
}

TEST(IsaInteger, DivisionWithTheQuotientsThatHaveNoValue) {
  Check({{"div.s32 %r1, -7, 2;", static_cast<uint32_t>(-3)},
         {"rem.s32 %r1, -7, 2;", static_cast<uint32_t>(-1)},
         {"div.u32 %r1, 0xffffffff, 2;", 0x7fffffffu},
         {"div.s32 %r1, -2147483648, -1;", 0x80000000u},
         {"rem.s32 %r1, -2147483648, -1;", 0u},
         {"div.u32 %r1, 5, 0;", 0xffffffffu},
         {"rem.u32 %r1, 5, 0;", 5u}});
  EXPECT_EQ(Eval64("div.u64 %l2, 0xffffffffffffffff, 10;"), 0x1999999999999999u);
  EXPECT_EQ(Eval64("rem.s64 %l2, -9223372036854775808, -1;"), 0u);
}

TEST(IsaInteger, SixtyFourBits) {
  EXPECT_EQ(Eval64("mul.hi.u64 %l2, 0xffffffffffffffff, 0xffffffffffffffff;"), 0xfffffffffffffffeu);
  EXPECT_EQ(Eval64("mul.hi.s64 %l2, -1, 5;"), ~uint64_t{0});
  EXPECT_EQ(Eval64("mul.wide.s32 %l2, -3, 0x40000000;"), static_cast<uint64_t>(-3ll * 0x40000000ll));
  EXPECT_EQ(Eval64("mul.wide.u32 %l2, 0xffffffff, 0xffffffff;"), 0xfffffffe00000001u);
  EXPECT_EQ(Eval64("mad.wide.s32 %l2, -1, 1, 1;"), 0u);
  EXPECT_EQ(Eval64("mad.lo.s64 %l2, 0x100000000, 0x100000000, 9;"), 9u);
  EXPECT_EQ(Eval64("neg.s64 %l2, 1;"), ~uint64_t{0});
}

TEST(IsaInteger, CarryChains) {
  EXPECT_EQ(Eval64("add.cc.u32 %r3, 0xffffffff, 1;\naddc.u32 %r4, 5, 6;\nmov.b64 %l2, {%r3, %r4};"),
            uint64_t{12} << 32);
  EXPECT_EQ(Eval64("sub.cc.u32 %r3, 0, 1;\nsubc.u32 %r4, 5, 2;\nmov.b64 %l2, {%r3, %r4};"),
            uint64_t{2} << 32 | 0xffffffffu);
  EXPECT_EQ(
      Eval64("mad.lo.cc.u32 %r3, 0xffffffff, 2, 5;\nmadc.hi.u32 %r4, 0xffffffff, 2, 7;\nmov.b64 %l2, {%r3, "
             "%r4};"),
      (uint64_t{0xffffffff} * 2 + 5) + (uint64_t{7} << 32));
  // addc.cc passes the carry on where the sum of the inputs alone does not carry.
  EXPECT_EQ(Eval32("add.cc.u32 %r3, 0xffffffff, 1;\naddc.cc.u32 %r4, 0xffffffff, 0;\naddc.u32 %r1, 0, 0;"),
            1u);
}

TEST(IsaInteger, ShiftsByTheWidthAndMore) {
  Check({{"shl.b32 %r1, 1, 31;", 0x80000000u},
         {"shl.b32 %r1, 1, 32;", 0u},
         {"shr.u32 %r1, 0x80000000, 31;", 1u},
         {"shr.u32 %r1, 0x80000000, 32;", 0u},
         {"shr.s32 %r1, -8, 1;", static_cast<uint32_t>(-4)},
         {"shr.s32 %r1, -8, 40;", 0xffffffffu},
         {"shr.b32 %r1, -8, 28;", 15u},
         {"shf.l.wrap.b32 %r1, 0x80000000, 1, 33;", 3u},
         {"shf.l.clamp.b32 %r1, 0x12345678, 1, 40;", 0x12345678u},
         {"shf.r.wrap.b32 %r1, 2, 1, 1;", 0x80000001u},
         {"shf.r.clamp.b32 %r1, 2, 0xabcd, 32;", 0xabcdu},
         {"shf.r.wrap.b32 %r1, 2, 0xabcd, 32;", 2u}});
  EXPECT_EQ(Eval64("shl.b64 %l2, 1, 63;"), uint64_t{1} << 63);
  EXPECT_EQ(Eval64("shl.b64 %l2, 1, 64;"), 0u);
  EXPECT_EQ(Eval64("shr.s64 %l2, -9223372036854775808, 100;"), ~uint64_t{0});
  EXPECT_EQ(Eval32("mov.b16 %h1, 0x8001;\nshr.s16 %h2, %h1, 20;\ncvt.u32.u16 %r1, %h2;"), 0xffffu);
}

TEST(IsaInteger, BitFields) {
  Check({{"bfe.u32 %r1, 0xabcdef12, 8, 8;", 0xefu},
         {"bfe.u32 %r1, 0xabcdef12, 0, 32;", 0xabcdef12u},
         {"bfe.u32 %r1, 0xabcdef12, 0, 0;", 0u},
         {"bfe.u32 %r1, 0xabcdef12, 32, 8;", 0u},
         {"bfe.u32 %r1, 0xabcdef12, 28, 16;", 0xau},
         {"bfe.s32 %r1, 0xabcdef12, 8, 8;", 0xffffffefu},
         {"bfe.s32 %r1, 0x80000000, 40, 8;", 0xffffffffu},
         {"bfe.s32 %r1, 0x80000000, 28, 16;", 0xfffffff8u},
         {"bfi.b32 %r1, 0xff, 0, 8, 4;", 0xf00u},
         {"bfi.b32 %r1, 0xff, 0x12345678, 32, 4;", 0x12345678u},
         {"bfi.b32 %r1, 0xff, 0x12345678, 4, 0;", 0x12345678u},
         {"bfi.b32 %r1, 0xffffffff, 0, 28, 40;", 0xf0000000u},
         {"popc.b32 %r1, 0xf0f0;", 8u},
         {"clz.b32 %r1, 0;", 32u},
         {"clz.b32 %r1, 0x8000;", 16u},
         {"brev.b32 %r1, 1;", 0x80000000u},
         {"bfind.u32 %r1, 0;", 0xffffffffu},
         {"bfind.u32 %r1, 0x100;", 8u},
         {"bfind.s32 %r1, -1;", 0xffffffffu},
         {"bfind.s32 %r1, -256;", 7u},
         {"bfind.shiftamt.u32 %r1, 0x100;", 23u},
         {"fns.b32 %r1, 0xaaaaaaaa, 0, 1;", 1u},
         {"fns.b32 %r1, 0xaaaaaaaa, 3, -1;", 3u},
         {"fns.b32 %r1, 0xaaaaaaaa, 3, -2;", 1u},
         {"fns.b32 %r1, 0xaaaaaaaa, 3, 100;", 0xffffffffu},
         {"fns.b32 %r1, 0xaaaaaaaa, 2, 0;", 0xffffffffu},
         {"bmsk.clamp.b32 %r1, 4, 8;", 0xff0u},
         {"bmsk.clamp.b32 %r1, 40, 8;", 0u},
         {"bmsk.wrap.b32 %r1, 36, 40;", 0xff0u},
         {"szext.clamp.s32 %r1, 0x80, 8;", 0xffffff80u},
         {"szext.wrap.u32 %r1, 0xfff, 36;", 0xfu}});
  EXPECT_EQ(Eval32("popc.b64 %r1, 0xffffffffffffffff;"), 64u);
  EXPECT_EQ(Eval32("clz.b64 %r1, 1;"), 63u);
  EXPECT_EQ(Eval64("brev.b64 %l2, 1;"), uint64_t{1} << 63);
  EXPECT_EQ(Eval64("bfi.b64 %l2, 0xff, 0, 60, 8;"), uint64_t{0xf} << 60);
  EXPECT_EQ(Eval64("bfe.s64 %l2, 0x80, 0, 8;"), static_cast<uint64_t>(-128));
}

TEST(IsaInteger, LogicOfThreeAndPermutations) {
  for (uint32_t table = 0; table < 256; table += 5) {
    const uint32_t a = 0xf0f0a5c3;
    const uint32_t b = 0xccccf00f;
    const uint32_t c = 0xaaaa3c5a;
    uint32_t expected = 0;
    for (int i = 0; i < 32; ++i) {
      const uint32_t index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
      expected |= (table >> index & 1) << i;
    }
    EXPECT_EQ(Eval32(fmt::format("lop3.b32 %r1, 0x{:x}, 0x{:x}, 0x{:x}, {};", a, b, c, table)), expected)
        << table;
  }
  Check({{"prmt.b32 %r1, 0x33221100, 0x77665544, 0x5140;", 0x55114400u},
         {"prmt.b32 %r1, 0x80, 0, 0x8888;", 0xffffffffu},
         {"prmt.b32.f4e %r1, 0x33221100, 0x77665544, 1;", 0x44332211u},
         {"prmt.b32.b4e %r1, 0x33221100, 0x77665544, 1;", 0x66770011u},
         {"prmt.b32.rc8 %r1, 0x33221100, 0x77665544, 2;", 0x22222222u},
         {"prmt.b32.ecl %r1, 0x33221100, 0x77665544, 1;", 0x33221111u},
         {"prmt.b32.ecr %r1, 0x33221100, 0x77665544, 2;", 0x22221100u},
         {"prmt.b32.rc16 %r1, 0x33221100, 0x77665544, 1;", 0x33223322u},
         {"cnot.b32 %r1, 0;", 1u},
         {"not.b32 %r1, 0xf;", 0xfffffff0u}});
}

TEST(IsaInteger, DotProductsAndPairs) {
  Check({{"dp4a.s32.s32 %r1, 0x80ff0102, 0x02030405, 10;", static_cast<uint32_t>(-256 - 3 + 4 + 10 + 10)},
         {"dp4a.u32.u32 %r1, 0xffffffff, 0xffffffff, 0;", 4u * 255 * 255},
         {"dp4a.u32.s32 %r1, 0xff, 0xff, 0;", static_cast<uint32_t>(-255)},
         {"dp2a.lo.s32.s32 %r1, 0xffff0003, 0x04030201, 0;", static_cast<uint32_t>(3 - 2)},
         {"dp2a.hi.u32.u32 %r1, 0xffff0003, 0x04030201, 0;", 3u * 3 + 65535u * 4},
         {"add.u16x2 %r1, 0xffff0001, 0x00010002;", 3u},
         {"min.s16x2 %r1, 0xffff0005, 0x00010002;", 0xffff0002u},
         {"max.u16x2 %r1, 0xffff0005, 0x00010007;", 0xffff0007u},
         {"max.relu.s16x2 %r1, 0xffff0005, 0xfffe0002;", 5u}});
}

TEST(IsaInteger, ComparisonsSelectAndSet) {
  Check({{"setp.lt.s32 %p1, -1, 1;\nselp.b32 %r1, 1, 2, %p1;", 1u},
         {"setp.lt.u32 %p1, -1, 1;\nselp.b32 %r1, 1, 2, %p1;", 2u},
         {"setp.lo.u32 %p1, 1, 2;\nselp.b32 %r1, 1, 2, %p1;", 1u},
         {"setp.hs.u32 %p1|%p2, 1, 2;\nselp.b32 %r1, 1, 2, %p2;", 1u},
         {"setp.eq.s32 %p1, 1, 1;\nsetp.eq.and.s32 %p2, 1, 1, !%p1;\nselp.b32 %r1, 1, 2, %p2;", 2u},
         {"setp.eq.s32 %p1, 1, 1;\nsetp.ne.xor.s32 %p2|%p3, 1, 1, %p1;\nselp.b32 %r3, 1, 2, %p2;\nselp.b32 "
          "%r4, 16, 32, "
          "%p3;\nadd.u32 %r1, %r3, %r4;",
          33u},
         {"set.gt.u32.s32 %r1, 5, 4;", 0xffffffffu},
         {"set.gt.f32.s32 %f1, 5, 4;\nmov.b32 %r1, %f1;", 0x3f800000u},
         {"slct.b32.s32 %r1, 10, 20, -1;", 20u},
         {"slct.b32.f32 %r1, 10, 20, 0f80000000;", 10u}});
}

TEST(IsaInteger, ConversionsTruncateExtendAndSaturate) {
  Check({{"cvt.u32.u8 %r1, 0x1ff;", 0xffu},
         {"cvt.s32.s8 %r1, 0x80;", 0xffffff80u},
         {"cvt.sat.u8.s32 %r1, -5;", 0u},
         {"cvt.sat.s8.s32 %r1, 1000;", 127u},
         {"cvt.sat.s8.s32 %r1, -1000;", 0xffffff80u},
         {"cvt.s8.s32 %r1, 0x1ff;", 0xffffffffu},
         {"cvt.u32.u64 %r1, 0x1234567890;", 0x34567890u},
         {"cvt.sat.u32.s64 %r1, 0x1234567890;", 0xffffffffu}});
  EXPECT_EQ(Eval64("cvt.s64.s32 %l2, -1;"), ~uint64_t{0});
  EXPECT_EQ(Eval64("cvt.u64.u8 %l2, %l3;"), 0u);
  EXPECT_EQ(Eval32("cvt.pack.sat.s16.s32 %r1, 100000, -5;"), 0x7ffffffbu);
  EXPECT_EQ(Eval32("cvt.pack.sat.u8.s32.b32 %r1, 300, -4, 0xabcd;"), 0xabcdff00u);
}

}  // namespace
}  // namespace vqllm::ptx::test
