#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/data.h"
#include "tests/support/random_tensor.h"
#include "vq/base/error.h"
#include "vq/checkpoint/weights.h"

namespace vqllm {
namespace {

using testing::HasSubstr;

constexpr char kConfig[] =
    R"({"quant_method":"awq","bits":4,"group_size":32,"zero_point":true,"version":"gemm"})";

/// Word 0 of one input holds outputs 0, 2, 4, 6, 1, 3, 5, 7 from its lowest nibble up.
TEST(Awq, NibblesHoldEvenOutputsThenOddOnes) {
  const test::TempDir dir;
  SafetensorsWriter writer(dir / "m.safetensors");
  std::vector<int32_t> words(32, 0x76543210);
  writer.Add("x.qweight", StoredType::kI32, {32, 1}, Bytes::Own(words));
  writer.Add("x.qzeros", StoredType::kI32, {1, 1}, Bytes::Own(std::vector<int32_t>{0x00000001}));
  writer.Add("x.scales", {1, 8}, std::vector<Half>(8, Half(0.5f)));
  writer.Finish();
  const Tensor tensor = GetTensor(TensorStore::OpenFile(dir / "m.safetensors"), "x",
                                  ParseQuantizationConfig(kConfig, "config"));
  ASSERT_EQ(tensor.rows, 8);
  ASSERT_EQ(tensor.cols, 32);
  const std::vector<float> values = test::DequantizeAll(tensor);
  const float expected[] = {(0 - 1) / 2.0f, 4 / 2.0f, 1 / 2.0f, 5 / 2.0f,
                            2 / 2.0f,       6 / 2.0f, 3 / 2.0f, 7 / 2.0f};
  for (size_t r = 0; r < 8; ++r) EXPECT_EQ(values[r * 32 + 31], expected[r]) << r;
}

TEST(Awq, ReadsWhatTheOriginalPackerWrote) {
  VQLLM_NEED_DATA("quant_golden/awq_gemm_w4_g32.safetensors");
  const SafetensorsFile file(test::DataDir() / "quant_golden/awq_gemm_w4_g32.safetensors");
  const test::TempDir dir;
  SafetensorsWriter writer(dir / "m.safetensors");
  for (const StoredTensor& array : file.tensors())
    writer.Add("x." + array.name, array.type, array.shape, array.bytes);
  writer.Finish();
  const Tensor tensor = GetTensor(TensorStore::OpenFile(dir / "m.safetensors"), "x",
                                  ParseQuantizationConfig(kConfig, "config"));
  EXPECT_EQ(test::DequantizeAll(tensor), ReadFloats(*file.Find("ref.dequant_fp32")));
}

TEST(Awq, RefusesShapesThatContradictEachOther) {
  const test::TempDir dir;
  SafetensorsWriter writer(dir / "m.safetensors");
  writer.Add("x.qweight", StoredType::kI32, {32, 1}, Bytes::Own(std::vector<int32_t>(32)));
  writer.Add("x.qzeros", StoredType::kI32, {2, 1}, Bytes::Own(std::vector<int32_t>(2)));
  writer.Add("x.scales", {1, 8}, std::vector<Half>(8));
  writer.Finish();
  try {
    GetTensor(TensorStore::OpenFile(dir / "m.safetensors"), "x", ParseQuantizationConfig(kConfig, "config"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'x.qzeros': found shape [2, 1], allowed: [1, 1]"));
  }
}

}  // namespace
}  // namespace vqllm
