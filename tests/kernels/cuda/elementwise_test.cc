// RMSNorm, embedding, gather, residual sum, SiLU-mul and RoPE on a GPU, against their formulas in double.
#include <cmath>
#include <limits>

#include "kernels/cpu/reference.h"
#include "tests/kernels/cuda/support.h"

namespace vqllm {
namespace {

using test::CudaKernel;
using test::HalfTolerance;
using test::RandomFloats;
using test::RandomHalves;

constexpr int kThreads = 256;
constexpr int64_t kWidths[] = {1, 3, 31, 172, 256, 1000, 2050};

/// Blocks of an element-wise kernel that takes two values a thread.
int64_t PairBlocks(int64_t count) { return (count + 2 * kThreads - 1) / (2 * kThreads); }

class CudaElementwise : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { VQLLM_NEED_NVRTC(); }
};
INSTANTIATE_TEST_SUITE_P(Archs, CudaElementwise, testing::Values("sm_80", "sm_100"));

TEST_P(CudaElementwise, RmsNormMatchesSumsInDouble) {
  CudaKernel gpu("rms_norm", GetParam());
  for (const int64_t width : kWidths) {
    const int64_t tokens = 3;
    const std::vector<float> x = RandomFloats(tokens * width, 3, 1);
    const std::vector<float> weight = RandomFloats(width, 1, 2);
    const uint64_t y = gpu.Allocate<Half>(tokens * width, "y");
    gpu.Launch("rms_norm", tokens, kThreads, 0, gpu.Upload(x, "x"), gpu.Upload(weight, "weight"), 1e-5f,
               static_cast<int>(width), y);
    const auto found = gpu.Download<Half>(y, tokens * width);
    for (int64_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (int64_t c = 0; c < width; ++c) sum += std::pow(double{x[static_cast<size_t>(t * width + c)]}, 2);
      const double factor = 1 / std::sqrt(sum / static_cast<double>(width) + double{1e-5f});
      for (int64_t c = 0; c < width; ++c) {
        const size_t i = static_cast<size_t>(t * width + c);
        const double wanted = x[i] * factor * weight[static_cast<size_t>(c)];
        // A thread's chain of width / kThreads squares, 5 steps in a warp, 8 warps; half of its relative
        // error stays behind the root, and five more roundings follow.
        const double chain = (static_cast<double>(width / kThreads) + 14) / 2 + 5;
        ASSERT_NEAR(static_cast<float>(found[i]), wanted, HalfTolerance(wanted, std::fabs(wanted), chain))
            << width << " " << i;
      }
    }
  }
}

TEST_P(CudaElementwise, EmbedAndGatherCopyRows) {
  CudaKernel embed("embed", GetParam());
  CudaKernel gather("gather", GetParam());
  const std::vector<int32_t> rows = {4, 0, 4, 2};
  for (const int64_t width : kWidths) {
    const std::vector<Half> table = RandomHalves(5 * width, 1, 3);
    const std::vector<float> floats(table.begin(), table.end());
    const uint64_t x = embed.Allocate<float>(4 * width, "x");
    embed.Launch("embed", 4, kThreads, 0, embed.Upload(table, "table"), embed.Upload(rows, "ids"),
                 static_cast<int>(width), x);
    const uint64_t y = gather.Allocate<float>(4 * width, "y");
    gather.Launch("gather", 4, kThreads, 0, gather.Upload(floats, "x"), gather.Upload(rows, "picked"),
                  static_cast<int>(width), y);
    std::vector<float> wanted;
    for (const int32_t row : rows)
      wanted.insert(wanted.end(), floats.begin() + row * width, floats.begin() + (row + 1) * width);
    EXPECT_EQ(embed.Download<float>(x, 4 * width), wanted) << width;
    EXPECT_EQ(gather.Download<float>(y, 4 * width), wanted) << width;
  }
}

TEST_P(CudaElementwise, AddRoundsOnceAndTouchesEachSumOnce) {
  CudaKernel gpu("add", GetParam());
  for (const int64_t count : kWidths) {
    std::vector<float> sum = RandomFloats(count, 1000, 4);
    const std::vector<Half> y = RandomHalves(count, 1, 5);
    const uint64_t x = gpu.Upload(sum, "x");
    const ptx::Counters counters =
        gpu.Launch("add", PairBlocks(count), kThreads, 0, gpu.Upload(y, "y"), static_cast<int>(count), x);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(y[i]);
    EXPECT_EQ(gpu.Download<float>(x, count), sum) << count;
    EXPECT_EQ(counters[ptx::Counter::kGlobalStoreBytes], static_cast<uint64_t>(4 * count));
  }
}

TEST_P(CudaElementwise, SiluMulMatchesTheFormulaInDouble) {
  CudaKernel gpu("silu_mul", GetParam());
  for (const int64_t count : kWidths) {
    std::vector<Half> gate = RandomHalves(count, 5, 6);
    const std::vector<Half> up = RandomHalves(count, 1, 7);
    gate[0] = Half(-65504.0f);                    // exp overflows: the product is 0
    const uint64_t y = gpu.Upload(gate, "gate");  // in place, as the decoder calls it
    gpu.Launch("silu_mul", PairBlocks(count), kThreads, 0, y, gpu.Upload(up, "up"), static_cast<int>(count),
               y);
    const auto found = gpu.Download<Half>(y, count);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = static_cast<float>(gate[i]);
      const double wanted = g / (1 + std::exp(-g)) * static_cast<float>(up[i]);
      // exp is within 2 units in the last place (CUDA C++ Programming Guide, table of functions).
      ASSERT_NEAR(static_cast<float>(found[i]), wanted, HalfTolerance(wanted, std::fabs(wanted), 8)) << g;
    }
  }
}

TEST_P(CudaElementwise, SiluMulPassesNanAndKeepsLargeGates) {
  CudaKernel gpu("silu_mul", GetParam());
  const std::vector<Half> gate = {Half(65504.0f), Half(-20.0f), Half(std::nanf("")), Half(0.0f)};
  const std::vector<Half> up(gate.size(), Half(1.0f));
  const uint64_t y = gpu.Allocate<Half>(4, "y");
  gpu.Launch("silu_mul", 1, kThreads, 0, gpu.Upload(gate, "gate"), gpu.Upload(up, "up"), 4, y);
  const auto found = gpu.Download<Half>(y, 4);
  EXPECT_EQ(static_cast<float>(found[0]), 65504.0f);
  EXPECT_NEAR(static_cast<float>(found[1]), 0, 1e-7);
  EXPECT_TRUE(std::isnan(static_cast<float>(found[2])));
  EXPECT_EQ(static_cast<float>(found[3]), 0.0f);
}

TEST_P(CudaElementwise, RopeTurnsPairsByTheTable) {
  CudaKernel gpu("rope", GetParam());
  struct Case {
    int heads, head_dim, pairs;
  };
  const std::vector<int32_t> positions = {0, 6, 3};
  for (const Case& c : {Case{3, 8, 4}, Case{5, 64, 32}, Case{2, 80, 40}, Case{2, 96, 16}}) {
    // Any table is good, that of YaRN above 1 as well: the kernel sees numbers alone.
    cpu::RopeTable table;
    table.dim = 2 * c.pairs;
    table.cos = RandomFloats(7 * c.pairs, 1, 8);
    table.sin = RandomFloats(7 * c.pairs, 1, 9);
    const int64_t width = c.heads * c.head_dim;
    const std::vector<Half> start = RandomHalves(3 * width, 2, 10);
    const uint64_t x = gpu.Upload(start, "x");
    gpu.Launch("rope", 3, kThreads, 0, gpu.Upload(positions, "positions"), gpu.Upload(table.cos, "cosines"),
               gpu.Upload(table.sin, "sines"), c.heads, c.head_dim, c.pairs, x);
    const auto found = gpu.Download<Half>(x, 3 * width);
    for (size_t t = 0; t < 3; ++t) {
      for (int head = 0; head < c.heads; ++head) {
        const size_t at = t * static_cast<size_t>(width) + static_cast<size_t>(head * c.head_dim);
        std::vector<float> wanted(start.begin() + static_cast<std::ptrdiff_t>(at),
                                  start.begin() + static_cast<std::ptrdiff_t>(at) + c.head_dim);
        std::vector<float> before = wanted;
        reference::Rotate(table, positions[t], wanted.data());
        for (int j = 0; j < c.head_dim; ++j) {
          // Two products of at most |x| |cos| each; 16 bounds both for these seeds' values.
          const bool turned = j < 2 * c.pairs;
          const double tolerance = turned ? HalfTolerance(wanted[static_cast<size_t>(j)], 64, 3) : 0;
          ASSERT_NEAR(static_cast<float>(found[at + static_cast<size_t>(j)]), wanted[static_cast<size_t>(j)],
                      tolerance)
              << t << " " << head << " " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace vqllm
