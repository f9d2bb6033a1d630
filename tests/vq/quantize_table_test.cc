#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "vq/base/error.h"
#include "vq/base/rng.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<float> Gaussian(int64_t n, uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<float> w(static_cast<size_t>(n));
  for (float& value : w) value = rng.Normal();
  return w;
}

/// Squared error over squares, of the columns in [begin, end).
double ColumnsMse(const Tensor& t, const std::vector<float>& w, int64_t begin, int64_t end) {
  std::vector<float> decoded(w.size());
  Dequantize(t, 0, {decoded.data(), t.rows, t.cols});
  const float* a = w.data() + begin;
  const float* b = decoded.data() + begin;
  return RelativeMse({a, t.rows, end - begin, t.cols}, {b, t.rows, end - begin, t.cols});
}

// Q05 and K06: what a codebook of any number of entries can hold is held exactly.
class Lossless : public testing::TestWithParam<const char*> {};

TEST_P(Lossless, MatricesMadeOfAsManySubvectorsAsEntries) {
  const Format f = ParseFormat(GetParam());
  constexpr int64_t kRows = 48;
  constexpr int64_t kCols = 96;
  Rng rng(2);
  // A tensor of the format with codebooks of exact halves; stage 2 and on are 0, so that residual start meets
  // it.
  Tensor t;
  t.format = f;
  t.rows = kRows;
  t.cols = kCols;
  const bool along_in = f.axis == Axis::kIn;
  for (int stage = 0; stage < f.stages(); ++stage) {
    const int entries = f.entries[static_cast<size_t>(stage)];
    std::vector<Half>& book = t.codebooks.emplace_back();
    for (int64_t i = 0; i < CodebookCount(f, kRows, kCols) * entries * f.subvector; ++i)
      book.emplace_back(stage == 0 ? static_cast<float>(static_cast<int>(rng.Below(4096)) - 2048) / 64
                                   : 0.0f);
    const int64_t code_rows = along_in ? kRows : Subvectors(f, kRows);
    const int64_t code_cols = along_in ? Subvectors(f, kCols) : kCols;
    PackedCodes& codes = t.codes.emplace_back(code_rows, code_cols, f.CodeBits(stage));
    for (int64_t r = 0; r < code_rows; ++r) {
      for (int64_t c = 0; c < code_cols; ++c)
        codes.Set(r, c, static_cast<uint32_t>(rng.Below(static_cast<uint64_t>(entries))));
    }
  }
  std::vector<float> w(kRows * kCols);
  Dequantize(t, 0, {w.data(), kRows, kCols});
  QuantizeReport report;
  const Tensor again = Quantize(f, {w.data(), kRows, kCols}, {}, "w", &report);
  ValidateTensor(again, "w");
  EXPECT_EQ(report.relative_mse, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Lossless,
    testing::Values("VQ<8,1,1>", "VQ<4,3,1>", "VQ<1,16,1>", "VQ<16,8,1>", "VQ<5,4,1>", "VQ<4,4,2>",
                    "VQ<8,12,2>", "VQ<4,6,1>-tile16x16", "VQ<4,6,1>-out", "VQ<7,5,1>-out-ingroup10",
                    "VQ<4,4,1>-head", R"({"name":"a","kind":"table","subvector":4,"entries":[3]})",
                    R"({"name":"a","kind":"table","subvector":8,"entries":[1000,512]})",
                    R"({"name":"a","kind":"table","subvector":4,"entries":[512,4096,2]})"));

TEST(QuantizeTable, FewerSubvectorsThanEntriesAreExactUpToTheCodebooksHalves) {
  const std::vector<float> w = Gaussian(16 * 16);
  QuantizeReport report;
  Quantize(ParseFormat("VQ<8,8,1>"), {w.data(), 16, 16}, {}, "w", &report);
  EXPECT_LT(report.relative_mse, std::pow(2.0, -22));  // entries are halves: 2^-11 of each value at most
  EXPECT_EQ(report.unused_entries, 256 - 32);
}

TEST(QuantizeTable, FinerScopesFitBetter) {
  // Columns of very different spread: one codebook for all must compromise.
  std::vector<float> w = Gaussian(256 * 64);
  for (size_t i = 0; i < w.size(); ++i) w[i] *= std::exp2(static_cast<float>(i % 64 / 8) - 4);
  const auto mse = [&](const char* format) {
    QuantizeReport report;
    Quantize(ParseFormat(format), {w.data(), 256, 64}, {}, "w", &report);
    return report.relative_mse;
  };
  EXPECT_LT(mse("VQ<4,6,1>-ingroup16"), mse("VQ<4,6,1>"));
  EXPECT_LT(mse("VQ<4,6,1>-head"), mse("VQ<4,6,1>-ingroup16"));
}

TEST(QuantizeTable, ScalesMakeRowsOfAnySizeEqual) {
  std::vector<float> w = Gaussian(128 * 128);
  for (size_t i = 0; i < w.size(); ++i) w[i] *= std::exp2(static_cast<float>(i / 128 % 12));
  QuantizeReport plain;
  QuantizeReport scaled;
  Quantize(ParseFormat("VQ<4,8,1>-row"), {w.data(), 128, 128}, {}, "w", &scaled);
  EXPECT_LT(scaled.relative_mse, 0.11);
  const Tensor none = Quantize(ParseFormat("VQ<4,8,1>"), {w.data(), 128, 128}, {}, "w", &plain);
  // Without scales the small rows drown: the first decodes to nearly nothing.
  std::vector<float> row(128);
  Dequantize(none, 0, {row.data(), 1, 128});
  EXPECT_GT(RelativeMse({w.data(), 1, 128}, {row.data(), 1, 128}), 0.5);
}

TEST(QuantizeTable, EffortPaysForSeveralStages) {
  const std::vector<float> w = Gaussian(128 * 128);
  double before = 1;
  for (const Effort effort : {Effort::kFast, Effort::kNormal, Effort::kBest}) {
    QuantizeOptions options;
    options.effort = effort;
    QuantizeReport report;
    Quantize(ParseFormat("VQ<8,4,4>"), {w.data(), 128, 128}, options, "w", &report);
    EXPECT_LT(report.relative_mse, before);
    before = report.relative_mse;
  }
}

// Q04.
class Importance : public testing::TestWithParam<const char*> {};

TEST_P(Importance, SpendsThePrecisionWhereItCounts) {
  std::vector<float> w = Gaussian(256 * 128);
  for (size_t i = 0; i < w.size(); ++i)
    w[i] *= i % 128 < 64 ? 1.0f : 3.0f;  // codebooks cannot suit both halves
  std::vector<float> importance(128, 0.01f);
  std::fill_n(importance.begin(), 64, 1.0f);
  QuantizeOptions options;
  const Tensor plain = Quantize(ParseFormat(GetParam()), {w.data(), 256, 128}, options, "w");
  options.importance = importance;
  const Tensor weighted = Quantize(ParseFormat(GetParam()), {w.data(), 256, 128}, options, "w");
  EXPECT_LT(ColumnsMse(weighted, w, 0, 64), 0.99 * ColumnsMse(plain, w, 0, 64));
  EXPECT_GT(ColumnsMse(weighted, w, 64, 128), ColumnsMse(plain, w, 64, 128));
}

TEST_P(Importance, ColumnsOfNoneAreStillCodedBetterThanByRounding) {
  const std::vector<float> w = Gaussian(256 * 128);
  const Format f = ParseFormat(GetParam());
  const double rounding =
      ColumnsMse(Quantize(ParseFormat("int2-g128"), {w.data(), 256, 128}, {}, "w"), w, 0, 64);
  for (const float rest : {1.0f, 1e38f, 1e-38f}) {
    std::vector<float> importance(128, rest);
    std::fill_n(importance.begin(), 64, 0.0f);
    QuantizeOptions options;
    options.importance = importance;
    EXPECT_LE(ColumnsMse(Quantize(f, {w.data(), 256, 128}, options, "w"), w, 0, 64), rounding) << rest;
  }
  std::vector<float> one(128, 1.0f);
  one[3] = 1e38f;
  QuantizeOptions options;
  options.importance = one;
  EXPECT_LE(ColumnsMse(Quantize(f, {w.data(), 256, 128}, options, "w"), w, 64, 128), rounding);
}

TEST_P(Importance, AllZeroOrAllEqualIsUnweighted) {
  const std::vector<float> w = Gaussian(32 * 128);
  const Format f = ParseFormat(GetParam());
  const Tensor plain = Quantize(f, {w.data(), 32, 128}, {}, "w");
  for (const float value : {0.0f, 1.0f, 8.0f}) {
    const std::vector<float> importance(128, value);
    QuantizeOptions options;
    options.importance = importance;
    const Tensor t = Quantize(f, {w.data(), 32, 128}, options, "w");
    for (size_t m = 0; m < t.codes.size(); ++m)
      EXPECT_EQ(t.codes[m].words(), plain.codes[m].words()) << value;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Importance, testing::Values("VQ<2,4,1>", "VQ<4,4,2>", "VQ<4,6,1>-out"));

TEST(QuantizeTable, BadImportanceIsRefusedBeforeAnyWork) {
  const std::vector<float> w = Gaussian(8 * 16);
  const auto refused = [&](std::vector<float> importance, const char* what) {
    QuantizeOptions options;
    options.importance = importance;
    EXPECT_THAT(
        [&] {
          Quantize(ParseFormat("VQ<4,4,1>"), {w.data(), 8, 16}, options, "w");
        },
        ThrowsMessage<Error>(testing::AllOf(HasSubstr("importance"), HasSubstr(what))));
  };
  std::vector<float> importance(16, 1.0f);
  importance[7] = -1;
  refused(importance, "input 7");
  importance[7] = std::numeric_limits<float>::quiet_NaN();
  refused(importance, "input 7");
  importance[7] = std::numeric_limits<float>::infinity();
  refused(importance, "input 7");
  importance.pop_back();
  refused(importance, "15");
}

}  // namespace
}  // namespace vqllm
