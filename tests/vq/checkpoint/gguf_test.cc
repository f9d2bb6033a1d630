#include "vq/checkpoint/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/data.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Puts a GGUF file together piece by piece, right or wrong.
class Builder {
 public:
  explicit Builder(uint64_t tensors, uint64_t values, uint32_t version = 3) {
    bytes_ = {'G', 'G', 'U', 'F'};
    Put(version).Put(tensors).Put(values);
  }
  template <typename T>
  Builder& Put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  Builder& Text(const std::string& text) {
    Put<uint64_t>(text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    return *this;
  }
  Builder& Key(const std::string& key, GgufType type) { return Text(key).Put(static_cast<uint32_t>(type)); }
  Builder& Tensor(const std::string& name, const std::vector<uint64_t>& shape, uint32_t type,
                  uint64_t offset) {
    Text(name).Put(static_cast<uint32_t>(shape.size()));
    for (const uint64_t size : shape) Put(size);
    return Put(type).Put(offset);
  }
  Builder& Data(size_t size, size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    bytes_.resize(bytes_.size() + size, 1);
    return *this;
  }
  GgufFile Open() const { return GgufFile(Bytes::Own(bytes_), "f"); }
  std::string Refusal() const {
    try {
      Open();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

Builder EveryKind() {
  Builder b(0, 16);
  b.Key("u8", GgufType::kU8).Put<uint8_t>(200);
  b.Key("i8", GgufType::kI8).Put<int8_t>(-3);
  b.Key("u16", GgufType::kU16).Put<uint16_t>(60000);
  b.Key("i16", GgufType::kI16).Put<int16_t>(-300);
  b.Key("u32", GgufType::kU32).Put<uint32_t>(4000000000u);
  b.Key("i32", GgufType::kI32).Put<int32_t>(-70000);
  b.Key("f32", GgufType::kF32).Put(1.5f);
  b.Key("bool", GgufType::kBool).Put<uint8_t>(1);
  b.Key("string", GgufType::kString).Text("llama");
  b.Key("u64", GgufType::kU64).Put<uint64_t>(UINT64_MAX);
  b.Key("i64", GgufType::kI64).Put<int64_t>(INT64_MIN);
  b.Key("f64", GgufType::kF64).Put(0.1);
  b.Key("floats", GgufType::kArray).Put(GgufType::kF32).Put<uint64_t>(2).Put(0.5f).Put(-1.0f);
  b.Key("ints", GgufType::kArray).Put(GgufType::kI16).Put<uint64_t>(2).Put<int16_t>(7).Put<int16_t>(-8);
  b.Key("texts", GgufType::kArray).Put(GgufType::kString).Put<uint64_t>(3).Text("a").Text("").Text("ccc");
  b.Key("nested", GgufType::kArray).Put(GgufType::kArray).Put<uint64_t>(2);
  b.Put(GgufType::kU8).Put<uint64_t>(1).Put<uint8_t>(9).Put(GgufType::kString).Put<uint64_t>(1).Text("x");
  return b;
}

TEST(Gguf, ReadsEveryKindOfMetadata) {
  const GgufFile file = EveryKind().Open();
  EXPECT_EQ(file.version(), 3);
  EXPECT_EQ(file.Keys().size(), 16u);
  EXPECT_EQ(file.Int("u8", 0, 255), 200);
  EXPECT_EQ(file.Int("i8", -128, 127), -3);
  EXPECT_EQ(file.Int("u16", 0, 65535), 60000);
  EXPECT_EQ(file.Int("i16", -1000, 0), -300);
  EXPECT_EQ(file.Int("u32", 0, INT64_MAX), 4000000000);
  EXPECT_EQ(file.Int("i32", -100000, 0), -70000);
  EXPECT_EQ(file.Int("i64", INT64_MIN, 0), INT64_MIN);
  EXPECT_EQ(file.Number("f32"), 1.5);
  EXPECT_EQ(file.Number("f64"), 0.1);
  EXPECT_EQ(file.Number("u8"), 200);
  EXPECT_TRUE(file.BoolOr("bool", false));
  EXPECT_EQ(file.String("string"), "llama");
  EXPECT_THAT(file.Floats("floats"), ElementsAre(0.5f, -1.0f));
  EXPECT_THAT(file.Ints("ints"), ElementsAre(7, -8));
  EXPECT_THAT(file.Strings("texts"), ElementsAre("a", "", "ccc"));
  EXPECT_TRUE(file.IsArray("nested"));
  EXPECT_FALSE(file.IsArray("u8"));
}

TEST(Gguf, AbsentKeysTakeTheDefaultOrAreNamed) {
  const GgufFile file = EveryKind().Open();
  EXPECT_EQ(file.IntOr("no", 0, 1, 42), 42);
  EXPECT_EQ(file.NumberOr("no", 0.5), 0.5);
  EXPECT_TRUE(file.BoolOr("no", true));
  EXPECT_EQ(file.StringOr("no", "x"), "x");
  EXPECT_THROW(file.Int("no", 0, 1), Error);
  EXPECT_THROW(file.Strings("no"), Error);
}

TEST(Gguf, RefusesValuesOfAnotherTypeOrOutOfRange) {
  const GgufFile file = EveryKind().Open();
  EXPECT_THROW(file.Int("u8", 0, 100), Error);
  EXPECT_THROW(file.Int("u64", 0, INT64_MAX), Error);  // 2^64 - 1
  EXPECT_THROW(file.Int("f32", 0, 100), Error);
  EXPECT_THROW(file.Int("ints", 0, 100), Error);
  EXPECT_THROW(file.Number("string"), Error);
  EXPECT_THROW(file.BoolOr("u8", false), Error);
  EXPECT_THROW(file.String("u8"), Error);
  EXPECT_THROW(file.Strings("floats"), Error);
  EXPECT_THROW(file.Floats("ints"), Error);
  EXPECT_THROW(file.Ints("texts"), Error);
  EXPECT_THROW(file.Ints("u8"), Error);
  EXPECT_THROW(file.Strings("nested"), Error);
}

TEST(Gguf, RefusesNumbersThatAreNotFinite) {
  Builder b(0, 2);
  b.Key("nan", GgufType::kF32).Put(std::nanf(""));
  b.Key("list", GgufType::kArray).Put(GgufType::kF64).Put<uint64_t>(1).Put(1e300);
  const GgufFile file = b.Open();
  EXPECT_THROW(file.Number("nan"), Error);
  EXPECT_THROW(file.Floats("list"), Error);
}

TEST(Gguf, RefusesEveryTruncationInsideTheHeader) {
  Builder b = EveryKind();
  for (size_t size = 0; size < b.bytes().size(); ++size) {
    EXPECT_THROW(GgufFile(Bytes::Own(b.bytes()).Slice(0, size), "f"), Error) << size;
  }
}

TEST(Gguf, RefusesForeignMagicVersionAndByteOrder) {
  EXPECT_THAT(Builder(0, 0, 1).Refusal(), HasSubstr("GGUF version: found 1"));
  EXPECT_THAT(Builder(0, 0, 4).Refusal(), HasSubstr("GGUF version: found 4"));
  EXPECT_THAT(Builder(0, 0, 0x03000000).Refusal(), HasSubstr("big-endian"));
  EXPECT_EQ(Builder(0, 0, 2).Refusal(), "");
  std::vector<uint8_t> other = Builder(0, 0).bytes();
  other[0] = 'X';
  EXPECT_THROW(GgufFile(Bytes::Own(other), "f"), Error);
}

TEST(Gguf, RefusesHostileCountsAtOnce) {
  EXPECT_THAT(Builder(UINT64_MAX, 0).Refusal(), HasSubstr("at byte 24"));
  EXPECT_THAT(Builder(0, UINT64_MAX).Refusal(), HasSubstr("at byte 24"));
  EXPECT_THAT(Builder(0, 1).Put<uint64_t>(UINT64_MAX).Refusal(),
              HasSubstr("key of 18446744073709551615 bytes"));
  for (const GgufType type : {GgufType::kU8, GgufType::kF64, GgufType::kString, GgufType::kArray}) {
    Builder b(0, 1);
    b.Key("k", GgufType::kArray).Put(type).Put<uint64_t>(UINT64_MAX / 4);
    EXPECT_NE(b.Refusal(), "") << ToString(type);
  }
}

TEST(Gguf, RefusesUnknownValueTypesAndDeepNesting) {
  EXPECT_THAT(Builder(0, 1).Text("k").Put<uint32_t>(13).Refusal(), HasSubstr("value type: found 13"));
  Builder deep(0, 1);
  deep.Key("k", GgufType::kArray);
  for (int i = 0; i < 100; ++i) deep.Put(GgufType::kArray).Put<uint64_t>(1);
  EXPECT_THAT(deep.Refusal(), HasSubstr("nested deeper"));
}

TEST(Gguf, RefusesBoolsThatAreNeither) {
  EXPECT_THAT(Builder(0, 1).Key("k", GgufType::kBool).Put<uint8_t>(2).Refusal(), HasSubstr("bool: found 2"));
}

TEST(Gguf, RefusesKeysAndTensorsThatComeTwice) {
  Builder keys(0, 2);
  keys.Key("k", GgufType::kU8).Put<uint8_t>(1).Key("k", GgufType::kU8).Put<uint8_t>(1);
  EXPECT_THAT(keys.Refusal(), HasSubstr("key 'k' comes twice"));
  Builder tensors(2, 0);
  tensors.Tensor("t", {1}, kGgmlF32, 0).Tensor("t", {1}, kGgmlF32, 32).Data(36);
  EXPECT_THAT(tensors.Refusal(), HasSubstr("'t': comes twice"));
}

TEST(Gguf, ReversesShapesAndFindsBytes) {
  Builder b(2, 0);
  b.Tensor("m", {3, 2}, kGgmlF32, 0).Tensor("v", {4}, kGgmlF16, 32).Data(40);
  const GgufFile file = b.Open();
  EXPECT_THAT(file.Get("m").shape, ElementsAre(2, 3));
  EXPECT_EQ(file.Get("m").bytes.size(), 24u);
  EXPECT_EQ(file.Get("v").bytes.size(), 8u);
  EXPECT_EQ(file.Get("v").bytes.data() - file.Get("m").bytes.data(), 32);
  EXPECT_THROW(file.Get("x"), Error);
}

TEST(Gguf, RefusesTensorsThatLeaveTheFile) {
  EXPECT_THAT(Builder(1, 0).Tensor("t", {8}, kGgmlF32, 0).Data(31).Refusal(),
              HasSubstr("does not fit in the 31 bytes"));
  EXPECT_EQ(Builder(1, 0).Tensor("t", {8}, kGgmlF32, 0).Data(32).Refusal(), "");
  EXPECT_THAT(Builder(1, 0).Tensor("t", {1}, kGgmlF32, 64).Data(32).Refusal(), HasSubstr("offset: found 64"));
  EXPECT_THAT(Builder(1, 0).Tensor("t", {1}, kGgmlF32, UINT64_MAX - 31).Data(32).Refusal(),
              HasSubstr("offset"));
  EXPECT_THAT(Builder(1, 0).Tensor("t", {1}, kGgmlF32, 4).Data(32).Refusal(), HasSubstr("multiples of 32"));
}

TEST(Gguf, RefusesShapesThatOverflow) {
  const uint64_t big = uint64_t{1} << 32;
  EXPECT_THAT(Builder(1, 0).Tensor("t", {big, big}, kGgmlF32, 0).Data(32).Refusal(),
              HasSubstr("does not fit"));
  EXPECT_THAT(Builder(1, 0).Tensor("t", {uint64_t{1} << 62}, kGgmlF32, 0).Data(32).Refusal(),
              HasSubstr("does not fit"));
  EXPECT_THAT(Builder(1, 0).Tensor("t", {UINT64_MAX}, kGgmlF32, 0).Data(32).Refusal(), HasSubstr("63 bits"));
  EXPECT_THAT(Builder(1, 0).Tensor("t", {1, 1, 1, 1, 1}, kGgmlF32, 0).Data(32).Refusal(),
              HasSubstr("dimensions"));
}

TEST(Gguf, RefusesRowsThatAreNoWholeBlocks) {
  EXPECT_THAT(Builder(1, 0).Tensor("t", {33, 2}, kGgmlQ8_0, 0).Data(100).Refusal(),
              HasSubstr("multiples of 32 for Q8_0"));
}

TEST(Gguf, RefusesOverlap) {
  Builder b(2, 0);
  b.Tensor("a", {16}, kGgmlF32, 0).Tensor("b", {8}, kGgmlF32, 32).Data(64);
  EXPECT_THAT(b.Refusal(), HasSubstr("'b': overlaps tensor 'a'"));
}

TEST(Gguf, HonoursItsAlignment) {
  const auto aligned_to = [](uint32_t alignment) {
    Builder b(2, 1);
    b.Key("general.alignment", GgufType::kU32).Put(alignment);
    b.Tensor("a", {1}, kGgmlF32, 0).Tensor("b", {1}, kGgmlF32, 64).Data(68, 64);
    return b.Refusal();
  };
  EXPECT_EQ(aligned_to(64), "");
  EXPECT_THAT(aligned_to(0), HasSubstr("general.alignment"));
  EXPECT_THAT(aligned_to(48), HasSubstr("powers of two"));
  EXPECT_THAT(aligned_to(0x80000000u), HasSubstr("general.alignment"));
}

TEST(Gguf, ReadsTheVocabularyFilesOfLlamaCpp) {
  VQLLM_NEED_DATA("tokenizers/ggml-vocab-llama-spm.gguf");
  const GgufFile file(test::DataDir() / "tokenizers" / "ggml-vocab-llama-spm.gguf");
  EXPECT_EQ(file.String("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(file.Strings("tokenizer.ggml.tokens").size(), 32000u);
  EXPECT_EQ(file.Floats("tokenizer.ggml.scores").size(), 32000u);
  EXPECT_EQ(file.Ints("tokenizer.ggml.token_type").size(), 32000u);
  EXPECT_EQ(file.Strings("tokenizer.ggml.tokens")[2], "</s>");
}

}  // namespace
}  // namespace vqllm
