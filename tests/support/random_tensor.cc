#include "tests/support/random_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "vq/quantizer.h"

namespace vqllm::test {
namespace {

bool SameHalves(const std::vector<Half>& a, const std::vector<Half>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](Half x, Half y) { return x.bits == y.bits; });
}

}  // namespace

Tensor RandomTensor(const Format& format, int64_t rows, int64_t cols, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return random() % limit; };
  const auto halves = [&](int64_t count) {
    std::vector<Half> values(static_cast<size_t>(count));
    for (Half& value : values) value = Half((static_cast<float>(below(2001)) - 1000) / 1024);
    return values;
  };
  const auto signs = [&](int64_t count) {
    std::vector<Half> values(static_cast<size_t>(count));
    for (Half& value : values) value = Half(below(2) == 0 ? 1.0f : -1.0f);
    return values;
  };
  Tensor tensor;
  tensor.format = format;
  tensor.rows = rows;
  tensor.cols = cols;
  if (format.kind == FormatKind::kDense) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& value : values) value = (static_cast<float>(below(2001)) - 1000) / 1024;
    tensor.values = DenseTensor(format.dtype, rows, cols, values.data()).values;
    return tensor;
  }
  const int stages = format.kind == FormatKind::kInt ? 1 : format.stages();
  for (int stage = 0; stage < stages; ++stage) {
    const int64_t count = CodesPerRow(format, cols);
    PackedCodes& codes = tensor.codes.emplace_back(CodeRows(format, rows), count, format.CodeBits(stage));
    const uint64_t limit = format.kind == FormatKind::kInt
                               ? uint64_t{1} << format.bits
                               : static_cast<uint64_t>(format.entries[static_cast<size_t>(stage)]);
    std::vector<uint16_t> row(static_cast<size_t>(count));
    for (int64_t r = 0; r < codes.rows(); ++r) {
      for (uint16_t& code : row) code = static_cast<uint16_t>(below(limit));
      codes.PackRow(r, row.data());
    }
    if (format.kind == FormatKind::kTable) {
      tensor.codebooks.push_back(
          halves(CodebookCount(format, rows, cols) * static_cast<int64_t>(limit) * format.subvector));
    }
  }
  switch (format.scale) {
    case ScaleKind::kNone:
      break;
    case ScaleKind::kPerTensor:
      tensor.scales = halves(1);
      break;
    default:
      tensor.scales = halves(rows * ScaleGroups(format, cols));
  }
  if (format.kind == FormatKind::kInt && !format.symmetric) {
    for (size_t i = 0; i < tensor.scales.size(); ++i) {
      tensor.zeros.push_back(static_cast<uint8_t>(below(uint64_t{1} << format.bits)));
    }
  }
  if (format.kind == FormatKind::kLattice) {
    for (int stage = 0; stage < stages; ++stage)
      tensor.stage_scales.push_back(1.0f / static_cast<float>(1 + 2 * stage));
  }
  if (format.rotation) {
    tensor.sign_in = signs(cols);
    tensor.sign_out = signs(rows);
  }
  if (format.permutation) {
    tensor.permutation.resize(static_cast<size_t>(cols));
    std::iota(tensor.permutation.begin(), tensor.permutation.end(), 0);
    std::shuffle(tensor.permutation.begin(), tensor.permutation.end(), random);
  }
  if (format.input_affine) {
    tensor.input_scale = halves(cols);
    tensor.input_offset = halves(cols);
  }
  ValidateTensor(tensor, "random tensor");
  return tensor;
}

void ExpectSameTensor(const Tensor& found, const Tensor& expected, bool names) {
  Format format = found.format;
  if (!names) format.name = expected.format.name;
  EXPECT_EQ(ToJson(format), ToJson(expected.format));
  EXPECT_EQ(found.rows, expected.rows);
  EXPECT_EQ(found.cols, expected.cols);
  ASSERT_EQ(found.values.size(), expected.values.size());
  EXPECT_TRUE(
      std::equal(found.values.data(), found.values.data() + found.values.size(), expected.values.data()));
  ASSERT_EQ(found.codes.size(), expected.codes.size());
  for (size_t stage = 0; stage < found.codes.size(); ++stage) {
    EXPECT_EQ(found.codes[stage].rows(), expected.codes[stage].rows());
    EXPECT_EQ(found.codes[stage].count(), expected.codes[stage].count());
    EXPECT_EQ(found.codes[stage].bits(), expected.codes[stage].bits());
    EXPECT_EQ(found.codes[stage].words(), expected.codes[stage].words()) << "codes of stage " << stage;
  }
  ASSERT_EQ(found.codebooks.size(), expected.codebooks.size());
  for (size_t stage = 0; stage < found.codebooks.size(); ++stage) {
    EXPECT_TRUE(SameHalves(found.codebooks[stage], expected.codebooks[stage]))
        << "codebooks of stage " << stage;
  }
  EXPECT_TRUE(SameHalves(found.scales, expected.scales)) << "scales";
  EXPECT_EQ(found.zeros, expected.zeros);
  EXPECT_EQ(found.stage_scales, expected.stage_scales);
  EXPECT_TRUE(SameHalves(found.sign_in, expected.sign_in)) << "sign_in";
  EXPECT_TRUE(SameHalves(found.sign_out, expected.sign_out)) << "sign_out";
  EXPECT_EQ(found.permutation, expected.permutation);
  EXPECT_TRUE(SameHalves(found.input_scale, expected.input_scale)) << "input_scale";
  EXPECT_TRUE(SameHalves(found.input_offset, expected.input_offset)) << "input_offset";
}

std::vector<float> DequantizeAll(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.cols));
  Dequantize(tensor, 0, MatrixView<float>(values.data(), tensor.rows, tensor.cols));
  return values;
}

}  // namespace vqllm::test
