#include "codegen/kv/layout.h"

#include <gmock/gmock.h>

#include "kernels/cpu/kv_codec.h"
#include "vq/base/error.h"
#include "vq/base/rng.h"

namespace vqllm {
namespace {

constexpr const char* kInt4Groups20 =
    R"({"name":"int4-g20-sym","kind":"int","bits":4,"symmetric":true,"scale":"group","group":20})";

struct Case {
  const char* format;
  int head_dim;
};

class KvLayouts : public testing::TestWithParam<Case> {};

KvToken RandomToken(const KvSideLayout& layout, Rng& rng) {
  const Format& f = layout.format;
  KvToken token;
  if (f.kind == FormatKind::kTable) {
    for (int unit = 0; unit < layout.units; ++unit) {
      for (const int entries : f.entries)
        token.codes.push_back(static_cast<uint32_t>(rng.Below(static_cast<uint64_t>(entries))));
    }
    return token;
  }
  const uint64_t codes = f.kind == FormatKind::kInt ? uint64_t{1} << f.bits : uint64_t{1} << 16;
  for (int c = 0; c < layout.head_dim; ++c) token.codes.push_back(static_cast<uint32_t>(rng.Below(codes)));
  for (int g = 0; g < layout.groups; ++g) {
    token.scales.push_back(static_cast<uint16_t>(rng.Below(0x7c00)));
    if (!f.symmetric) token.offsets.push_back(static_cast<uint16_t>(rng.Below(0x7c00)));
  }
  return token;
}

TEST_P(KvLayouts, PackedTokensComeBack) {
  const KvSideLayout layout = MakeKvSideLayout(ParseFormat(GetParam().format), GetParam().head_dim);
  EXPECT_LE(layout.slices, 32) << "a warp has a lane for each slice";
  EXPECT_GE(layout.slices * layout.slice_units, layout.units);
  EXPECT_EQ(layout.UnitChannel(0, 0), 0);
  Rng rng(3);
  std::vector<uint32_t> record(static_cast<size_t>(layout.RecordWords()), 0xdeadbeef);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const KvToken token = RandomToken(layout, rng);
    PackKvToken(layout, token, record);
    const KvToken back = UnpackKvToken(layout, record);
    EXPECT_EQ(back.codes, token.codes);
    EXPECT_EQ(back.scales, token.scales);
    EXPECT_EQ(back.offsets, token.offsets);
  }
}

cpu::KvSide Side(const Format& f, int kv_heads, int head_dim) {
  cpu::KvSide side;
  side.format = f;
  Rng rng(5);
  for (const int entries : f.entries) {
    std::vector<Half>& book = side.codebooks.emplace_back();
    for (int i = 0; i < kv_heads * head_dim * entries; ++i) book.push_back(Half(rng.Normal()));
  }
  return side;
}

TEST_P(KvLayouts, RecordsOfTheCpuMeanTheSame) {
  const int d = GetParam().head_dim;
  const Format f = ParseFormat(GetParam().format);
  const KvSideLayout layout = MakeKvSideLayout(f, d);
  const cpu::KvSide side = Side(f, 2, d);
  const auto codec = cpu::MakeKvCodec(side, 2, d);
  Rng rng(7);
  std::vector<float> x;
  for (int c = 0; c < d; ++c) x.push_back(rng.Normal());
  std::vector<uint16_t> bytes(static_cast<size_t>(codec->bytes() + 1) / 2);  // halves stand at even addresses
  uint8_t* record = reinterpret_cast<uint8_t*>(bytes.data());
  for (int head = 0; head < 2; ++head) {
    codec->Encode({x.data(), 1, d}, head, &record);
    std::vector<float> decoded(x.size());
    codec->Decode(&record, 1, head, {decoded.data(), 1, d});
    const KvToken token = FromCpuRecord(layout, record);
    std::vector<uint32_t> words(static_cast<size_t>(layout.RecordWords()));
    PackKvToken(layout, token, words);
    const std::vector<float> ours = DecodeKvToken(layout, side, head, UnpackKvToken(layout, words));
    for (size_t c = 0; c < ours.size(); ++c)
      EXPECT_NEAR(ours[c], decoded[c], 0x1p-22 * (1 + std::fabs(decoded[c]))) << c;  // fused or not
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, KvLayouts,
                         testing::Values(Case{"kv-fp16", 128}, Case{"kv-bf16", 80}, Case{"kv-fp16", 18},
                                         Case{"kv-fp16", 250}, Case{"kv-int8", 112}, Case{"kv-int4", 80},
                                         Case{"kv-int4", 20}, Case{kInt4Groups20, 64}, Case{"int8-g32", 256},
                                         Case{"int4-row", 96}, Case{"cq-4", 128}, Case{"cq-2", 80},
                                         Case{"cq-1", 8}, Case{"VQ<3,5,3>-head", 96},
                                         Case{"VQ<16,12,2>-head", 64}, Case{"VQ<1,4,1>-head", 256},
                                         Case{"VQ<7,10,1>-head", 252}),
                         [](const auto& tested) { return std::to_string(tested.index); });

TEST(KvLayout, BytesAreThoseOfTheCodes) {
  const auto bytes = [](const char* format, int head_dim) {
    return 4 * MakeKvSideLayout(ParseFormat(format), head_dim).RecordWords();
  };
  EXPECT_EQ(bytes("kv-fp16", 128), 256);
  EXPECT_EQ(bytes("cq-4", 128), 64);
  EXPECT_EQ(bytes("cq-2", 128), 32);
  EXPECT_EQ(bytes("cq-1", 128), 16);
  EXPECT_EQ(bytes("VQ<4,12,1>-head", 128), 48);
  EXPECT_EQ(bytes("kv-int4", 128), 64 + 8);
}

TEST(KvLayout, CodebooksStandEntryByEntry) {
  const Format f = ParseFormat("VQ<4,3,1>-head");
  const KvSideLayout layout = MakeKvSideLayout(f, 8);
  cpu::KvSide side;
  side.format = f;
  side.codebooks.emplace_back();
  for (int i = 0; i < 2 * 2 * 8 * 4; ++i) side.codebooks[0].push_back(Half(static_cast<float>(i)));
  const std::vector<uint32_t> words = PackKvCodebooks(layout, side, 2);
  ASSERT_EQ(words.size(), 2u * 8 * 2 * 2);
  // Head 1, entry 5, unit 1, channels 2 and 3: book (1 * 2 + 1), its 5th entry.
  const int value = ((1 * 2 + 1) * 8 + 5) * 4 + 2;
  EXPECT_EQ(words[((1 * 8 + 5) * 2 + 1) * 2 + 1],
            Half(static_cast<float>(value)).bits | uint32_t{Half(static_cast<float>(value + 1)).bits} << 16);
}

TEST(KvLayout, RefusesWhatAKernelCannotRead) {
  const auto message = [](const char* format, int head_dim) -> std::string {
    try {
      MakeKvSideLayout(ParseFormat(format), head_dim);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message("kv-fp32", 64), testing::HasSubstr("allowed: fp16"));
  EXPECT_THAT(message("VQ<4,8,1>", 64), testing::HasSubstr("scope head-channel"));
  EXPECT_THAT(message("VQ<3,8,1>-head", 64), testing::HasSubstr("does not divide head_dim 64"));
  KvShape shape;
  shape.key = shape.value = ParseFormat("kv-fp16");
  shape.head_dim = 64;
  shape.context = 100;
  shape.page_tokens = 48;
  EXPECT_THROW(Validate(shape), Error);
  shape.page_tokens = 64;
  Validate(shape);
  shape.rope_dim = 66;
  EXPECT_THROW(Validate(shape), Error);
}

}  // namespace
}  // namespace vqllm
