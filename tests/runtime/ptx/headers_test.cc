#include <algorithm>
#include <bit>
#include <cmath>

#include "tests/runtime/ptx/support.h"
#include "vq/base/half.h"
#include "vq/base/rng.h"

/// What CUDA's own headers and CUB make of their calls, by both code generators.
namespace vqllm::ptx::test {
namespace {

class HeadersTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { VQLLM_NEED_NVRTC(); }
  Module Load(const std::string& name) {
    return Module::Parse(CompileKernel(name, GetParam()), name + ".ptx");
  }
};

TEST_P(HeadersTest, CubReducesAndScansExactly) {
  const Module module = Load("cub_reduce");
  const int n = 1000;
  const int blocks = 8;
  Rng rng(1);
  std::vector<float> in(n);
  for (float& v : in) v = static_cast<float>(rng.Below(201)) - 100;
  Memory memory;
  const uint64_t d_in = Upload(memory, in, "in");
  const uint64_t d_sum = Upload(memory, std::vector<float>{0}, "sum");
  const uint64_t d_scan = memory.Allocate(n * 4, "scan");
  const uint64_t d_max = memory.Allocate(blocks * 4, "max");
  const LaunchReport report =
      Launch(memory, module, "cub_reduce", {blocks}, {128}, 0, Args(d_in, d_sum, d_scan, d_max, n));
  EXPECT_EQ(Text(report.hazards), "");
  float sum = 0;
  for (const float v : in) sum += v;
  EXPECT_EQ(Download<float>(memory, d_sum, 1)[0], sum);
  const std::vector<int> scan = Download<int>(memory, d_scan, n);
  const std::vector<float> largest = Download<float>(memory, d_max, blocks);
  for (int b = 0; b < blocks; ++b) {
    int positive = 0;
    float top = -1e30f;
    for (int i = b * 128; i < (b + 1) * 128; ++i) {
      const float v = i < n ? in[i] : 0;
      if (i < n) {
        ASSERT_EQ(scan[i], positive);
      }
      positive += v > 0;
      top = std::max(top, v);
    }
    EXPECT_EQ(largest[b], top);
  }
}

// Each barrier of the kernel above taken away in turn. The fourth of the six is redundant: only thread 0
// reads what thread 0 writes after it.
TEST_P(HeadersTest, EveryNeededBarrierOfCubIsMissedWhenItIsGone) {
  const std::string ptx = CompileKernel("cub_reduce", GetParam());
  int caught = 0;
  int barriers = 0;
  for (size_t at = ptx.find("bar.sync"); at != std::string::npos; at = ptx.find("bar.sync", at + 1)) {
    std::string broken = ptx;
    broken.erase(at, ptx.find(';', at) - at + 1);
    Memory memory;
    const int n = 256;
    const uint64_t d_in = Upload(memory, std::vector<float>(n, 1.0f), "in");
    const uint64_t d_sum = Upload(memory, std::vector<float>{0}, "sum");
    const uint64_t d_scan = memory.Allocate(n * 4, "scan");
    const uint64_t d_max = memory.Allocate(8, "max");
    const LaunchReport report = Launch(memory, Module::Parse(broken), "cub_reduce", {2}, {128}, 0,
                                       Args(d_in, d_sum, d_scan, d_max, n));
    ++barriers;
    caught += Has(report, HazardKind::kSharedRace);
  }
  EXPECT_EQ(barriers, 6);
  EXPECT_EQ(caught, 5);
}

TEST_P(HeadersTest, CubRadixSortIsExactAndClean) {
  const Module module = Load("cub_sort");
  Rng rng(2);
  std::vector<int> in(1024);
  for (int& v : in) v = static_cast<int>(rng.Next());
  Memory memory;
  const uint64_t d_in = Upload(memory, in, "in");
  const uint64_t d_out = memory.Allocate(4096, "out");
  const LaunchReport report =
      Launch(memory, module, "cub_sort", {2}, {128}, 0, Args(d_in, d_out), {.uninitialised_global = true});
  EXPECT_EQ(Text(report.hazards), "");
  std::sort(in.begin(), in.begin() + 512);
  std::sort(in.begin() + 512, in.end());
  EXPECT_EQ(Download<int>(memory, d_out, 1024), in);
}

TEST_P(HeadersTest, HalvesAndBfloat16) {
  const Module module = Load("misc");
  Memory memory;
  const auto pair = [](float low, float high) {
    return static_cast<uint32_t>(FloatToHalfBits(low)) | static_cast<uint32_t>(FloatToHalfBits(high)) << 16;
  };
  const auto bpair = [](float low, float high) {
    return static_cast<uint32_t>(FloatToBFloat16Bits(low)) | static_cast<uint32_t>(FloatToBFloat16Bits(high))
                                                                 << 16;
  };
  const uint64_t a = Upload(memory, std::vector<uint32_t>{pair(1.5f, -2), pair(0.5f, 4)}, "a");
  const uint64_t b = Upload(memory, std::vector<uint32_t>{bpair(1.5f, -2), bpair(0.5f, 4)}, "b");
  const uint64_t o = memory.Allocate(32, "o");
  const uint64_t p = memory.Allocate(20, "p");
  const uint64_t f = memory.Allocate(16, "f");
  const int n = 2049;
  const LaunchReport report = Launch(memory, module, "halves", {1}, {1}, 0, Args(a, b, o, p, f, n));
  EXPECT_EQ(Text(report.hazards), "");
  const std::vector<uint32_t> oh = Download<uint32_t>(memory, o, 8);
  EXPECT_EQ(oh[0], pair(2.25f, 0));
  EXPECT_EQ(oh[1], pair(std::exp2(1.5f), 0.25f));
  EXPECT_EQ(oh[2], pair(1.5f, 4));
  EXPECT_EQ(oh[3], pair(2, 0.25f));
  EXPECT_EQ(oh[4], pair(-1.5f, 2));
  EXPECT_EQ(oh[5], pair(0.5f, 4));
  EXPECT_EQ(oh[6], pair(std::tanh(1.5f), std::tanh(-2.0f)));
  EXPECT_EQ(oh[7], pair(3, -0.5f));
  const std::vector<uint32_t> ph = Download<uint32_t>(memory, p, 5);
  EXPECT_EQ(ph, (std::vector<uint32_t>{bpair(2.25f, -10), bpair(0.75f, -8), bpair(2, 2), bpair(1.5f, 4),
                                       bpair(1, -6)}));
  EXPECT_EQ(Download<float>(memory, f, 4), (std::vector<float>{1.5f, 1.5f, 2049.0f, 0.5f}));
}

TEST_P(HeadersTest, MathAndIntegerIntrinsics) {
  const Module module = Load("misc");
  Memory memory;
  const float x = 0.7071f;
  const int n = 42;
  const uint64_t wide = 0x123456789abcdef0u;
  const uint64_t in = Upload(memory, std::vector<float>{x, -1}, "in");
  const uint64_t f = memory.Allocate(60, "f");
  const uint64_t d = Upload(memory, std::vector<double>{1.25, 0}, "d");
  const uint64_t q = memory.Allocate(52, "q");
  const uint64_t l = Upload(memory, std::vector<uint64_t>{wide, 0, 0, 0, 0}, "l");
  const LaunchReport report = Launch(memory, module, "math", {1}, {1}, 0, Args(in, f, d, q, l, n));
  EXPECT_EQ(Text(report.hazards), "");
  const std::vector<float> fh = Download<float>(memory, f, 15);
  const float expected[] = {std::exp(x),  std::exp(x), std::log(x), std::tanh(x),       1 / std::sqrt(x),
                            std::sqrt(x), x / 3,       std::sin(x), std::fmod(x, 0.3f), std::round(x),
                            std::rint(x), x,           -x,          std::ldexp(x, n),   std::pow(x, 1.5f)};
  for (int i = 0; i < 15; ++i) {
    // Four units in the last place: the largest error that CUDA states for these functions in this range.
    EXPECT_NEAR(fh[i], expected[i], 4 * 0x1p-23 * std::fabs(expected[i])) << i;
  }
  const std::vector<int> qh = Download<int>(memory, q, 13);
  EXPECT_EQ(qh, (std::vector<int>{26, 2, 0x54000000, -126, 42 * 4 + 3, 0x38000001, 53, 6, 0, 0, 0x0001002b,
                                  -1, 0x3300442a}));
  const std::vector<uint64_t> lh = Download<uint64_t>(memory, l, 5);
  EXPECT_EQ(lh[1], wide * 3);
  EXPECT_EQ(lh[2], 0x14b66dc33f6acdcu);
  EXPECT_EQ(lh[3], wide / 1000003);
  EXPECT_EQ(lh[4], static_cast<uint64_t>(std::popcount(wide)));
  EXPECT_EQ(Download<double>(memory, d, 2)[1], 2.5 + double{x});
}

TEST_P(HeadersTest, AtomicsAndVotingBarriers) {
  const Module module = Load("misc");
  Memory memory;
  const uint64_t q = Upload(memory, std::vector<int>{0, 0, -1, 0}, "q");
  const uint64_t l = Upload(memory, std::vector<uint64_t>{0}, "l");
  const uint64_t f = Upload(memory, std::vector<float>{0}, "f");
  const uint64_t d = Upload(memory, std::vector<double>{0}, "d");
  const uint64_t h = Upload(memory, std::vector<uint32_t>{0}, "h");
  const uint64_t b = Upload(memory, std::vector<uint32_t>{0}, "b");
  const uint64_t votes = memory.Allocate(64 * 4, "votes");
  const LaunchReport report = Launch(memory, module, "atomics", {1}, {64}, 0, Args(q, l, f, d, h, b, votes));
  EXPECT_EQ(Text(report.hazards), "");
  EXPECT_EQ(Download<int>(memory, q, 4), (std::vector<int>{63, 1, 0, 64 % 7}));
  EXPECT_EQ(Download<uint64_t>(memory, l, 1)[0], 64u);
  EXPECT_EQ(Download<float>(memory, f, 1)[0], 32.0f);
  EXPECT_EQ(Download<double>(memory, d, 1)[0], 16.0);
  EXPECT_EQ(Download<uint32_t>(memory, h, 1)[0],
            uint32_t{FloatToHalfBits(64)} | uint32_t{FloatToHalfBits(128)} << 16);
  EXPECT_EQ(Download<uint32_t>(memory, b, 1)[0],
            uint32_t{FloatToBFloat16Bits(64)} | uint32_t{FloatToBFloat16Bits(128)} << 16);
  for (const int v : Download<int>(memory, votes, 64)) EXPECT_EQ(v, 8000 + 100 + 200 + 22);
}

TEST_P(HeadersTest, CooperativeGroups) {
  const Module module = Load("misc");
  Memory memory;
  const uint64_t q = memory.Allocate(64 * 16, "q");
  const uint64_t f = memory.Allocate(64 * 4, "f");
  const LaunchReport report = Launch(memory, module, "groups", {1}, {64}, 0, Args(q, f));
  EXPECT_EQ(Text(report.hazards), "");
  const std::vector<int> qh = Download<int>(memory, q, 256);
  const std::vector<float> fh = Download<float>(memory, f, 64);
  for (int i = 0; i < 64; ++i) {
    float top = 0;
    for (int j = i & ~7; j <= (i | 7); ++j) top = std::max(top, static_cast<float>(j * j % 13));
    EXPECT_EQ(fh[i], top);
    EXPECT_EQ(qh[i * 4], i < 32 ? 496 : 496 + 1024);
    EXPECT_EQ(qh[i * 4 + 1], 1 + 10 * 4);
    EXPECT_EQ(qh[i * 4 + 2], i % 2 ? (i & ~31) + 1 : 0);
    const uint64_t wide = uint64_t{1} << ((i ^ 3) & 31) | uint64_t{1} << 40;
    EXPECT_EQ(qh[i * 4 + 3], static_cast<int>(wide >> 9));
  }
}

TEST_P(HeadersTest, WmmaMultipliesWholeNumbersExactly) {
  const Module module = Load("misc");
  Rng rng(3);
  std::vector<uint16_t> a(256);
  for (uint16_t& v : a) v = FloatToHalfBits(static_cast<float>(rng.Below(9)) - 4);
  Memory memory;
  const uint64_t da = Upload(memory, a, "a");
  const uint64_t dc = memory.Allocate(1024, "c");
  const uint64_t copy = memory.Allocate(64, "copy");
  const LaunchReport report = Launch(memory, module, "fragments", {1}, {32}, 0, Args(da, dc, copy));
  EXPECT_EQ(Text(report.hazards), "");
  const std::vector<float> c = Download<float>(memory, dc, 256);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      float sum = 0.5f;
      for (int k = 0; k < 16; ++k) sum += HalfBitsToFloat(a[i * 16 + k]) * HalfBitsToFloat(a[j * 16 + k]);
      ASSERT_EQ(c[i * 16 + j], sum);
    }
  }
}

TEST_P(HeadersTest, CallsLocalArraysSwitchesConstantsAndGlobals) {
  const Module module = Load("misc");
  Memory memory;
  std::vector<float> in(16);
  for (int i = 0; i < 16; ++i) in[i] = static_cast<float>(i + 1);
  std::vector<int> which(32);
  for (int i = 0; i < 32; ++i) which[i] = i % 9;
  const uint64_t d_in = Upload(memory, in, "in");
  const uint64_t d_which = Upload(memory, which, "which");
  const uint64_t out = memory.Allocate(128, "out");
  const float constants[4] = {10, 20, 30, 40};
  SetConstant(memory, module, "table", constants, sizeof(constants));
  const int bias = 7;
  memory.CopyIn(SymbolAddress(memory, module, "bias"), &bias, 4);
  const int n = 2;
  const LaunchReport report = Launch(memory, module, "control", {1}, {32}, 0, Args(d_in, d_which, out, n));
  EXPECT_EQ(Text(report.hazards), "");
  const std::vector<float> result = Download<float>(memory, out, 32);
  for (int i = 0; i < 32; ++i) {
    float value = in[(which[i] + 1) & 15] * 2 + constants[i & 3] + 7;
    const float by_case[] = {value + 1, value * 2, value - 3, std::sqrt(value), 1 / value, value + 3,
                             -value,    value,     value};
    EXPECT_EQ(result[i], by_case[which[i]]) << i;
  }
  const int negative = -1;
  EXPECT_TRUE(Has(Launch(memory, module, "control", {1}, {32}, 0, Args(d_in, d_which, out, negative)),
                  HazardKind::kTrap));
}

// The formats of eight bits by their definition: the nearest of all values that a byte can have, ties to
// even, clamped to the largest.
TEST(EightBits, HeaderOfFp8RoundsToTheNearestByte) {
  VQLLM_NEED_NVRTC();
  const auto value = [](uint8_t byte, bool e5m2) {
    const int mantissa = e5m2 ? 2 : 3;
    const int field = (byte & 0x7f) >> mantissa;
    const int bias = e5m2 ? 15 : 7;
    const double part = std::ldexp(byte & ((1 << mantissa) - 1), -mantissa);
    const double magnitude = field == 0 ? std::ldexp(part, 1 - bias) : std::ldexp(1 + part, field - bias);
    return static_cast<float>((byte & 0x80) ? -magnitude : magnitude);
  };
  const auto nearest = [&](float x, bool e5m2) {
    const int largest = e5m2 ? 0x7b : 0x7e;  // 57344 and 448
    const uint8_t sign = std::signbit(x) ? 0x80 : 0;
    int best = 0;
    for (int byte = 1; byte <= largest; ++byte) {
      const double there = std::fabs(double{value(static_cast<uint8_t>(byte), e5m2)} - std::fabs(x));
      const double here = std::fabs(double{value(static_cast<uint8_t>(best), e5m2)} - std::fabs(x));
      if (there < here || (there == here && byte % 2 == 0)) best = byte;
    }
    return static_cast<uint8_t>(best | sign);
  };
  std::vector<float> in = {0.0f,  -0.0f,    1.0f,    17.0f,    19.0f,      448.0f,   464.0f, 1e9f,
                           -1e9f, 57344.0f, 0x1p-9f, 0x1p-10f, 0x1.8p-10f, 0x1p-17f, 3e-8f};
  Rng rng(8);
  while (in.size() < 256)
    in.push_back(rng.Uniform(-1, 1) * std::exp2(static_cast<float>(rng.Below(30)) - 16));
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a", "sm_120"}) {  // by arithmetic below sm_89
    SCOPED_TRACE(arch);
    const Module module = Module::Parse(CompileKernel("fp8_clock", arch), "fp8_clock.ptx");
    Memory memory;
    const int n = static_cast<int>(in.size());
    const uint64_t d_in = Upload(memory, in, "in");
    const uint64_t codes = memory.Allocate(in.size() * 2, "codes");
    const uint64_t out = memory.Allocate(in.size() * 8, "out");
    const uint64_t halves = memory.Allocate(in.size() * 4, "halves");
    const LaunchReport report =
        Launch(memory, module, "fp8", {1}, {256}, 0, Args(d_in, codes, out, halves, n));
    EXPECT_EQ(Text(report.hazards), "");
    const std::vector<uint8_t> code = Download<uint8_t>(memory, codes, in.size() * 2);
    const std::vector<float> decoded = Download<float>(memory, out, in.size() * 2);
    const std::vector<uint32_t> pair = Download<uint32_t>(memory, halves, in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      for (const bool e5m2 : {false, true}) {
        ASSERT_EQ(code[2 * i + e5m2], nearest(in[i], e5m2)) << in[i];
        ASSERT_EQ(decoded[2 * i + e5m2], value(code[2 * i + e5m2], e5m2)) << in[i];
      }
      const uint32_t half = FloatToHalfBits(decoded[2 * i]);
      ASSERT_EQ(pair[i], half | (half ^ 0x8000u) << 16) << in[i];
    }
  }
}

TEST(Clock, CountsWarpInstructions) {
  VQLLM_NEED_NVRTC();
  for (const std::string& arch : kBothGenerators) {
    const Module module = Module::Parse(CompileKernel("fp8_clock", arch), "fp8_clock.ptx");
    Memory memory;
    const uint64_t out = memory.Allocate(32, "out");
    const LaunchReport report = Launch(memory, module, "clocks", {1}, {32}, 0, Args(out));
    EXPECT_EQ(Text(report.hazards), "");
    const std::vector<int64_t> clocks = Download<int64_t>(memory, out, 4);
    EXPECT_GE(clocks[1] - clocks[0], 200) << "a hundred turns of at least an fma and a branch";
    EXPECT_LE(clocks[1], static_cast<int64_t>(report.instructions));
    EXPECT_GE(clocks[2], clocks[0]);
    EXPECT_EQ(clocks[3], 1);
  }
}

INSTANTIATE_TEST_SUITE_P(BothGenerators, HeadersTest, ::testing::ValuesIn(kBothGenerators),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace vqllm::ptx::test
