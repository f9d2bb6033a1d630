#include "vq/checkpoint/gguf_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/checkpoint/tensor_store.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

using testing::HasSubstr;

GgufTensor Of(uint32_t type, std::vector<int64_t> shape, Bytes bytes) {
  GgufTensor tensor;
  tensor.name = "t";
  tensor.where = "f: 't'";
  tensor.type_id = type;
  tensor.type = FindGgmlType(type);
  tensor.shape = std::move(shape);
  tensor.bytes = std::move(bytes);
  return tensor;
}

std::vector<float> Rows(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.cols));
  Dequantize(tensor, 0, MatrixView<float>(values.data(), tensor.rows, tensor.cols));
  return values;
}

/// The bits of a scale that is exact and of the pattern q -> weight that a block of one type holds.
std::vector<uint8_t> BlockOf(uint32_t type) {
  std::vector<uint8_t> block(static_cast<size_t>(FindGgmlType(type)->bytes));
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint8_t>(37 * i + 11);
  return block;
}

struct Golden {
  const char* name;
  uint32_t type;
};
class GgmlGolden : public testing::TestWithParam<Golden> {};

/// 4 x 512 weights that ggml quantised, and what ggml makes of its own blocks.
TEST_P(GgmlGolden, DequantisesBitForBit) {
  const auto file = [&](const char* suffix) {
    return fmt::format("ggml_golden/{}.{}.bin", GetParam().name, suffix);
  };
  VQLLM_NEED_DATA(file("blocks"));
  const Bytes blocks = MapFile(test::DataDir() / file("blocks"));
  const Bytes expected = MapFile(test::DataDir() / file("dequant_f32"));
  const GgufTensor tensor = Of(GetParam().type, {4, 512}, blocks);
  const std::vector<float> values = ReadGgufFloats(tensor);
  ASSERT_EQ(values.size() * sizeof(float), expected.size());
  EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size()), 0);

  const Tensor matrix = ReadGgufMatrix(tensor);
  ValidateTensor(matrix, "t");
  const std::vector<float> of_matrix = Rows(matrix);
  EXPECT_EQ(std::memcmp(of_matrix.data(), expected.data(), expected.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, GgmlGolden,
                         testing::Values(Golden{"f16", 1}, Golden{"bf16", 30}, Golden{"q4_0", 2},
                                         Golden{"q4_1", 3}, Golden{"q8_0", 8}, Golden{"q4_K", 12},
                                         Golden{"q6_K", 14}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(GgufTensor, KeepsFloatsInPlaceAndIntegersAsIntegers) {
  const Bytes bytes = Bytes::Own(std::vector<uint8_t>(34 * 4));
  EXPECT_EQ(ReadGgufMatrix(Of(kGgmlF16, {2, 34}, bytes)).values.data(), bytes.data());
  const Tensor q8 = ReadGgufMatrix(Of(kGgmlQ8_0, {4, 32}, bytes));
  EXPECT_EQ(q8.format.kind, FormatKind::kInt);
  EXPECT_EQ(q8.format.bits, 8);
  EXPECT_TRUE(q8.format.symmetric);
  const Tensor q4 = ReadGgufMatrix(Of(kGgmlQ4_0, {2, 64}, bytes.Slice(0, 72)));
  EXPECT_EQ(q4.format.bits, 4);
  EXPECT_EQ(q4.format.group, 32);
}

TEST(GgufTensor, TheLowestCodeOfQ8IsMinus128) {
  std::vector<uint8_t> block(34);
  block[1] = 0x3c;  // scale 1
  block[2] = 0x80;
  block[3] = 0x7f;
  const std::vector<float> values = Rows(ReadGgufMatrix(Of(kGgmlQ8_0, {1, 32}, Bytes::Own(block))));
  EXPECT_EQ(values[0], -128);
  EXPECT_EQ(values[1], 127);
  EXPECT_EQ(values[2], 0);
}

/// Known without any golden file: scale 1, offset -2, codes 0..15.
TEST(GgufTensor, Q4WithOffsetHoldsLowNibblesFirst) {
  std::vector<uint8_t> block(20);
  block[1] = 0x3c;  // scale 1
  block[3] = 0xc0;  // offset -2
  for (int i = 0; i < 16; ++i) block[4 + static_cast<size_t>(i)] = static_cast<uint8_t>(i | (15 - i) << 4);
  const std::vector<float> values = ReadGgufFloats(Of(3, {1, 32}, Bytes::Own(block)));
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)], i - 2);
    EXPECT_EQ(values[static_cast<size_t>(16 + i)], 13 - i);
  }
}

TEST(GgufTensor, ReordersRowsOfEveryType) {
  for (const uint32_t type : {kGgmlF32, kGgmlF16, kGgmlBF16, kGgmlQ8_0, kGgmlQ4_0, 3u, 12u, 14u}) {
    const int elements = FindGgmlType(type)->elements;
    std::vector<uint8_t> rows;
    for (int row = 0; row < 3; ++row) {
      std::vector<uint8_t> block = BlockOf(type);
      block[0] = static_cast<uint8_t>(row + 1);
      rows.insert(rows.end(), block.begin(), block.end());
    }
    const GgufTensor tensor = Of(type, {3, elements}, Bytes::Own(rows));
    const std::vector<float> straight = Rows(ReadGgufMatrix(tensor));
    const int64_t order[] = {2, 0, 1};
    const std::vector<float> turned = Rows(ReadGgufMatrix(tensor, order));
    for (size_t row = 0; row < 3; ++row) {
      const size_t n = static_cast<size_t>(elements);
      EXPECT_EQ(
          std::memcmp(&turned[row * n], &straight[static_cast<size_t>(order[row]) * n], n * sizeof(float)), 0)
          << tensor.type->name;
    }
  }
}

TEST(GgufTensor, RefusesOtherTypesByName) {
  try {
    ReadGgufMatrix(Of(16, {1, 256}, Bytes::Own(std::vector<uint8_t>(66))));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("f: 't': found type IQ2_XXS"));
  }
  try {
    ReadGgufFloats(Of(77, {1, 1}, Bytes()));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("found type number 77"));
  }
}

TEST(GgufTensor, RefusesMatricesOfOtherRanksAndEmptyOnes) {
  EXPECT_THROW(ReadGgufMatrix(Of(kGgmlF32, {4}, Bytes::Own(std::vector<float>(4)))), Error);
  EXPECT_THROW(ReadGgufMatrix(Of(kGgmlF32, {int64_t{1} << 60, 0}, Bytes())), Error);
}

TEST(GgufTensor, HoldsTheSameWeightsAsTheSafetensorsOfTheModel) {
  VQLLM_NEED_DATA("stories260K/stories260K-f32.gguf");
  const auto folder = test::DataDir() / "stories260K";
  const GgufFile gguf(folder / "stories260K-f32.gguf");
  const TensorStore store = TensorStore::OpenFolder(folder / "f32");
  EXPECT_EQ(ReadGgufFloats(gguf.Get("token_embd.weight")),
            ReadFloats(store.Get("model.embed_tokens.weight")));
  EXPECT_EQ(ReadGgufFloats(gguf.Get("blk.3.ffn_down.weight")),
            ReadFloats(store.Get("model.layers.3.mlp.down_proj.weight")));
}

TEST(GgufTensor, OpensEveryRandomModel) {
  VQLLM_NEED_DATA("gguf/tinyrandom256-Q4_K_M.gguf");
  for (const char* name : {"f32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K_M", "Q6_K"}) {
    const GgufFile file(test::DataDir() / "gguf" / fmt::format("tinyrandom256-{}.gguf", name));
    EXPECT_EQ(file.tensors().size(), 21u);
    for (const GgufTensor& tensor : file.tensors()) {
      EXPECT_EQ(static_cast<int64_t>(ReadGgufFloats(tensor).size()), ElementCount(tensor.shape));
    }
  }
}

}  // namespace
}  // namespace vqllm
