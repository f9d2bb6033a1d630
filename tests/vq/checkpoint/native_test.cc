#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/data.h"
#include "tests/support/random_tensor.h"
#include "vq/base/error.h"
#include "vq/checkpoint/weights.h"

namespace vqllm {
namespace {

using testing::HasSubstr;

/// A change to one array of a file.
using Change = std::function<void(std::vector<int64_t>& shape, std::vector<uint8_t>& bytes)>;

/// What reading `tensor` says once `change` was made to array `name` of its file; empty where it reads.
std::string RefusalAfter(const Tensor& tensor, const std::string& name, const Change& change) {
  const test::TempDir dir;
  const QuantizationConfig config = ChooseQuantization({{"x", &tensor}});
  EXPECT_EQ(config.method, QuantMethod::kVqllm);
  SafetensorsWriter writer(dir / "good.safetensors");
  PutTensor(writer, "x", tensor, config);
  writer.Finish();
  const SafetensorsFile good(dir / "good.safetensors");
  SafetensorsWriter changed(dir / "changed.safetensors");
  bool found = false;
  for (const StoredTensor& array : good.tensors()) {
    std::vector<int64_t> shape = array.shape;
    std::vector<uint8_t> bytes(array.bytes.data(), array.bytes.data() + array.bytes.size());
    if (array.name == "x." + name) {
      found = true;
      change(shape, bytes);
    }
    changed.Add(array.name, array.type, shape, Bytes::Own(bytes));
  }
  EXPECT_TRUE(found) << name;
  changed.Finish();
  try {
    GetTensor(TensorStore::OpenFile(dir / "changed.safetensors"), "x", config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

template <typename T>
void Set(std::vector<uint8_t>& bytes, size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

Tensor Table(int entries = 16) {
  Format format = ParseFormat("VQ<4,4,1>-tile16x16");
  format.name = "custom";
  format.entries = {entries};
  return test::RandomTensor(format, 20, 30, 1);  // 8 codes a row: one whole word of 4-bit codes
}

TEST(NativeMethod, RefusesSizesThatAreNoSizes) {
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, INT64_MAX}) {
    EXPECT_THAT(RefusalAfter(Table(), "shape", [&](auto&, auto& bytes) { Set(bytes, 1, size); }),
                HasSubstr("allowed: sizes from 1 to 2147483647"));
  }
}

TEST(NativeMethod, RefusesSizesThatTheArraysDoNotHave) {
  EXPECT_THAT(RefusalAfter(Table(), "shape", [](auto&, auto& bytes) { Set<int64_t>(bytes, 0, 21); }),
              HasSubstr("'x.codes.0': found shape [20, 1], allowed: [21, 1]"));
  EXPECT_THAT(RefusalAfter(Table(), "shape", [](auto&, auto& bytes) { Set<int64_t>(bytes, 1, INT32_MAX); }),
              HasSubstr("'x.codes.0'"));
  EXPECT_THAT(RefusalAfter(Table(), "codebooks.0", [](auto& shape, auto&) { std::swap(shape[0], shape[1]); }),
              HasSubstr("'x.codebooks.0': found shape [16, 4, 4], allowed: [4, 16, 4]"));
}

TEST(NativeMethod, RefusesCodesBehindTheCodebook) {
  EXPECT_THAT(
      RefusalAfter(Table(15), "codes.0", [](auto&, auto& bytes) { Set<uint32_t>(bytes, 3, 0x000f0000); }),
      HasSubstr("code [3, 4] of stage 0: found 15, allowed: 0 to 14"));
}

TEST(NativeMethod, RefusesBitsBehindTheLastCodeOfARow) {
  const Tensor tensor =
      test::RandomTensor(ParseFormat("VQ<4,4,1>-tile16x16"), 20, 24, 2);  // 6 codes, 24 of 32 bits
  EXPECT_EQ(RefusalAfter(tensor, "codes.0", [](auto&, auto&) {}), "");
  EXPECT_THAT(
      RefusalAfter(tensor, "codes.0", [](auto&, auto& bytes) { Set<uint32_t>(bytes, 7, 0x01000000); }),
      HasSubstr("'x.codes.0': row 7: bits behind the last code"));
}

TEST(NativeMethod, RefusesPermutationsThatAreNone) {
  Format format = ParseFormat("VQ<8,8,1>-out");
  format.permutation = true;
  const Tensor tensor = test::RandomTensor(format, 24, 40, 3);
  for (const int32_t column : {-1, 40, INT32_MIN, tensor.permutation[1]}) {
    EXPECT_THAT(RefusalAfter(tensor, "permutation", [&](auto&, auto& bytes) { Set(bytes, 0, column); }),
                HasSubstr("permutation: found column"));
  }
}

TEST(NativeMethod, RefusesScalesZerosAndSignsOfOtherSizes) {
  const Tensor integers = test::RandomTensor(ParseFormat("int3-g64"), 33, 95, 4);
  const Change grow_rows = [](auto& shape, auto& bytes) {
    bytes.resize(bytes.size() / static_cast<size_t>(shape[0]) * static_cast<size_t>(shape[0] + 1));
    ++shape[0];
  };
  EXPECT_THAT(RefusalAfter(integers, "scales", grow_rows), HasSubstr("'x.scales': found shape [34, 2]"));
  EXPECT_THAT(RefusalAfter(integers, "zeros", grow_rows), HasSubstr("'x.zeros'"));
  const Tensor lattice = test::RandomTensor(ParseFormat("quip-4"), 40, 72, 5);
  EXPECT_THAT(RefusalAfter(lattice, "sign_in", grow_rows),
              HasSubstr("'x.sign_in': found shape [10], allowed: [9]"));
  EXPECT_THAT(RefusalAfter(lattice, "stage_scales", grow_rows), HasSubstr("'x.stage_scales'"));
}

}  // namespace
}  // namespace vqllm
