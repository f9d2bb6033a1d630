#include "vq/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vq/base/error.h"
#include "vq/base/rng.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Tensor Quantized(const std::string& format, int64_t rows, int64_t cols) {
  Rng rng(1);
  std::vector<float> w(static_cast<size_t>(rows * cols));
  for (float& value : w) value = rng.Normal();
  return Quantize(ParseFormat(format), {w.data(), rows, cols}, {}, "w");
}

TEST(Tensor, CodebooksFollowTheScope) {
  const auto count = [](const char* f) { return CodebookCount(ParseFormat(f), 100, 130); };
  EXPECT_EQ(count("VQ<4,4,1>"), 1);
  EXPECT_EQ(count("VQ<4,4,1>-tile32x64"), 4 * 3);
  EXPECT_EQ(count("VQ<4,4,1>-ingroup64"), 3);
  EXPECT_EQ(count("VQ<4,4,1>-head"), 33);
  const auto index = [](const char* f, int64_t row, int64_t col) {
    return CodebookIndex(ParseFormat(f), 100, 130, row, col);
  };
  EXPECT_EQ(index("VQ<4,4,1>-tile32x64", 31, 15), 0);
  EXPECT_EQ(index("VQ<4,4,1>-tile32x64", 31, 16), 1);  // code column 16 begins at column 64
  EXPECT_EQ(index("VQ<4,4,1>-tile32x64", 32, 32), 5);
  EXPECT_EQ(index("VQ<4,4,1>-tile32x64-out", 7, 63), 0);
  EXPECT_EQ(index("VQ<4,4,1>-tile32x64-out", 8, 64), 4);  // code row 8 begins at row 32
  EXPECT_EQ(index("VQ<4,4,1>-ingroup64", 99, 17), 1);
  EXPECT_EQ(index("VQ<4,4,1>-head", 99, 32), 32);
}

TEST(Tensor, StoredBytesAreThoseOfItsMembers) {
  for (const char* name : {"int4-g32", "int4-g64-sym", "int3-g128", "VQ<4,8,1>-tile32x64", "VQ<8,4,4>-g128",
                           "quip-2", "aqlm-2x8"}) {
    const Tensor t = Quantized(name, 48, 130);
    int64_t bytes = 2 * static_cast<int64_t>(t.scales.size());
    for (const PackedCodes& codes : t.codes) bytes += 4 * static_cast<int64_t>(codes.words().size());
    for (const auto& book : t.codebooks) bytes += 2 * static_cast<int64_t>(book.size());
    bytes += (static_cast<int64_t>(t.zeros.size()) * t.format.bits + 7) / 8;  // zeros are packed on disk
    bytes += 4 * static_cast<int64_t>(t.stage_scales.size());
    bytes += static_cast<int64_t>((t.sign_in.size() + 7) / 8 + (t.sign_out.size() + 7) / 8);
    EXPECT_EQ(StoredBytes(t), bytes) << name;
    EXPECT_DOUBLE_EQ(EffectiveBits(t.format, 48, 130), 8.0 * static_cast<double>(bytes) / (48 * 130)) << name;
  }
}

TEST(Tensor, ValidateNamesWhatIsWrong) {
  const auto refused = [](Tensor t, const char* what) {
    EXPECT_THAT([&] { ValidateTensor(t, "layer 3"); },
                ThrowsMessage<Error>(testing::AllOf(HasSubstr("layer 3"), HasSubstr(what))));
  };
  const Tensor table = Quantized("VQ<4,8,2>-g32", 16, 64);
  EXPECT_NO_THROW(ValidateTensor(table, "w"));
  Tensor t = table;
  t.rows = 17;
  refused(t, "codes of stage 0");
  t = table;
  t.codes.pop_back();
  refused(t, "stages of codes");
  t = table;
  t.codebooks[1].pop_back();
  refused(t, "codebook entries");
  t = table;
  t.scales.push_back(Half(1));
  refused(t, "scales");
  t = table;
  t.format.rotation = true;
  refused(t, "input signs");
  t = table;
  t.rows = 0;
  refused(t, "shape");

  Tensor odd = Quantized("VQ<4,8,1>", 16, 64);
  odd.format.entries = {200};
  odd.codebooks[0].resize(200 * 4);
  odd.codes[0] = PackedCodes(16, 16, 8);
  EXPECT_NO_THROW(ValidateTensor(odd, "w"));
  odd.codes[0].Set(3, 5, 200);
  refused(odd, "code [3, 5]");

  Tensor integers = Quantized("int4-g32", 16, 64);
  integers.zeros[5] = 16;
  refused(integers, "zero point");

  Tensor permuted = Quantized("int4-g32-sym", 2, 4);
  permuted.format.permutation = true;
  permuted.permutation = {0, 1, 3, 3};
  refused(permuted, "permutation");
  permuted.permutation = {0, 1, -1, 3};
  refused(permuted, "permutation");
  permuted.permutation = {3, 1, 0, 2};
  EXPECT_NO_THROW(ValidateTensor(permuted, "w"));
}

}  // namespace
}  // namespace vqllm
