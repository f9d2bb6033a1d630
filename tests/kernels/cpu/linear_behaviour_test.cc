#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/reference.h"
#include "tests/kernels/cpu/random_tensor.h"
#include "vq/base/parallel.h"

namespace vqllm {
namespace {

using testing::TensorMaker;

// One of each kernel: dense, 8-bit dot products, byte-shuffle tables, decode and FMA, lattice with rotation.
const char* const kOneOfEach[] = {"fp16",     "int4-g128", "int3-g64", "VQ<8,4,4>-g128",
                                  "aqlm-2x8", "aqlm-3",    "quip-2",   "VQ<4,8,1>-tile30x40"};

std::vector<float> Multiply(const cpu::Linear& linear, const std::vector<float>& x, int64_t m) {
  std::vector<float> y(static_cast<size_t>(m * linear.rows()));
  linear.Multiply({x.data(), m, linear.cols()}, {y.data(), m, linear.rows()});
  return y;
}

TEST(Linear, GivesTheSameBitsAtAnyThreadCount) {
  const int before = Threads();
  for (const char* name : kOneOfEach) {
    TensorMaker maker(3);
    const Tensor t = maker.Make(ParseFormat(name), 700, 512);
    const auto linear = cpu::PrepareLinear(t, {}, {});
    for (const int64_t m : {1, 2, 9, 33}) {
      const std::vector<float> x = maker.Values(m * t.cols);
      SetThreads(1);
      const std::vector<float> want = Multiply(*linear, x, m);
      for (const int threads : {2, 5}) {
        SetThreads(threads);
        EXPECT_EQ(Multiply(*linear, x, m), want) << name << ", m " << m << ", " << threads << " threads";
      }
    }
  }
  SetThreads(before);
}

TEST(Linear, MultipliesARowOfXAloneAsWithEveryNumberOfOthers) {
  // A request's tokens never depend on its neighbours while all are served by the fused kernel.
  for (const char* name : kOneOfEach) {
    TensorMaker maker(4);
    const Tensor t = maker.Make(ParseFormat(name), 130, 384);
    const auto linear = cpu::PrepareLinear(t, {}, {});
    const std::vector<float> x = maker.Values(8 * t.cols);
    const std::vector<float> first(x.begin(), x.begin() + t.cols);
    const std::vector<float> alone = Multiply(*linear, first, 1);
    for (int64_t m = 2; m <= 8; ++m) {
      if (linear->Kernel(m) != linear->Kernel(1) || linear->Kernel(1) == "dequantise-gemm") continue;
      const std::vector<float> y = Multiply(*linear, x, m);
      for (int64_t r = 0; r < t.rows; ++r)
        ASSERT_EQ(y[static_cast<size_t>(r)], alone[static_cast<size_t>(r)]) << name << ", m " << m;
    }
  }
}

TEST(Linear, PropagatesNanAndInfinityToTheirRowOnly) {
  for (const char* name : kOneOfEach) {
    for (const float poison :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const bool exact : {false, true}) {
        TensorMaker maker(5);
        const Tensor t = maker.Make(ParseFormat(name), 70, 256);
        std::vector<float> x = maker.Values(3 * t.cols);
        const auto linear = cpu::PrepareLinear(t, {}, {.exact = exact});
        const std::vector<float> clean = Multiply(*linear, x, 3);
        x[static_cast<size_t>(t.cols + 77)] = poison;
        const std::vector<float> y = Multiply(*linear, x, 3);
        int64_t not_finite = 0;
        for (int64_t r = 0; r < t.rows; ++r) {
          not_finite += !std::isfinite(y[static_cast<size_t>(t.rows + r)]);
          EXPECT_EQ(y[static_cast<size_t>(r)], clean[static_cast<size_t>(r)]) << name;
          EXPECT_EQ(y[static_cast<size_t>(2 * t.rows + r)], clean[static_cast<size_t>(2 * t.rows + r)])
              << name;
        }
        // A weight that is 0 makes NaN of infinity too, so that every output has met the poison.
        EXPECT_EQ(not_finite, t.rows) << name << " times " << poison;
      }
    }
  }
}

TEST(Linear, IsBitExactOnIntegersThatEightBitsHold) {
  // Activations are integers whose largest in every block is 127, so that their scale is exactly 1.
  for (const char* name : {"int8-g128", "int4-g128", "int3-g128", "int2-g64", "int4-g32-sym"}) {
    TensorMaker maker(6);
    Tensor t = maker.Make(ParseFormat(name), 67, 384);
    for (Half& scale : t.scales) scale = Half(maker.Next() % 2 ? 0.5f : 2.0f);
    std::vector<float> x(static_cast<size_t>(5 * t.cols));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = i % 32 == 0 ? 127.0f : static_cast<float>(static_cast<int>(maker.Next() % 255) - 127);
    std::vector<float> want(static_cast<size_t>(5 * t.rows));
    reference::MatMul({x.data(), 5, t.cols}, t, {}, {want.data(), 5, t.rows});
    EXPECT_EQ(Multiply(*cpu::PrepareLinear(t, {}, {}), x, 5), want) << name;
  }
}

TEST(Linear, IsBitExactOnTablesOfIntegersThatEightBitsHold) {
  // Entries are -1, 0 or 1 and the largest product of every block is 127: the scale of the tables is
  // exactly 1.
  for (const char* name : {"VQ<2,4,1>-g128", "VQ<4,4,3>-g128", "VQ<8,4,4>-g128", "VQ<2,4,2>"}) {
    TensorMaker maker(7);
    Tensor t = maker.Make(ParseFormat(name), 200, 384);
    for (Half& scale : t.scales) scale = Half(maker.Next() % 2 ? 0.5f : 2.0f);
    for (auto& book : t.codebooks) {
      for (Half& value : book) value = Half(static_cast<float>(maker.Next() % 3) - 1.0f);
      book[0] = Half(1.0f);
    }
    std::vector<float> x(static_cast<size_t>(5 * t.cols));
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t in_block = i % 64;
      x[i] = in_block == 0  ? 127.0f
             : in_block < 8 ? 0.0f
                            : static_cast<float>(static_cast<int>(maker.Next() % 21) - 10);
    }
    std::vector<float> want(static_cast<size_t>(5 * t.rows));
    reference::MatMul({x.data(), 5, t.cols}, t, {}, {want.data(), 5, t.rows});
    EXPECT_EQ(Multiply(*cpu::PrepareLinear(t, {}, {}), x, 5), want) << name;
  }
}

TEST(Linear, SumsOfTablesStayWithinSixteenBits) {
  // Every lookup at its largest: 16-bit sums that overflowed would be off by far more than rounding.
  for (const char* name : {"VQ<2,4,1>", "VQ<1,4,8>", "VQ<8,4,8>-g128"}) {
    Tensor t = TensorMaker(8).Make(ParseFormat(name), 64, 512);
    for (auto& book : t.codebooks) book.assign(book.size(), Half(1.0f));
    for (Half& scale : t.scales) scale = Half(1.0f);
    const double stages = t.format.stages();
    for (const float sign : {1.0f, -1.0f}) {
      const std::vector<float> x(static_cast<size_t>(t.cols), sign);
      for (const float y : Multiply(*cpu::PrepareLinear(t, {}, {}), x, 1))
        ASSERT_NEAR(y, sign * 512 * stages, 1e-3 * 512 * stages) << name;
    }
  }
}

TEST(Linear, Serves65537Rows) {
  for (const char* name : {"int4-g128", "VQ<8,4,4>-g128", "aqlm-2x8"}) {
    TensorMaker maker(9);
    const Tensor t = maker.Make(ParseFormat(name), 65537, 16);
    const std::vector<float> x = maker.Values(t.cols);
    std::vector<float> want(static_cast<size_t>(t.rows));
    reference::MatMul({x.data(), 1, t.cols}, t, {}, {want.data(), 1, t.rows});
    const std::vector<float> y = Multiply(*cpu::PrepareLinear(t, {}, {}), x, 1);
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      error += (y[i] - want[i]) * (y[i] - want[i]);
      norm += want[i] * want[i];
    }
    EXPECT_LE(std::sqrt(error / norm), 0.03) << name;
    EXPECT_NEAR(y.back(), want.back(), 0.2) << name;
  }
}

TEST(KernelOptions, NameTheKernelThatServesAndWhyOthersDoNot) {
  for (const char* name : kOneOfEach) {
    for (const bool exact : {false, true}) {
      const Format format = ParseFormat(name);
      const auto options = cpu::KernelOptions(format, 70, 256, {.exact = exact});
      const auto taken =
          std::find_if(options.begin(), options.end(), [](const auto& o) { return o.refusal.empty(); });
      ASSERT_NE(taken, options.end());
      const auto linear = cpu::PrepareLinear(TensorMaker(12).Make(format, 70, 256), {}, {.exact = exact});
      EXPECT_EQ(linear->Kernel(1), taken->max_m > 0 ? taken->kernel : "dequantise-gemm") << name;
      for (auto before = options.begin(); before != taken; ++before) EXPECT_NE(before->refusal, "") << name;
    }
  }
}

TEST(MultiplyAll, EqualsProductsOneByOne) {
  TensorMaker maker(10);
  std::vector<std::unique_ptr<cpu::Linear>> linears;
  for (const char* name : kOneOfEach)
    linears.push_back(cpu::PrepareLinear(maker.Make(ParseFormat(name), 90 + maker.Next() % 50, 256), {}, {}));
  linears.push_back(cpu::PrepareLinear(maker.Make(ParseFormat("int4-g128"), 33, 256), maker.Values(33), {}));
  for (const int64_t m : {1, 3, 20}) {
    const std::vector<float> x = maker.Values(m * 256);
    std::vector<std::vector<float>> ys;
    std::vector<cpu::Product> products;
    for (const auto& linear : linears) {
      ys.emplace_back(static_cast<size_t>(m * linear->rows()));
      products.push_back({linear.get(), {ys.back().data(), m, linear->rows()}});
    }
    cpu::MultiplyAll({x.data(), m, 256}, products);
    for (size_t i = 0; i < linears.size(); ++i) EXPECT_EQ(ys[i], Multiply(*linears[i], x, m)) << i;
  }
}

TEST(Linear, TakesNoRowsOfX) {
  const Tensor t = TensorMaker(11).Make(ParseFormat("int4-g128"), 33, 256);
  EXPECT_TRUE(Multiply(*cpu::PrepareLinear(t, {}, {}), {}, 0).empty());
}

}  // namespace
}  // namespace vqllm
