#include "vq/checkpoint/stored_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "vq/base/error.h"

namespace vqllm {
namespace {

using testing::ElementsAre;

template <typename T>
StoredTensor Stored(StoredType type, const std::vector<T>& values) {
  StoredTensor tensor;
  tensor.type = type;
  tensor.type_name = ToString(type);
  tensor.where = "f: 't'";
  tensor.shape = {static_cast<int64_t>(values.size())};
  // One byte off, as nothing in a file need be aligned.
  std::vector<uint8_t> bytes(1);
  const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
  bytes.insert(bytes.end(), begin, begin + values.size() * sizeof(T));
  tensor.bytes = Bytes::Own(bytes).Slice(1, values.size() * sizeof(T));
  return tensor;
}

TEST(StoredTensor, NamesAndSizesOfTypesGoBothWays) {
  for (int i = 0; i < static_cast<int>(StoredType::kOther); ++i) {
    const auto type = static_cast<StoredType>(i);
    EXPECT_EQ(StoredTypeOf(ToString(type)), type);
    EXPECT_GT(BytesPerElement(type), 0);
  }
  EXPECT_EQ(StoredTypeOf("F8_E4M3"), StoredType::kF8E4M3);
  EXPECT_EQ(BytesPerElement(StoredType::kF8E5M2), 1);
  EXPECT_EQ(StoredTypeOf("f32"), StoredType::kOther);
  EXPECT_EQ(BytesPerElement(StoredType::kOther), 0);
}

TEST(StoredTensor, ReadsFloatsOfEveryWidth) {
  EXPECT_THAT(ReadFloats(Stored<float>(StoredType::kF32, {1.5f, -2})), ElementsAre(1.5f, -2));
  EXPECT_THAT(ReadFloats(Stored<uint16_t>(StoredType::kF16, {0x3e00, 0x0001})), ElementsAre(1.5f, 0x1p-24f));
  EXPECT_THAT(ReadFloats(Stored<uint16_t>(StoredType::kBF16, {0x3fc0})), ElementsAre(1.5f));
  EXPECT_THAT(ReadFloats(Stored<double>(StoredType::kF64, {0.1, 1e300, -1e300})),
              ElementsAre(0.1f, INFINITY, -INFINITY));
  EXPECT_THROW(ReadFloats(Stored<int32_t>(StoredType::kI32, {1})), Error);
}

TEST(StoredTensor, ReadsHalvesAndRefusesOverflow) {
  EXPECT_EQ(ReadHalves(Stored<uint16_t>(StoredType::kF16, {0x7e01}))[0].bits, 0x7e01);
  EXPECT_EQ(ReadHalves(Stored<float>(StoredType::kF32, {0.5f}))[0].bits, 0x3800);
  EXPECT_THROW(ReadHalves(Stored<float>(StoredType::kF32, {1e6f})), Error);
  EXPECT_EQ(ReadHalves(Stored<float>(StoredType::kF32, {INFINITY}))[0].bits, 0x7c00);
}

TEST(StoredTensor, ReadsIntegersOfTheirOwnTypeOnly) {
  EXPECT_THAT(ReadInts<int8_t>(Stored<int8_t>(StoredType::kI8, {-1, 3})), ElementsAre(-1, 3));
  EXPECT_THAT(ReadInts<uint64_t>(Stored<uint64_t>(StoredType::kU64, {UINT64_MAX})), ElementsAre(UINT64_MAX));
  EXPECT_THROW(ReadInts<uint8_t>(Stored<int8_t>(StoredType::kI8, {1})), Error);
}

TEST(StoredTensor, CountsElementsWithoutOverflow) {
  EXPECT_EQ(ElementCount({}), 1);
  EXPECT_EQ(ElementCount({3, 0, 5}), 0);
  EXPECT_EQ(ElementCount({int64_t{1} << 32, int64_t{1} << 31}), -1);
  EXPECT_EQ(ElementCount({-1}), -1);
}

TEST(StoredTensor, QuotesNamesOnOneShortLine) {
  EXPECT_EQ(Quoted("a\nb\xff"), "'a\\x0ab\\xff'");
  EXPECT_EQ(Quoted(std::string(1000, 'x')), "'" + std::string(80, 'x') + "...'");
}

}  // namespace
}  // namespace vqllm
