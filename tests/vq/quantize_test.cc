// What holds for every format: bad input is refused, odd shapes work, zeros stay zeros, the same seed gives
// the same bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "vq/base/error.h"
#include "vq/base/parallel.h"
#include "vq/base/rng.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<float> Gaussian(int64_t n, uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<float> w(static_cast<size_t>(n));
  for (float& value : w) value = rng.Normal();
  return w;
}

void ExpectEqual(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.codes.size(), b.codes.size());
  for (size_t m = 0; m < a.codes.size(); ++m) EXPECT_EQ(a.codes[m].words(), b.codes[m].words());
  const auto bits = [](const std::vector<Half>& values) {
    std::vector<uint16_t> out;
    for (const Half value : values) out.push_back(value.bits);
    return out;
  };
  ASSERT_EQ(a.codebooks.size(), b.codebooks.size());
  for (size_t m = 0; m < a.codebooks.size(); ++m) EXPECT_EQ(bits(a.codebooks[m]), bits(b.codebooks[m]));
  EXPECT_EQ(bits(a.scales), bits(b.scales));
  EXPECT_EQ(bits(a.sign_in), bits(b.sign_in));
  EXPECT_EQ(a.zeros, b.zeros);
}

/// All finite, in every stored member.
void ExpectFinite(const Tensor& t) {
  for (const Half scale : t.scales) ASSERT_TRUE(std::isfinite(static_cast<float>(scale)));
  for (const auto& book : t.codebooks) {
    for (const Half value : book) ASSERT_TRUE(std::isfinite(static_cast<float>(value)));
  }
}

// One of each kind, scope, axis, scale and number of stages.
const char* const kFormats[] = {
    "fp16",
    "int2-g64",
    "int3-row",
    "int4-g32-sym",
    "int8-g128",
    "quip-2",
    "quip-4",
    "VQ<2,4,1>",
    "VQ<4,4,2>-g32",
    "VQ<8,4,4>-row",
    "VQ<3,5,2>-tile12x21",
    "VQ<4,6,1>-out-tile8x16",
    "VQ<5,3,3>-out-row",
    "VQ<4,4,1>-ingroup16",
    "VQ<2,4,1>-head",
    R"({"name":"odd","kind":"table","subvector":4,"entries":[100,3,2],"scale":"per-tensor"})",
    R"({"name":"turned","kind":"table","subvector":4,"entries":[64],"rotation":true})",
    R"({"name":"turned-int","kind":"int","bits":4,"scale":"per-output","rotation":true})"};

class EveryKind : public testing::TestWithParam<const char*> {};

TEST_P(EveryKind, OddShapesGiveValidTensorsAndAMeasuredError) {
  const Format f = ParseFormat(GetParam());
  const std::pair<int64_t, int64_t> shapes[] = {{1, 1}, {1, 7}, {3, 5}, {13, 37}, {40, 24}, {17, 130}};
  for (const auto& [rows, cols] : shapes) {
    const std::vector<float> w = Gaussian(rows * cols);
    QuantizeReport report;
    const Tensor t = Quantize(f, {w.data(), rows, cols}, {}, "w", &report);
    ASSERT_NO_THROW(ValidateTensor(t, "w"));
    ExpectFinite(t);
    std::vector<float> decoded(w.size());
    Dequantize(t, 0, {decoded.data(), rows, cols});
    EXPECT_NEAR(report.relative_mse, RelativeMse({w.data(), rows, cols}, {decoded.data(), rows, cols}), 1e-9);
    EXPECT_LE(report.relative_mse, 0.5) << rows << " x " << cols;
  }
}

TEST_P(EveryKind, ReadsAViewWithAStride) {
  const Format f = ParseFormat(GetParam());
  const std::vector<float> tight = Gaussian(12 * 20);
  std::vector<float> wide(12 * 29, std::numeric_limits<float>::quiet_NaN());  // poison between the rows
  for (size_t r = 0; r < 12; ++r)
    std::copy_n(tight.begin() + static_cast<long>(20 * r), 20, wide.begin() + static_cast<long>(29 * r));
  ExpectEqual(Quantize(f, {tight.data(), 12, 20}, {}, "w"), Quantize(f, {wide.data(), 12, 20, 29}, {}, "w"));
}

TEST_P(EveryKind, IsTheSameAtAnyThreadCount) {
  const Format f = ParseFormat(GetParam());
  const std::vector<float> w = Gaussian(70 * 66);
  const int threads = Threads();
  std::vector<Tensor> results;
  for (const int count : {1, 2, 3}) {
    SetThreads(count);
    results.push_back(Quantize(f, {w.data(), 70, 66}, {}, "w"));
  }
  SetThreads(threads);
  ExpectEqual(results[1], results[0]);
  ExpectEqual(results[2], results[0]);
}

// Q01: all-zero rows and groups, and weights so small that their fp16 scale would be 0.
TEST_P(EveryKind, ZerosAndTinyWeightsGiveNoNan) {
  const Format f = ParseFormat(GetParam());
  std::vector<float> w = Gaussian(16 * 128);
  std::fill_n(w.begin() + 128, 128, 0.0f);          // row 1
  std::fill_n(w.begin() + 3 * 128 + 32, 32, 0.0f);  // a group of row 3
  std::fill_n(w.begin() + 5 * 128, 32, 1e-9f);      // tiny groups
  std::fill_n(w.begin() + 6 * 128, 128, -1e-30f);
  QuantizeReport report;
  const Tensor t = Quantize(f, {w.data(), 16, 128}, {}, "w", &report);
  ExpectFinite(t);
  EXPECT_TRUE(std::isfinite(report.relative_mse));
  std::vector<float> decoded(w.size());
  Dequantize(t, 0, {decoded.data(), 16, 128});
  for (const float value : decoded) ASSERT_TRUE(std::isfinite(value));
  const bool own_scale = !f.rotation && (f.scale == ScaleKind::kPerOutput || f.scale == ScaleKind::kGroup);
  if (own_scale) {
    EXPECT_GE(report.zero_groups, 1);
    for (size_t c = 0; c < 128; ++c) {
      EXPECT_EQ(decoded[128 + c], 0);
      EXPECT_NEAR(decoded[6 * 128 + c], 0, 1e-6);
    }
  }
  const std::vector<float> zeros(16 * 128, 0.0f);
  Quantize(f, {zeros.data(), 16, 128}, {}, "w", &report);
  EXPECT_EQ(report.relative_mse, 0);
}

TEST_P(EveryKind, NanAndInfinityAreRefusedByPlace) {
  const Format f = ParseFormat(GetParam());
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> w = Gaussian(8 * 16);
    w[5 * 16 + 3] = bad;
    EXPECT_THAT(
        [&] {
          Quantize(f, {w.data(), 8, 16}, {}, "layers.0.q");
        },
        ThrowsMessage<Error>(AllOf(HasSubstr("layers.0.q"), HasSubstr("[5, 3]"))));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryKind, testing::ValuesIn(kFormats));

TEST(Quantize, WhatFp16CannotHoldIsRefused) {
  std::vector<float> w(64, 1e6f);
  w[0] = -2e6f;
  EXPECT_THAT(
      [&] {
        Quantize(ParseFormat("VQ<4,4,1>"), {w.data(), 8, 8}, {}, "w");
      },
      ThrowsMessage<Error>(HasSubstr("65504")));
  EXPECT_THAT(
      [&] {
        Quantize(ParseFormat("int2-g64"), {w.data(), 8, 8}, {}, "w");
      },
      ThrowsMessage<Error>(HasSubstr("65504")));
  EXPECT_THROW(Quantize(ParseFormat("quip-2"), {w.data(), 8, 8}, {}, "w"), Error);
  QuantizeReport report;
  for (float& value : w) value /= 100;
  Quantize(ParseFormat("VQ<4,4,1>"), {w.data(), 8, 8}, {}, "w", &report);
  EXPECT_LT(report.relative_mse, 1e-6);
}

TEST(Quantize, FormatsThatCanOnlyBeReadAreRefused) {
  const std::vector<float> w = Gaussian(64);
  const Format f =
      ParseFormat(R"({"name":"p","kind":"table","subvector":4,"entries":[16],"permutation":true})");
  EXPECT_THAT(
      [&] {
        Quantize(f, {w.data(), 8, 8}, {}, "w");
      },
      ThrowsMessage<Error>(HasSubstr("permutation")));
  EXPECT_THAT(
      [&] {
        Quantize(ParseFormat("fp16"), {w.data(), 0, 8}, {}, "w");
      },
      ThrowsMessage<Error>(HasSubstr("shape")));
}

}  // namespace
}  // namespace vqllm
