#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/data.h"
#include "tests/support/random_tensor.h"
#include "vq/base/error.h"
#include "vq/checkpoint/weights.h"

namespace vqllm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tensor ReadBack(const test::TempDir& dir, const QuantizationConfig& config) {
  return GetTensor(TensorStore::OpenFile(dir / "m.safetensors"), "x", config);
}

void Write(const test::TempDir& dir, const Tensor& tensor) {
  SafetensorsWriter writer(dir / "m.safetensors");
  PutTensor(writer, "x", tensor, ChooseQuantization({{"x", &tensor}}));
  writer.Finish();
}

TEST(Aqlm, CodesFromHalfTheRangeOnAreStoredNegative) {
  struct Case {
    const char* format;
    std::vector<uint32_t> codes;
    std::vector<int> stored;
  };
  const Case cases[] = {
      {"aqlm-2x8", {0, 127, 128, 255}, {0, 127, -128, -1}},
      {"aqlm-1x16", {0, 32767, 32768, 65535}, {0, 32767, -32768, -1}},
      {"aqlm-3", {0, 2047, 2048, 4095}, {0, 2047, -2048, -1}},
  };
  for (const Case& test : cases) {
    Tensor tensor = test::RandomTensor(ParseFormat(test.format), 32, 64, 1);
    for (size_t j = 0; j < 4; ++j) tensor.codes[0].Set(0, static_cast<int64_t>(j), test.codes[j]);
    const test::TempDir dir;
    Write(dir, tensor);
    const SafetensorsFile file(dir / "m.safetensors");
    const StoredTensor& codes = *file.Find("x.codes");
    const size_t stages = tensor.codes.size();
    for (size_t j = 0; j < 4; ++j) {
      const int stored = codes.type == StoredType::kI8 ? codes.bytes.Load<int8_t>(j * stages)
                                                       : codes.bytes.Load<int16_t>(j * stages);
      EXPECT_EQ(stored, test.stored[j]) << test.format;
    }
    test::ExpectSameTensor(ReadBack(dir, ChooseQuantization({{"x", &tensor}})), tensor);
  }
}

TEST(Aqlm, RefusesCodesBehindTheCodebook) {
  const Tensor tensor = test::RandomTensor(ParseFormat("aqlm-3"), 32, 64, 2);
  const test::TempDir dir;
  Write(dir, tensor);
  const SafetensorsFile file(dir / "m.safetensors");
  for (const int16_t code : {int16_t{4096}, int16_t{-2049}}) {
    SafetensorsWriter writer(dir / "bad.safetensors");
    for (const StoredTensor& array : file.tensors()) {
      if (array.name != "x.codes") {
        writer.Add(array.name, array.type, array.shape, array.bytes);
        continue;
      }
      std::vector<int16_t> codes = ReadInts<int16_t>(array);
      codes[2 * (8 * 3 + 5) + 1] = code;  // row 3, subvector 5, stage 1
      writer.Add(array.name, array.type, array.shape, Bytes::Own(codes));
    }
    writer.Finish();
    try {
      GetTensor(TensorStore::OpenFile(dir / "bad.safetensors"), "x", ChooseQuantization({{"x", &tensor}}));
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("'x.codes': code [3, 5, 1]: found {}", code)));
    }
  }
}

TEST(Aqlm, HoldsOnlyWhatItCanSay) {
  const auto method = [](const char* format, int64_t cols = 64) {
    const Tensor tensor = test::RandomTensor(ParseFormat(format), 32, cols, 3);
    return ChooseQuantization({{"x", &tensor}}).method;
  };
  EXPECT_EQ(method("VQ<4,5,3>-row"), QuantMethod::kAqlm);
  EXPECT_EQ(method("VQ<8,8,2>"), QuantMethod::kVqllm);                // no scale
  EXPECT_EQ(method("VQ<8,8,2>-g32"), QuantMethod::kVqllm);            // scales in a row
  EXPECT_EQ(method("VQ<8,8,2>-row-out"), QuantMethod::kVqllm);        // along a column
  EXPECT_EQ(method("VQ<8,8,2>-row-tile16x16"), QuantMethod::kVqllm);  // several codebooks
  EXPECT_EQ(method("aqlm-2x8", 60), QuantMethod::kVqllm);             // a padded subvector
}

TEST(Aqlm, RefusesShapesThatContradictTheConfig) {
  const Tensor tensor = test::RandomTensor(ParseFormat("aqlm-2x8"), 32, 64, 4);
  const test::TempDir dir;
  Write(dir, tensor);
  const auto refusal = [&](int bits, int stages, int subvector) -> std::string {
    const std::string config = fmt::format(
        R"({{"quant_method":"aqlm","nbits_per_codebook":{},"num_codebooks":{},"out_group_size":1,"in_group_size":{}}})",
        bits, stages, subvector);
    try {
      ReadBack(dir, ParseQuantizationConfig(config, "config"));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(8, 2, 8), "");
  EXPECT_THAT(refusal(7, 2, 8), HasSubstr("'x.codebooks'"));
  EXPECT_THAT(refusal(12, 2, 8), HasSubstr("allowed: I16"));
  EXPECT_THAT(refusal(8, 1, 8), HasSubstr("'x.codes': found shape [32, 8, 2]"));
  EXPECT_THAT(refusal(8, 2, 4), HasSubstr("'x.codebooks'"));
}

class AqlmGolden : public testing::TestWithParam<const char*> {};

/// Files made by AQLM's own pack_int_data, with the weights of its own dequantiser.
TEST_P(AqlmGolden, ReadsWhatTheOriginalWrote) {
  const std::string name = fmt::format("quant_golden/aqlm_{}_og1_ig8.safetensors", GetParam());
  VQLLM_NEED_DATA(name);
  const SafetensorsFile file(test::DataDir() / name);
  const test::TempDir dir;
  SafetensorsWriter writer(dir / "m.safetensors");
  for (const StoredTensor& array : file.tensors())
    writer.Add("x." + array.name, array.type, array.shape, array.bytes);
  writer.Finish();
  const std::string config = fmt::format(
      R"({{"quant_method":"aqlm","nbits_per_codebook":{},"num_codebooks":{},"out_group_size":1,"in_group_size":8}})",
      file.metadata().at("nbits_per_codebook"), file.metadata().at("num_codebooks"));
  const Tensor tensor = ReadBack(dir, ParseQuantizationConfig(config, "config"));
  EXPECT_EQ(tensor.format.name, fmt::format("aqlm-{}", GetParam()));

  const std::vector<int32_t> codes = ReadInts<int32_t>(*file.Find("ref.codes_unsigned"));
  const size_t stages = tensor.codes.size();
  for (int64_t r = 0; r < tensor.rows; ++r) {
    for (int64_t j = 0; j < tensor.cols / 8; ++j) {
      for (size_t stage = 0; stage < stages; ++stage) {
        const size_t at = static_cast<size_t>(r * (tensor.cols / 8) + j) * stages + stage;
        ASSERT_EQ(tensor.codes[stage].Get(r, j), static_cast<uint32_t>(codes[at]));
      }
    }
  }
  // The original sums the stages and multiplies in fp32: two roundings a weight at two stages.
  const std::vector<float> expected = ReadFloats(*file.Find("ref.dequant_fp32"));
  const std::vector<float> found = test::DequantizeAll(tensor);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], 3 * 0x1p-24f * std::abs(expected[i])) << i;
  }

  // Our writer gives back the original's own arrays.
  const test::TempDir again;
  Write(again, tensor);
  const SafetensorsFile rewritten(again / "m.safetensors");
  for (const char* array : {"codes", "codebooks", "scales"}) {
    const Bytes ours = rewritten.Find(fmt::format("x.{}", array))->bytes;
    const Bytes theirs = file.Find(array)->bytes;
    ASSERT_EQ(ours.size(), theirs.size());
    EXPECT_TRUE(std::equal(ours.data(), ours.data() + ours.size(), theirs.data())) << array;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, AqlmGolden, testing::Values("1x16", "2x8", "1x8"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace vqllm
