#include "vq/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/data.h"
#include "tests/support/random_tensor.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Writes the matrices as one file and its config as text; opens both again.
struct Written {
  test::TempDir dir;
  QuantizationConfig config;
  TensorStore store;

  explicit Written(const std::vector<NamedTensor>& matrices) {
    const QuantizationConfig chosen = ChooseQuantization(matrices);
    SafetensorsWriter writer(dir / "model.safetensors");
    for (const auto& [prefix, tensor] : matrices) PutTensor(writer, prefix, *tensor, chosen);
    writer.Finish();
    if (chosen.method != QuantMethod::kNone) config = ParseQuantizationConfig(ToJson(chosen), "config.json");
    store = TensorStore::OpenFolder(dir.path());
  }
};

/// Writes and reads one matrix, which must come back the same; returns the method.
QuantMethod RoundTrip(const Tensor& tensor) {
  const Written written({{"a.b", &tensor}});
  test::ExpectSameTensor(GetTensor(written.store, "a.b", written.config), tensor);
  return written.config.method;
}

class EveryNamedFormat : public testing::TestWithParam<Format> {};

TEST_P(EveryNamedFormat, ComesBackIdentical) {
  const Format& format = GetParam();
  const QuantMethod method = RoundTrip(test::RandomTensor(format, 64, 256, 1));
  const bool table_of_aqlm = format.name.starts_with("aqlm");
  EXPECT_EQ(method, format.kind == FormatKind::kDense ? QuantMethod::kNone
                    : format.kind == FormatKind::kInt ? QuantMethod::kGptq
                    : table_of_aqlm                   ? QuantMethod::kAqlm
                                                      : QuantMethod::kVqllm);
}

std::vector<Format> FormatsByOwnName() {
  std::vector<Format> formats;
  for (const Format& format : NamedFormats()) {
    // The KV names of formats that weights have, too, come back under the first name of the table.
    if (CanonicalName(format) == format.name) formats.push_back(format);
  }
  return formats;
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryNamedFormat, testing::ValuesIn(FormatsByOwnName()),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

TEST(Weights, TablesOfEveryKindComeBackIdentical) {
  for (const char* text : {"VQ<4,8,1>-tile32x64", "VQ<8,10,2>-ingroup64", "VQ<6,5,3>-g48", "VQ<8,12,1>-out",
                           "VQ<4,3,2>-tile16x10-out", "VQ<7,7,2>-row", "VQ<16,16,1>", "VQ<5,1,8>-head"}) {
    EXPECT_EQ(RoundTrip(test::RandomTensor(ParseFormat(text), 37, 150, 2)), QuantMethod::kVqllm) << text;
  }
}

TEST(Weights, EntryCountsThatAreNoPowerOfTwoComeBackIdentical) {
  for (const int entries : {2, 3, 8, 512, 1000, 1024, 4096, 65536}) {
    Format format = ParseFormat("VQ<4,8,1>");
    format.name = "custom";
    format.entries = {entries, 3};
    // 33 codes a row: rows end in the middle of a word at every width but 32.
    EXPECT_EQ(RoundTrip(test::RandomTensor(format, 5, 131, 3)), QuantMethod::kVqllm) << entries;
  }
}

TEST(Weights, PermutationAffineAndRotationComeBackIdentical) {
  Format format = ParseFormat("VQ<8,8,1>-out");
  format.permutation = true;
  format.input_affine = true;
  EXPECT_EQ(RoundTrip(test::RandomTensor(format, 24, 40, 4)), QuantMethod::kVqllm);
  Tensor lattice = test::RandomTensor(ParseFormat("quip-4"), 40, 72, 5);
  EXPECT_EQ(RoundTrip(lattice), QuantMethod::kVqllm);
  lattice.sign_in[3] = Half(0.7f);  // no unit: stored as a factor
  EXPECT_EQ(RoundTrip(lattice), QuantMethod::kVqllm);
}

TEST(Weights, IntegersThatFillNoWholeWordsGoToOurOwnMethod) {
  EXPECT_EQ(RoundTrip(test::RandomTensor(ParseFormat("int4-g32"), 64, 72, 6)), QuantMethod::kGptq);
  EXPECT_EQ(RoundTrip(test::RandomTensor(ParseFormat("int4-g32"), 64, 70, 6)), QuantMethod::kVqllm);
  EXPECT_EQ(RoundTrip(test::RandomTensor(ParseFormat("int4-g32"), 63, 72, 6)), QuantMethod::kVqllm);
  EXPECT_EQ(RoundTrip(test::RandomTensor(ParseFormat("int3-g64"), 33, 95, 6)), QuantMethod::kVqllm);
}

TEST(Weights, OneOddMatrixTakesTheWholeModelToOurOwnMethod) {
  const Tensor good = test::RandomTensor(ParseFormat("int4-g32"), 64, 64, 7);
  const Tensor odd = test::RandomTensor(ParseFormat("int4-g32"), 60, 33, 8);
  const Written written({{"good", &good}, {"odd", &odd}});
  EXPECT_EQ(written.config.method, QuantMethod::kVqllm);
  test::ExpectSameTensor(GetTensor(written.store, "good", written.config), good);
  test::ExpectSameTensor(GetTensor(written.store, "odd", written.config), odd);
}

TEST(Weights, MatricesOfSeveralFormatsAndDenseOnesLiveTogether) {
  const Tensor table = test::RandomTensor(ParseFormat("VQ<4,8,1>"), 32, 64, 9);
  const Tensor integer = test::RandomTensor(ParseFormat("int3-g64"), 32, 64, 10);
  const Tensor dense = test::RandomTensor(ParseFormat("bf16"), 10, 64, 11);
  const Written written({{"lm_head", &dense}, {"x.table", &table}, {"x.integer", &integer}});
  test::ExpectSameTensor(GetTensor(written.store, "x.table", written.config), table);
  test::ExpectSameTensor(GetTensor(written.store, "x.integer", written.config), integer);
  test::ExpectSameTensor(GetTensor(written.store, "lm_head", written.config), dense);
}

TEST(Weights, AqlmNamesTheDenseMatricesForOtherReaders) {
  const Tensor table = test::RandomTensor(ParseFormat("aqlm-2x8"), 32, 64, 9);
  const Tensor dense = test::RandomTensor(ParseFormat("fp16"), 10, 64, 11);
  const QuantizationConfig config = ChooseQuantization({{"x", &table}, {"lm_head", &dense}});
  EXPECT_THAT(ToJson(config), HasSubstr(R"("linear_weights_not_to_quantize":["lm_head.weight"])"));
}

TEST(Weights, DenseMatricesShareTheMappedFile) {
  const Tensor dense = test::RandomTensor(ParseFormat("fp16"), 10, 64, 12);
  const Written written({{"x", &dense}});
  EXPECT_EQ(GetTensor(written.store, "x", {}).values.data(), written.store.Get("x.weight").bytes.data());
}

std::string Refusal(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config) {
  try {
    GetTensor(store, prefix, config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Weights, ListsEverythingThatAMatrixLacks) {
  const Tensor table = test::RandomTensor(ParseFormat("VQ<4,8,2>-g32"), 32, 64, 13);
  const Written written({{"x", &table}});
  EXPECT_THAT(MissingArrays(written.store, "x", written.config), IsEmpty());
  EXPECT_THAT(MissingArrays(written.store, "y", written.config),
              ElementsAre("y.shape", "y.codes.0", "y.codebooks.0", "y.codes.1", "y.codebooks.1", "y.scales"));
  EXPECT_THAT(Refusal(written.store, "y", written.config), HasSubstr("6 tensors are missing: 'y.shape'"));
  EXPECT_THAT(Refusal(written.store, "y", {}), HasSubstr("'y.weight'"));
}

TEST(Weights, RefusesAMatrixThatIsThereTwice) {
  const test::TempDir dir;
  const Tensor integer = test::RandomTensor(ParseFormat("int4-g32"), 64, 64, 14);
  const QuantizationConfig config = ChooseQuantization({{"x", &integer}});
  SafetensorsWriter writer(dir / "model.safetensors");
  PutTensor(writer, "x", integer, config);
  writer.Add("x.weight", {1, 1}, std::vector<float>{1});
  writer.Finish();
  EXPECT_THAT(Refusal(TensorStore::OpenFolder(dir.path()), "x", config), HasSubstr("also quantised"));
}

TEST(Weights, RefusesDenseMatricesOfOtherTypesAndRanks) {
  const test::TempDir dir;
  SafetensorsWriter writer(dir / "model.safetensors");
  writer.Add("bytes.weight", StoredType::kI8, {1, 1}, Bytes::Own(std::vector<int8_t>{1}));
  writer.Add("vector.weight", {4}, std::vector<float>(4));
  writer.Add("empty.weight", {int64_t{1} << 40, 0}, std::vector<float>());
  writer.Finish();
  const TensorStore store = TensorStore::OpenFolder(dir.path());
  EXPECT_THAT(Refusal(store, "bytes", {}), HasSubstr("found type 'I8'"));
  EXPECT_THAT(Refusal(store, "vector", {}), HasSubstr("found shape [4]"));
  EXPECT_THAT(Refusal(store, "empty", {}), HasSubstr("at least 1 x 1"));
}

}  // namespace
}  // namespace vqllm
