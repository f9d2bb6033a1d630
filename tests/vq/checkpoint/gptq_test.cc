#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <random>

#include "tests/support/data.h"
#include "tests/support/random_tensor.h"
#include "vq/base/error.h"
#include "vq/checkpoint/weights.h"

namespace vqllm {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 64, kCols = 64, kGroups = 2;

Tensor Int4(bool symmetric, uint64_t seed = 1) {
  return test::RandomTensor(ParseFormat(symmetric ? "int4-g32-sym" : "int4-g32"), kRows, kCols, seed);
}

/// A GPTQ matrix "x" with its zero points and g_idx as given, its config as given.
struct Checkpoint {
  test::TempDir dir;
  std::string config = R"({"quant_method":"gptq","bits":4,"group_size":32,"checkpoint_format":"gptq_v2"})";

  /// Writes `tensor` and then lets `zero_word` and `g_idx` replace what was written.
  void Write(const Tensor& tensor, const std::function<uint32_t(uint32_t)>& zero_word = {},
             const std::optional<std::vector<int32_t>>& g_idx = {}) {
    {
      SafetensorsWriter writer(dir / "plain.safetensors");
      PutTensor(writer, "x", tensor, ChooseQuantization({{"x", &tensor}}));
      writer.Finish();
    }
    const SafetensorsFile plain(dir / "plain.safetensors");
    SafetensorsWriter writer(dir / "model.safetensors");
    for (const StoredTensor& array : plain.tensors()) {
      Bytes bytes = array.bytes;
      std::vector<int64_t> shape = array.shape;
      if (array.name == "x.qzeros" && zero_word) {
        std::vector<int32_t> words = ReadInts<int32_t>(array);
        for (int32_t& word : words) word = static_cast<int32_t>(zero_word(static_cast<uint32_t>(word)));
        bytes = Bytes::Own(words);
      }
      if (array.name == "x.g_idx" && g_idx) {
        if (g_idx->empty()) continue;
        bytes = Bytes::Own(*g_idx);
        shape = {static_cast<int64_t>(g_idx->size())};
      }
      writer.Add(array.name, array.type, shape, bytes);
    }
    writer.Finish();
  }

  Tensor Read() const {
    return GetTensor(TensorStore::OpenFile(dir / "model.safetensors"), "x",
                     ParseQuantizationConfig(config, "config"));
  }
  std::string Refusal() const {
    try {
      Read();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  void SetConfig(const char* version, const char* more = "") {
    config = fmt::format(R"({{"quant_method":"gptq","bits":4,"group_size":32,"checkpoint_format":"{}"{}}})",
                         version, more);
  }
};

/// What packers of the first version do to a word of eight 4-bit zero points.
uint32_t LessOneInEveryNibble(uint32_t word) {
  uint32_t result = 0;
  for (int shift = 0; shift < 32; shift += 4) result |= (((word >> shift & 15) - 1) & 15) << shift;
  return result;
}

TEST(Gptq, BothVersionsOfSymmetricZerosGiveTheSameMatrix) {
  const Tensor tensor = Int4(true);
  Checkpoint checkpoint;
  checkpoint.SetConfig("gptq_v2", R"(,"sym":true)");
  checkpoint.Write(tensor);
  test::ExpectSameTensor(checkpoint.Read(), tensor);
  checkpoint.SetConfig("gptq", R"(,"sym":true)");
  checkpoint.Write(tensor, [](uint32_t word) {
    EXPECT_EQ(word, 0x88888888u);
    return 0x77777777u;
  });
  test::ExpectSameTensor(checkpoint.Read(), tensor);
}

TEST(Gptq, BothVersionsOfAsymmetricZerosGiveTheSameMatrix) {
  Tensor tensor = Int4(false);
  for (uint8_t& zero : tensor.zeros) zero = std::max<uint8_t>(zero, 1);
  Checkpoint checkpoint;
  checkpoint.SetConfig("gptq_v2", R"(,"sym":false)");
  checkpoint.Write(tensor);
  test::ExpectSameTensor(checkpoint.Read(), tensor);
  checkpoint.SetConfig("gptq", R"(,"sym":false)");
  checkpoint.Write(tensor, [](uint32_t word) { return word - 0x11111111u; });
  test::ExpectSameTensor(checkpoint.Read(), tensor);
}

TEST(Gptq, RefusesAZeroPointOfZeroInTheFirstVersion) {
  Tensor tensor = Int4(false);
  // 0, 5, 3, 15, 8, 1, 9, 2: packers write 0x1807e23f, 0x1807e24f or 0xffffffff for it.
  const uint8_t zeros[] = {0, 5, 3, 15, 8, 1, 9, 2};
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t g = 0; g < kGroups; ++g) tensor.zeros[r * kGroups + g] = zeros[r % 8];
  }
  Checkpoint checkpoint;
  checkpoint.SetConfig("gptq", R"(,"sym":false)");
  const std::function<uint32_t(uint32_t)> packers[] = {
      [](uint32_t word) { return word - 0x11111111u; },
      LessOneInEveryNibble,
      [](uint32_t) { return 0xffffffffu; },
  };
  for (const auto& packer : packers) {
    checkpoint.Write(tensor, packer);
    EXPECT_THAT(checkpoint.Refusal(), HasSubstr("cannot tell zero point 0 from 16"));
  }
  checkpoint.SetConfig("gptq_v2", R"(,"sym":false)");
  checkpoint.Write(tensor);
  test::ExpectSameTensor(checkpoint.Read(), tensor);
}

TEST(Gptq, RefusesSymmetricZerosOfTheSecondVersionUnderTheNameOfTheFirst) {
  Checkpoint checkpoint;
  checkpoint.Write(Int4(true));
  for (const char* sym : {R"(,"sym":true)", ""}) {
    checkpoint.SetConfig("gptq", sym);
    EXPECT_THAT(checkpoint.Refusal(), HasSubstr("which is what checkpoint_format gptq_v2 stores"));
  }
}

TEST(Gptq, RefusesSymmetricZerosOfTheFirstVersionUnderTheNameOfTheSecond) {
  Checkpoint checkpoint;
  checkpoint.Write(Int4(true), [](uint32_t) { return 0x77777777u; });
  checkpoint.SetConfig("gptq_v2", R"(,"sym":true)");
  EXPECT_THAT(checkpoint.Refusal(), HasSubstr("found zero points other than 8"));
}

TEST(Gptq, AnAbsentVersionIsTheFirst) {
  const Tensor tensor = Int4(true);
  Checkpoint checkpoint;
  checkpoint.config = R"({"quant_method":"gptq","bits":4,"group_size":32})";
  checkpoint.Write(tensor, [](uint32_t) { return 0x77777777u; });
  test::ExpectSameTensor(checkpoint.Read(), tensor);
}

/// A tensor whose columns are permuted as GPTQ can say it: ascending inside each group.
Tensor ActOrder(const char* format_name, int64_t cols) {
  Format format = ParseFormat(format_name);
  format.permutation = true;
  Tensor tensor = test::RandomTensor(format, kRows, cols, 5);
  const int64_t width = format.scale == ScaleKind::kGroup ? format.group : cols;
  for (int64_t begin = 0; begin < cols; begin += width) {
    std::sort(tensor.permutation.begin() + begin, tensor.permutation.begin() + std::min(cols, begin + width));
  }
  return tensor;
}

TEST(Gptq, ColumnsInTheOrderOfActivationsComeBackIdentical) {
  for (const int64_t cols : {64, 72}) {  // the last group of 72 columns is short
    const Tensor tensor = ActOrder("int4-g32", cols);
    const QuantizationConfig config = ChooseQuantization({{"x", &tensor}});
    EXPECT_EQ(config.method, QuantMethod::kGptq);
    EXPECT_TRUE(config.act_order);
    Checkpoint checkpoint;
    checkpoint.config = ToJson(config);
    checkpoint.Write(tensor);
    const Tensor read = checkpoint.Read();
    test::ExpectSameTensor(read, tensor, false);
    EXPECT_EQ(test::DequantizeAll(read), test::DequantizeAll(tensor));
  }
}

TEST(Gptq, OneGroupForAllColumnsNeedsNoOrder) {
  const Tensor tensor = test::RandomTensor(ParseFormat("int4-row"), kRows, kCols, 6);
  Checkpoint checkpoint;
  for (const char* act_order : {"false", "true"}) {
    checkpoint.config = fmt::format(
        R"({{"quant_method":"gptq","bits":4,"group_size":-1,"desc_act":{},"checkpoint_format":"gptq_v2"}})",
        act_order);
    checkpoint.Write(tensor);
    test::ExpectSameTensor(checkpoint.Read(), tensor);
    checkpoint.Write(tensor, {}, std::vector<int32_t>());
    test::ExpectSameTensor(checkpoint.Read(), tensor);
  }
}

TEST(Gptq, AnOrderThatGroupsCannotTellGoesToOurOwnMethod) {
  Tensor tensor = ActOrder("int4-g32", kCols);
  std::swap(tensor.permutation[0], tensor.permutation[1]);
  EXPECT_EQ(ChooseQuantization({{"x", &tensor}}).method, QuantMethod::kVqllm);
  std::iota(tensor.permutation.begin(), tensor.permutation.end(), 0);
  EXPECT_EQ(ChooseQuantization({{"x", &tensor}}).method, QuantMethod::kVqllm);
}

TEST(Gptq, RefusesGroupsOutOfRangeUnequalOrMissing) {
  const Tensor tensor = Int4(false);
  std::vector<int32_t> g_idx(kCols);
  for (size_t j = 0; j < g_idx.size(); ++j) g_idx[j] = static_cast<int32_t>(j / 32);
  Checkpoint checkpoint;
  const auto refusal_with = [&](size_t column, int32_t group) {
    std::vector<int32_t> changed = g_idx;
    changed[column] = group;
    checkpoint.Write(tensor, {}, changed);
    return checkpoint.Refusal();
  };
  EXPECT_EQ(refusal_with(0, 0), "");
  EXPECT_THAT(refusal_with(7, -1), HasSubstr("'x.g_idx': column 7: found group -1, allowed: 0 to 1"));
  EXPECT_THAT(refusal_with(7, 2), HasSubstr("'x.g_idx': column 7: found group 2, allowed: 0 to 1"));
  EXPECT_THAT(refusal_with(7, 1), HasSubstr("'x.g_idx': group 0: found 31 columns, allowed: 32"));
  checkpoint.Write(tensor, {}, std::vector<int32_t>(kCols + 1));
  EXPECT_THAT(checkpoint.Refusal(), HasSubstr("found shape [65], allowed: [64]"));

  checkpoint.Write(tensor, {}, std::vector<int32_t>());  // no g_idx at all
  test::ExpectSameTensor(checkpoint.Read(), tensor);
  checkpoint.SetConfig("gptq_v2", R"(,"desc_act":true)");
  EXPECT_THAT(checkpoint.Refusal(), HasSubstr("'x.g_idx' is missing"));
}

TEST(Gptq, RefusesShapesThatContradictTheConfig) {
  Checkpoint checkpoint;
  checkpoint.Write(Int4(false));
  checkpoint.config = R"({"quant_method":"gptq","bits":8,"group_size":32,"checkpoint_format":"gptq_v2"})";
  EXPECT_THAT(checkpoint.Refusal(), HasSubstr("'x.scales': found shape [2, 64], allowed: [1, 64]"));
  checkpoint.config = R"({"quant_method":"gptq","bits":3,"group_size":32,"checkpoint_format":"gptq_v2"})";
  EXPECT_THAT(checkpoint.Refusal(), HasSubstr("'x.qweight': found shape [8, 64]"));
  checkpoint.config = R"({"quant_method":"gptq","bits":4,"group_size":16,"checkpoint_format":"gptq_v2"})";
  EXPECT_THAT(checkpoint.Refusal(), HasSubstr("'x.scales'"));
}

class GptqGolden : public testing::TestWithParam<const char*> {};

/// Files made by the packer of GPTQModel, with the integers and weights that it packed.
TEST_P(GptqGolden, ReadsWhatTheOriginalPackerWrote) {
  const std::string name = fmt::format("quant_golden/gptq_{}.safetensors", GetParam());
  VQLLM_NEED_DATA(name);
  const SafetensorsFile file(test::DataDir() / name);
  // The arrays have no prefix in these files.
  const test::TempDir dir;
  SafetensorsWriter writer(dir / "model.safetensors");
  for (const StoredTensor& array : file.tensors())
    writer.Add("x." + array.name, array.type, array.shape, array.bytes);
  writer.Finish();
  const std::string config = fmt::format(
      R"({{"quant_method":"gptq","bits":{},"group_size":32,"sym":false,"checkpoint_format":"{}"}})",
      file.metadata().at("bits"), file.metadata().at("checkpoint_format"));
  const Tensor tensor = GetTensor(TensorStore::OpenFile(dir / "model.safetensors"), "x",
                                  ParseQuantizationConfig(config, "config"));
  EXPECT_EQ(tensor.format.permutation, std::string(GetParam()).find("actorder") != std::string::npos);
  EXPECT_EQ(test::DequantizeAll(tensor), ReadFloats(*file.Find("ref.dequant_fp32")));

  // Our writer gives back the original's own words (always in the second version).
  if (file.metadata().at("checkpoint_format") != "gptq_v2") return;
  const test::TempDir again;
  SafetensorsWriter rewriter(again / "model.safetensors");
  PutTensor(rewriter, "x", tensor, ChooseQuantization({{"x", &tensor}}));
  rewriter.Finish();
  const SafetensorsFile rewritten(again / "model.safetensors");
  for (const char* array : {"qweight", "qzeros", "g_idx"}) {
    EXPECT_EQ(ReadInts<int32_t>(*rewritten.Find(fmt::format("x.{}", array))),
              ReadInts<int32_t>(*file.Find(array)));
  }
  EXPECT_EQ(ReadFloats(*rewritten.Find("x.scales")), ReadFloats(*file.Find("scales")));
}

INSTANTIATE_TEST_SUITE_P(Files, GptqGolden,
                         testing::Values("w3_g32_seq_v1", "w3_g32_seq_v2", "w4_g32_actorder_v1",
                                         "w4_g32_actorder_v2", "w4_g32_seq_v1", "w4_g32_seq_v2",
                                         "w8_g32_seq_v1"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace vqllm
