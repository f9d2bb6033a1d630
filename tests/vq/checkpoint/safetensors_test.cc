#include "vq/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

using testing::HasSubstr;

/// A file of this header and that many bytes of data.
Bytes FileOf(const std::string& header, size_t data_bytes, int64_t length = -1) {
  std::vector<uint8_t> file(8 + header.size() + data_bytes);
  const uint64_t stated = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::memcpy(file.data(), &stated, 8);
  std::memcpy(file.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) file[8 + header.size() + i] = static_cast<uint8_t>(i + 1);
  return Bytes::Own(file);
}

SafetensorsFile Open(const std::string& header, size_t data_bytes) {
  return SafetensorsFile(FileOf(header, data_bytes), "f");
}

/// The message of the Error that opening throws; empty where it opens.
std::string Refusal(const Bytes& file) {
  try {
    SafetensorsFile opened(file, "f");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
std::string Refusal(const std::string& header, size_t data_bytes) {
  return Refusal(FileOf(header, data_bytes));
}

constexpr char kGood[] =
    R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"F16","shape":[3],"data_offsets":[16,22]}})";

TEST(Safetensors, FindsTensorsAndTheirBytes) {
  const SafetensorsFile file = Open(kGood, 22);
  ASSERT_EQ(file.tensors().size(), 2u);
  const StoredTensor* b = file.Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, StoredType::kF16);
  EXPECT_EQ(b->shape, std::vector<int64_t>{3});
  EXPECT_EQ(b->bytes.size(), 6u);
  EXPECT_EQ(b->bytes.data()[0], 17);
  EXPECT_EQ(file.Find("c"), nullptr);
}

// Case I03, from here to LoadsLegalOddities and RefusesEveryTruncationOfAFile.
TEST(Safetensors, RefusesAnEndBehindTheFile) {
  EXPECT_THAT(Refusal(kGood, 21), HasSubstr("f: 'b': data_offsets: found [16, 22]"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4000000]}})", 4),
              HasSubstr("data_offsets"));
}

TEST(Safetensors, RefusesBeginBehindEnd) {
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[2,0]}})", 2),
              HasSubstr("begin <= end"));
}

TEST(Safetensors, RefusesNegativeFractionalAndHugeOffsets) {
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[-2,0]}})", 2),
              HasSubstr("found '-2'"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2.5]}})", 2),
              HasSubstr("found '2.5'"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,18446744073709551616]}})", 2),
              HasSubstr("found '18446744073709551616'"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1,2]}})", 2),
              HasSubstr("[begin, end]"));
}

TEST(Safetensors, RefusesOverlap) {
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                      R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                      6),
              HasSubstr("'b': begins at 2, but the tensor before it ends at 4"));
}

TEST(Safetensors, RefusesHolesAtFrontMiddleAndEnd) {
  const std::string two = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                          R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})";
  EXPECT_THAT(Refusal(two, 5), HasSubstr("'b': begins at 3, which leaves a hole of 1 bytes"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3), HasSubstr("hole"));
  EXPECT_THAT(Refusal(kGood, 23), HasSubstr("23 bytes of data, but the tensors take 22"));
}

TEST(Safetensors, RefusesShapesThatDoNotMatchTheBytes) {
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}})", 4),
              HasSubstr("shape [1000, 1000] of F32 takes 4000000 bytes, but data_offsets span 4"));
}

TEST(Safetensors, RefusesShapesWhoseProductOverflows) {
  // 2^32 * 2^32 = 2^64 wraps to 0 elements and 0 bytes.
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
              HasSubstr("does not fit in 63 bits"));
  // 2^61 elements fit, their 2^63 bytes do not.
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"F32","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0),
              HasSubstr("does not fit in 63 bits"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0),
              HasSubstr("shape: found 18446744073709551615"));
}

TEST(Safetensors, RefusesHeaderLengthsBeyondFileAndLimit) {
  EXPECT_THAT(Refusal(FileOf("{}", 0, INT64_MAX)), HasSubstr("header length"));
  std::vector<uint8_t> huge(16);
  huge[7] = 0x80;  // 2^63
  EXPECT_THAT(Refusal(Bytes::Own(huge)), HasSubstr("header length: found 9223372036854775808"));
  EXPECT_THAT(Refusal(FileOf("{}", 0, 3)), HasSubstr("header length: found 3"));
  EXPECT_THAT(Refusal(Bytes::Own(std::vector<uint8_t>(7))), HasSubstr("too short"));
  EXPECT_THAT(Refusal(Bytes()), HasSubstr("0 bytes, too short"));
}

TEST(Safetensors, RefusesHeadersThatAreNotUtf8OrNotJson) {
  EXPECT_THAT(Refusal("{\"\xff\":1}", 0), HasSubstr("UTF-8"));
  EXPECT_THAT(Refusal(R"({"a":)", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(Refusal(" {}", 0), HasSubstr("a JSON object"));
  EXPECT_THAT(Refusal("[]", 0), HasSubstr("a JSON object"));
  EXPECT_THAT(Refusal("{} x", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(Refusal("", 0), HasSubstr("a JSON object"));
}

TEST(Safetensors, ChecksTheBoundsOfUnknownTypesAndRefusesToReadThem) {
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"F4_NEW","shape":[9],"data_offsets":[0,9]}})", 5),
              HasSubstr("data_offsets"));
  const SafetensorsFile file = Open(R"({"a":{"dtype":"F4_NEW","shape":[9],"data_offsets":[0,5]}})", 5);
  EXPECT_EQ(file.Find("a")->type, StoredType::kOther);
  EXPECT_THROW(ReadFloats(*file.Find("a")), Error);
}

TEST(Safetensors, RefusesNamesAndFieldsThatComeTwice) {
  const std::string a = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(Refusal("{" + a + "," + a + "}", 0), HasSubstr("'a' comes twice"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
              HasSubstr("'a': dtype comes twice"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{},"__metadata__":{}})", 0), HasSubstr("__metadata__ comes twice"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"k":"1","k":"2"}})", 0), HasSubstr("'k' comes twice"));
}

TEST(Safetensors, RefusesIncompleteAndMisshapenEntries) {
  EXPECT_THAT(Refusal(R"({"a":{"shape":[0],"data_offsets":[0,0]}})", 0), HasSubstr("'a': dtype is missing"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0), HasSubstr("shape is missing"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[0]}})", 0), HasSubstr("data_offsets is missing"));
  EXPECT_THAT(Refusal(R"({"a":7})", 0), HasSubstr("found '7'"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":["U8"],"shape":[0],"data_offsets":[0,0]}})", 0), HasSubstr("a list"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[[0]],"data_offsets":[0,0]}})", 0), HasSubstr("a list"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[null],"data_offsets":[0,0]}})", 0), HasSubstr("null"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"b":{}}})", 0),
              HasSubstr("an object"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"k":1}})", 0), HasSubstr("strings"));
}

TEST(Safetensors, NestsNoDeeperThanItsOwnShape) {
  const std::string deep = R"({"a":)" + std::string(100000, '[');
  EXPECT_THAT(Refusal(deep, 0), HasSubstr("a list"));
}

TEST(Safetensors, LoadsLegalOddities) {
  EXPECT_TRUE(Open(R"({"__metadata__":{"format":"pt"}})", 0).tensors().empty());
  EXPECT_EQ(Open(R"({"__metadata__":{"format":"pt"}})", 0).metadata().at("format"), "pt");
  EXPECT_TRUE(Open("{}", 0).tensors().empty());
  EXPECT_EQ(Open(std::string(kGood) + "      ", 22).tensors().size(), 2u);
  const SafetensorsFile empty = Open(R"({"b":{"dtype":"F32","shape":[4,0,2],"data_offsets":[4,4]},)"
                                     R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                                     4);
  EXPECT_EQ(empty.Find("a")->elements(), 1);
  EXPECT_EQ(empty.Find("b")->elements(), 0);
  EXPECT_TRUE(ReadFloats(*empty.Find("b")).empty());
}

TEST(Safetensors, RefusesEveryTruncationOfAFile) {
  const Bytes whole = FileOf(kGood, 22);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(Refusal(whole.Slice(0, size)), "") << size;
  }
  EXPECT_EQ(Refusal(whole), "");
}

TEST(Safetensors, NamesTheFileThatCannotBeOpened) {
  const test::TempDir dir;
  EXPECT_THROW(SafetensorsFile(dir / "absent.safetensors"), Error);
  WriteFileAtomically(dir / "short.safetensors", "abc");
  try {
    SafetensorsFile file(dir / "short.safetensors");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("short.safetensors"));
  }
}

TEST(Safetensors, ReadsTheSameModelInThreeTypes) {
  VQLLM_NEED_DATA("stories260K/f32/model.safetensors");
  const auto folder = test::DataDir() / "stories260K";
  const SafetensorsFile f32(folder / "f32" / "model.safetensors");
  const SafetensorsFile f16(folder / "f16" / "model.safetensors");
  const SafetensorsFile bf16(folder / "bf16" / "model.safetensors");
  ASSERT_EQ(f32.tensors().size(), f16.tensors().size());
  for (const StoredTensor& tensor : f32.tensors()) {
    const std::vector<float> exact = ReadFloats(tensor);
    const std::vector<float> half = ReadFloats(*f16.Find(tensor.name));
    const std::vector<float> bfloat = ReadFloats(*bf16.Find(tensor.name));
    ASSERT_EQ(exact.size(), half.size());
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_EQ(half[i], static_cast<float>(Half(exact[i]))) << tensor.name;
      ASSERT_EQ(bfloat[i], static_cast<float>(BFloat16(exact[i]))) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace vqllm
