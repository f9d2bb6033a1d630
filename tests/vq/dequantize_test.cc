// The oracle itself, on tensors small enough to work out by hand.
#include <gtest/gtest.h>

#include "vq/hadamard.h"
#include "vq/lattice.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

std::vector<float> Decoded(const Tensor& t) {
  ValidateTensor(t, "t");
  std::vector<float> w(static_cast<size_t>(t.rows * t.cols));
  Dequantize(t, 0, {w.data(), t.rows, t.cols});
  // Row by row it is the same.
  for (int64_t r = 0; r < t.rows; ++r) {
    std::vector<float> row(static_cast<size_t>(t.cols));
    Dequantize(t, r, {row.data(), 1, t.cols});
    EXPECT_TRUE(std::equal(row.begin(), row.end(), w.begin() + r * t.cols)) << r;
  }
  return w;
}

void SetCodes(PackedCodes& codes, const std::vector<std::vector<uint16_t>>& rows) {
  for (size_t r = 0; r < rows.size(); ++r) codes.PackRow(static_cast<int64_t>(r), rows[r].data());
}

std::vector<Half> Halves(const std::vector<float>& values) { return {values.begin(), values.end()}; }

Tensor Make(const std::string& format, int64_t rows, int64_t cols) {
  Tensor t;
  t.format = ParseFormat(format);
  t.rows = rows;
  t.cols = cols;
  return t;
}

TEST(Dequantize, IntegersLessTheirZeroTimesTheirScale) {
  Tensor t = Make(R"({"name":"t","kind":"int","bits":4,"scale":"group","group":2})", 2,
                  3);  // the last group is short
  t.codes.emplace_back(2, 3, 4);
  SetCodes(t.codes[0], {{0, 15, 7}, {8, 8, 1}});
  t.scales = Halves({2, 0.5, 1, 4});
  t.zeros = {1, 7, 8, 0};
  EXPECT_EQ(Decoded(t), (std::vector<float>{-2, 28, 0, 0, 0, 4}));
  t.format.symmetric = true;
  t.zeros.clear();
  EXPECT_EQ(Decoded(t), (std::vector<float>{-16, 14, -0.5, 0, 0, -28}));
}

TEST(Dequantize, SubvectorsAlongInputsAreSumsOfEntries) {
  Tensor t = Make("VQ<2,1,2>-row", 2, 3);  // the last subvector is padded
  for (int stage = 0; stage < 2; ++stage) t.codes.emplace_back(2, 2, 1);
  SetCodes(t.codes[0], {{0, 1}, {1, 0}});
  SetCodes(t.codes[1], {{1, 0}, {0, 0}});
  t.codebooks = {Halves({1, 2, 3, 4}), Halves({10, 20, 30, 40})};
  t.scales = Halves({1, 0.5});
  EXPECT_EQ(Decoded(t), (std::vector<float>{31, 42, 13, 6.5, 12, 5.5}));
}

TEST(Dequantize, SubvectorsAlongOutputsRunDown) {
  Tensor t = Make("VQ<2,1,1>-out-ingroup1", 3, 2);
  t.codes.emplace_back(2, 2, 1);
  SetCodes(t.codes[0], {{0, 1}, {1, 0}});
  t.codebooks = {Halves({1, 2, 3, 4, 5, 6, 7, 8})};  // column 0: (1,2), (3,4); column 1: (5,6), (7,8)
  EXPECT_EQ(Decoded(t), (std::vector<float>{1, 7, 2, 8, 3, 5}));
}

TEST(Dequantize, TilesHaveTheirOwnCodebooks) {
  Tensor t = Make("VQ<1,1,1>-tile1x2", 2, 3);
  t.codes.emplace_back(2, 3, 1);
  SetCodes(t.codes[0], {{0, 1, 0}, {1, 1, 1}});
  t.codebooks = {Halves({0, 1, 10, 11, 20, 21, 30, 31})};
  EXPECT_EQ(Decoded(t), (std::vector<float>{0, 1, 10, 21, 21, 31}));
}

TEST(Dequantize, PermutationAndAffineComeLast) {
  Tensor t = Make(
      R"({"name":"t","kind":"table","subvector":1,"entries":[4],"permutation":true,"input_affine":true})", 1,
      3);
  t.codes.emplace_back(1, 3, 2);
  SetCodes(t.codes[0], {{1, 2, 3}});
  t.codebooks = {Halves({0, 1, 2, 3})};
  t.permutation = {2, 0, 1};  // stored column 0 is column 2 of W
  t.input_scale = Halves({10, 100, 1000});
  t.input_offset = Halves({0.5, 0, -1});
  EXPECT_EQ(Decoded(t), (std::vector<float>{20.5, 300, 999}));
  std::vector<float> stored(3);
  DequantizeStored(t, 0, {stored.data(), 1, 3});
  EXPECT_EQ(stored, (std::vector<float>{1, 2, 3}));
}

TEST(Dequantize, LatticeStagesAddUpAndRotationIsUndone) {
  Tensor t = Make("quip-4", 2, 8);
  for (int stage = 0; stage < 2; ++stage) t.codes.emplace_back(2, 1, 16);
  SetCodes(t.codes[0], {{0x1234}, {0xfedc}});
  SetCodes(t.codes[1], {{0x00ff}, {0x8001}});
  t.scales = Halves({0.5});
  t.stage_scales = {1, 0.25};
  t.sign_in = Halves({1, -1, 1, 1, -1, 1, 1, -1});
  t.sign_out = Halves({-1, 1});
  std::vector<float> stored(16);
  DequantizeStored(t, 0, {stored.data(), 2, 8});
  for (size_t r = 0; r < 2; ++r) {
    const auto first = e8p::Decode(static_cast<uint16_t>(t.codes[0].Get(static_cast<int64_t>(r), 0)));
    const auto second = e8p::Decode(static_cast<uint16_t>(t.codes[1].Get(static_cast<int64_t>(r), 0)));
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(stored[8 * r + i], 0.5f * (first[i] + 0.25f * second[i]));
  }
  // W = S_out H_out^T W' H_in S_in; turning it forward again gives W'.
  std::vector<float> w = Decoded(t);
  for (size_t r = 0; r < 2; ++r) {
    for (size_t c = 0; c < 8; ++c) w[8 * r + c] *= t.sign_out[r] * t.sign_in[c];
    Hadamard(8).Apply(w.data() + 8 * r);
  }
  for (size_t c = 0; c < 8; ++c) {
    float column[2] = {w[c], w[8 + c]};
    Hadamard(2).Apply(column);
    EXPECT_NEAR(column[0], stored[c], 1e-5);
    EXPECT_NEAR(column[1], stored[8 + c], 1e-5);
  }
}

}  // namespace
}  // namespace vqllm
