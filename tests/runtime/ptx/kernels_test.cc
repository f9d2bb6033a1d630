#include <bit>
#include <cmath>
#include <numeric>

#include "tests/runtime/ptx/support.h"
#include "vq/base/half.h"
#include "vq/base/rng.h"

/// Whole kernels, compiled from CUDA by both code generators, against plain C++ that mirrors the order of
/// their operations: the results must be the same bits, and a correct kernel gives no hazard.
namespace vqllm::ptx::test {
namespace {

std::vector<uint16_t> RandomHalves(Rng& rng, size_t count) {
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = FloatToHalfBits(rng.Uniform(-1, 1));
  return values;
}

class KernelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { VQLLM_NEED_NVRTC(); }
};

struct Gemv {
  int n;
  int k;
  std::vector<uint16_t> codes, codebook, x, expected;
  std::vector<float> scale;
};

// Two additive codebooks of 256 entries of 8 halves; a warp has a row, its lanes take every 32nd subvector.
Gemv MakeGemv(int n, int k) {
  Gemv g{n, k, {}, {}, {}, {}, {}};
  Rng rng(1);
  g.codes.resize(static_cast<size_t>(n) * k / 8);
  for (uint16_t& code : g.codes) code = static_cast<uint16_t>(rng.Next());
  g.codebook = RandomHalves(rng, 512 * 8);
  g.x = RandomHalves(rng, static_cast<size_t>(k));
  for (int i = 0; i < n; ++i) g.scale.push_back(rng.Uniform(0.5f, 1.5f));
  for (int row = 0; row < n; ++row) {
    std::array<float, 32> acc = {};
    for (int v = 0; v < k / 8; ++v) {
      const uint16_t code = g.codes[static_cast<size_t>(row) * (k / 8) + v];
      for (int j = 0; j < 8; ++j) {
        const float a = HalfBitsToFloat(g.codebook[(code & 255) * 8 + j]);
        const float b = HalfBitsToFloat(g.codebook[(256 + (code >> 8)) * 8 + j]);
        const float w = HalfBitsToFloat(FloatToHalfBits(a + b));
        acc[v % 32] = std::fma(w, HalfBitsToFloat(g.x[v * 8 + j]), acc[v % 32]);
      }
    }
    for (int o = 16; o > 0; o /= 2) {
      const std::array<float, 32> old = acc;
      for (int l = 0; l < 32; ++l) acc[l] = old[l] + old[l ^ o];
    }
    g.expected.push_back(FloatToHalfBits(acc[0] * g.scale[row]));
  }
  return g;
}

LaunchReport RunGemv(const Gemv& g, const Module& module, const LaunchOptions& options,
                     std::vector<uint16_t>* y) {
  Memory memory;
  const uint64_t codes = Upload(memory, g.codes, "codes");
  const uint64_t codebook = Upload(memory, g.codebook, "codebook");
  const uint64_t x = Upload(memory, g.x, "x");
  const uint64_t scale = Upload(memory, g.scale, "scale");
  const uint64_t out = memory.Allocate(g.n * 2, "y");
  LaunchReport report = Launch(memory, module, "vq_gemv", {static_cast<uint32_t>(g.n + 7) / 8}, {256}, 8192,
                               Args(codes, codebook, x, scale, out, g.n, g.k), options);
  *y = Download<uint16_t>(memory, out, static_cast<size_t>(g.n));
  return report;
}

TEST_P(KernelTest, VqGemvGivesTheSameBitsAndTheTrafficOfTheClosedForm) {
  const Gemv g = MakeGemv(512, 1024);
  const Module module = Module::Parse(CompileKernel("vq_gemv", GetParam()), "vq_gemv.ptx");
  std::vector<uint16_t> y;
  const LaunchReport report = RunGemv(g, module, {.uninitialised_global = true}, &y);
  EXPECT_EQ(y, g.expected);
  EXPECT_EQ(Text(report.hazards), "");
  // Codes once, x by every row, the codebook by every block, a scale by every row; 32-byte sectors.
  const uint64_t codes = 512 * 1024 / 8 * 2 / 32;
  EXPECT_EQ(report.counters[Counter::kGlobalLoadSectors],
            codes + 512 * 1024 * 2 / 32 + 64 * 512 * 16 / 32 + 512);
  EXPECT_EQ(report.counters[Counter::kGlobalLoadSectorsPerLaunch],
            codes + 1024 * 2 / 32 + 512 * 16 / 32 + 512 * 4 / 32);
  EXPECT_EQ(report.counters[Counter::kGlobalLoadSectorsPerBlock],
            codes + 64 * (1024 * 2 / 32 + 512 * 16 / 32) + 64);
  EXPECT_EQ(report.counters[Counter::kGlobalStoreRequests], 512u);
  EXPECT_EQ(report.counters[Counter::kBarriers], 64u * 8);
  EXPECT_EQ(report.counters[Counter::kSharedBytesPerBlock], 8192u);
}

TEST_P(KernelTest, AnyNumberOfWorkersAndAnyOrderOfWarpsGivesTheSameReport) {
  const Gemv g = MakeGemv(100, 512);
  const Module module = Module::Parse(CompileKernel("vq_gemv", GetParam()));
  std::vector<uint16_t> first;
  const LaunchReport one = RunGemv(g, module, {}, &first);
  EXPECT_EQ(first, g.expected);
  for (const int workers : {2, 3, 7}) {
    std::vector<uint16_t> y;
    const LaunchReport many = RunGemv(g, module, {.workers = workers}, &y);
    EXPECT_EQ(y, first);
    EXPECT_EQ(many.counters, one.counters);
    EXPECT_EQ(many.instructions, one.instructions);
  }
  std::vector<uint16_t> y;
  RunGemv(g, module, {.reverse_warps = true}, &y);
  EXPECT_EQ(y, first);
  RunGemv(g, module, {.counters = false, .hazards = false}, &y);
  EXPECT_EQ(y, first);
}

TEST_P(KernelTest, VqGemmOnWholeNumbersIsExact) {
  const int m = 13;
  const int n = 128;
  const int k = 256;
  Rng rng(2);
  std::vector<uint16_t> a(m * k), codebook(4096), codes(static_cast<size_t>(n) * k / 8);
  for (uint16_t& v : a) v = FloatToHalfBits(static_cast<float>(rng.Below(5)) - 2);
  for (uint16_t& v : codebook) v = FloatToHalfBits(static_cast<float>(rng.Below(9)) - 4);
  for (uint16_t& v : codes) v = static_cast<uint16_t>(rng.Next());
  const Module module = Module::Parse(CompileKernel("vq_gemm", GetParam()), "vq_gemm.ptx");
  Memory memory;
  const uint64_t da = Upload(memory, a, "A");
  const uint64_t dcodes = Upload(memory, codes, "codes");
  const uint64_t dcodebook = Upload(memory, codebook, "codebook");
  const uint64_t dc = memory.Allocate(m * n * 2, "C");
  const LaunchReport report =
      Launch(memory, module, "vq_gemm", {n / 64}, {128}, 0, Args(da, dcodes, dcodebook, dc, m, n, k));
  EXPECT_EQ(Text(report.hazards), "");
  const std::vector<uint16_t> c = Download<uint16_t>(memory, dc, m * n);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int x = 0; x < k; ++x) {
        const uint16_t code = codes[static_cast<size_t>(j) * (k / 8) + x / 8];
        const float w = HalfBitsToFloat(codebook[(code & 255) * 8 + x % 8]) +
                        HalfBitsToFloat(codebook[(256 + (code >> 8)) * 8 + x % 8]);
        sum += double{w} * HalfBitsToFloat(a[i * k + x]);
      }
      ASSERT_EQ(HalfBitsToFloat(c[i * n + j]), HalfBitsToFloat(FloatToHalfBits(static_cast<float>(sum))))
          << i << " " << j;
    }
  }
  // Each 16 x 64 tile takes two mma for each 16 of k and each of the four warps.
  EXPECT_EQ(report.counters[Counter::kTensorInstructions], 2u * 4 * 2 * (k / 16));
  EXPECT_EQ(report.counters[Counter::kTensorFlops], 2u * 4 * 2 * (k / 16) * 2 * 16 * 8 * 16);
  EXPECT_EQ(report.counters[Counter::kAsyncCopyBytes], 2u * m * k * 2);
}

TEST_P(KernelTest, VqAttentionMatchesTheOnlineSoftmaxOfTheKernel) {
  const Module module = Module::Parse(CompileKernel("vq_attn", GetParam()), "vq_attn.ptx");
  const int heads = 3;
  const float softmax_scale = 0.0883883f;
  for (const int tokens : {1, 7, 64, 333}) {
    Rng rng(static_cast<uint64_t>(tokens));
    std::vector<uint8_t> ck(static_cast<size_t>(heads) * tokens * 16), cv(ck.size());
    for (uint8_t& c : ck) c = static_cast<uint8_t>(rng.Next());
    for (uint8_t& c : cv) c = static_cast<uint8_t>(rng.Next());
    const std::vector<uint16_t> q = RandomHalves(rng, heads * 128);
    const std::vector<uint16_t> bk = RandomHalves(rng, heads * 2048);
    const std::vector<uint16_t> bv = RandomHalves(rng, heads * 2048);
    Memory memory;
    const uint64_t dq = Upload(memory, q, "q");
    const uint64_t dck = Upload(memory, ck, "ck");
    const uint64_t dcv = Upload(memory, cv, "cv");
    const uint64_t dbk = Upload(memory, bk, "bk");
    const uint64_t dbv = Upload(memory, bv, "bv");
    const uint64_t dout = memory.Allocate(heads * 128 * 4, "out");
    const LaunchReport report =
        Launch(memory, module, "vq_attn", {heads}, {128}, 0,
               Args(dq, dck, dcv, dbk, dbv, dout, tokens, softmax_scale), {.uninitialised_global = true});
    EXPECT_EQ(Text(report.hazards), "");
    const std::vector<float> out = Download<float>(memory, dout, heads * 128);
    for (int h = 0; h < heads; ++h) {
      std::vector<double> score(tokens);
      double top = -INFINITY;
      double total = 0;
      for (int t = 0; t < tokens; ++t) {
        double s = 0;
        for (int d = 0; d < 128; ++d) {
          const int code = ck[(static_cast<size_t>(h) * tokens + t) * 16 + d / 8];
          s += double{HalfBitsToFloat(q[h * 128 + d])} * HalfBitsToFloat(bk[(h * 256 + code) * 8 + d % 8]);
        }
        score[t] = s * double{softmax_scale};
        top = std::max(top, score[t]);
      }
      for (double& s : score) total += s = std::exp(s - top);
      for (int d = 0; d < 128; ++d) {
        double sum = 0;
        double magnitude = 0;
        for (int t = 0; t < tokens; ++t) {
          const int code = cv[(static_cast<size_t>(h) * tokens + t) * 16 + d / 8];
          const double v = HalfBitsToFloat(bv[(h * 256 + code) * 8 + d % 8]);
          sum += score[t] / total * v;
          magnitude += score[t] / total * std::fabs(v);
        }
        // Chains of 128 products and of up to `tokens` additions, each with a relative error of 2^-24; the
        // scores are below 16, so exp turns their error into at most as many times more.
        const double epsilon = 0x1p-24 * (tokens + 16.0 * 128);
        ASSERT_NEAR(out[h * 128 + d], sum, epsilon * magnitude + 1e-12) << "tokens " << tokens;
      }
    }
  }
}

TEST_P(KernelTest, Int4GemvWithHalfArithmeticGivesTheSameBits) {
  const int n = 8;
  const int k = 4096;
  Rng rng(3);
  std::vector<uint32_t> weights(static_cast<size_t>(n) * k / 8);
  for (uint32_t& w : weights) w = static_cast<uint32_t>(rng.Next());
  std::vector<uint16_t> scale(n * k / 128);
  for (uint16_t& s : scale) s = FloatToHalfBits(rng.Uniform(0.01f, 0.02f));
  const std::vector<uint16_t> x = RandomHalves(rng, k);
  const auto half_fma = [](double a, double b, double c) {  // exact in double, rounded once
    return double{HalfBitsToFloat(FloatToHalfBits(static_cast<float>(a * b + c)))};
  };
  std::vector<uint16_t> expected;
  for (int row = 0; row < n; ++row) {
    std::array<float, 128> acc = {};
    for (int v = 0; v < k / 32; ++v) {
      double low = 0;
      double high = 0;
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
          const uint32_t w = weights[static_cast<size_t>(row) * (k / 8) + v * 4 + i] >> (4 * j);
          const int at = v * 32 + i * 8 + j * 2;
          low = half_fma(static_cast<int>(w & 15) - 8, HalfBitsToFloat(x[at]), low);
          high = half_fma(static_cast<int>(w >> 16 & 15) - 8, HalfBitsToFloat(x[at + 1]), high);
        }
      }
      acc[v % 128] = std::fma(HalfBitsToFloat(scale[row * (k / 128) + v / 4]),
                              static_cast<float>(low) + static_cast<float>(high), acc[v % 128]);
    }
    std::array<float, 4> warp = {};
    for (int w = 0; w < 4; ++w) {
      float* a = acc.data() + w * 32;
      for (int o = 16; o > 0; o /= 2) {
        for (int l = 0; l + o < 32; ++l) a[l] += a[l + o];
      }
      warp[w] = a[0];
    }
    expected.push_back(FloatToHalfBits((warp[0] + warp[1]) + (warp[2] + warp[3])));
  }
  const Module module = Module::Parse(CompileKernel("gptq_gemv", GetParam()), "gptq_gemv.ptx");
  Memory memory;
  const uint64_t dw = Upload(memory, weights, "weights");
  const uint64_t ds = Upload(memory, scale, "scale");
  const uint64_t dx = Upload(memory, x, "x");
  const uint64_t dy = memory.Allocate(n * 2, "y");
  const LaunchReport report = Launch(memory, module, "gptq_gemv", {n}, {128}, 0, Args(dw, ds, dx, dy, n, k));
  EXPECT_EQ(Text(report.hazards), "");
  EXPECT_EQ(Download<uint16_t>(memory, dy, n), expected);
}

TEST_P(KernelTest, RegisterCodebookByShuffleIsExactOnWholeNumbers) {
  const int n = 16;
  const int k = 1000;
  Rng rng(4);
  std::vector<uint32_t> codes(n * k / 10);
  for (uint32_t& c : codes) c = static_cast<uint32_t>(rng.Next()) & 0x3fffffff;
  std::vector<uint16_t> codebook(128), x(k);
  for (uint16_t& c : codebook) c = FloatToBFloat16Bits(static_cast<float>(rng.Below(9)) - 4);
  for (uint16_t& c : x) c = FloatToBFloat16Bits(static_cast<float>(rng.Below(5)) - 2);
  const Module module = Module::Parse(CompileKernel("reg_cb", GetParam()), "reg_cb.ptx");
  Memory memory;
  const uint64_t dcodes = Upload(memory, codes, "codes");
  const uint64_t dcodebook = Upload(memory, codebook, "codebook");
  const uint64_t dx = Upload(memory, x, "x");
  const uint64_t dy = memory.Allocate(n * 2, "y");
  const uint64_t dstats = memory.Allocate(n * 4, "stats");
  const LaunchReport report =
      Launch(memory, module, "reg_cb", {n / 4}, {128}, 0, Args(dcodes, dcodebook, dx, dy, dstats, n, k));
  EXPECT_EQ(Text(report.hazards), "");
  const std::vector<uint16_t> y = Download<uint16_t>(memory, dy, n);
  const std::vector<uint32_t> stats = Download<uint32_t>(memory, dstats, n);
  for (int row = 0; row < n; ++row) {
    float sum = 0;
    uint32_t largest = 0;
    for (int v = 0; v < k / 10; ++v) {
      for (int j = 0; j < 5; ++j) {
        const uint32_t id = codes[row * (k / 10) + v] >> (6 * j) & 63;
        largest = std::max(largest, id);
        for (int e = 0; e < 2; ++e) {
          sum += BFloat16BitsToFloat(codebook[id * 2 + e]) * BFloat16BitsToFloat(x[v * 10 + 2 * j + e]);
        }
      }
    }
    EXPECT_EQ(y[row], FloatToBFloat16Bits(sum)) << row;
    EXPECT_EQ(stats[row] >> 8, largest) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(BothGenerators, KernelTest, ::testing::ValuesIn(kBothGenerators),
                         [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(ArchSpecific, KernelTest, ::testing::ValuesIn(kArchSpecific),
                         [](const auto& test) { return test.param; });

// nvcc writes other text than NVRTC does: names, directives, the order of sections.
class NvccTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!CompilerAvailable(CompilerKind::kNvcc)) GTEST_SKIP() << "no nvcc: set CUDA_HOME";
  }
};

TEST_P(NvccTest, KernelsOfNvccRunTheSame) {
  const Gemv g = MakeGemv(64, 512);
  std::vector<uint16_t> y;
  const LaunchReport report = RunGemv(
      g, Module::Parse(CompileKernel("vq_gemv", GetParam(), CompilerKind::kNvcc), "vq_gemv.ptx"), {}, &y);
  EXPECT_EQ(y, g.expected);
  EXPECT_EQ(Text(report.hazards), "");
  EXPECT_EQ(Module::Parse(CompileKernel("misc", GetParam(), CompilerKind::kNvcc)).Kernels().size(), 6u);
}

INSTANTIATE_TEST_SUITE_P(BothGenerators, NvccTest, ::testing::Values("sm_80", "sm_100a"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace vqllm::ptx::test
