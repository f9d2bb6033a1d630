#include "vq/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/rng.h"
#include "vq/tensor.h"

namespace vqllm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

Format Table(int v, std::vector<int> entries) {
  Format f;
  f.name = "test";
  f.kind = FormatKind::kTable;
  f.subvector = v;
  f.entries = std::move(entries);
  return f;
}

TEST(Format, EveryNamedFormatIsValidUniqueAndSurvivesJson) {
  std::set<std::string> names;
  for (const Format& f : NamedFormats()) {
    SCOPED_TRACE(f.name);
    EXPECT_TRUE(names.insert(f.name).second);
    EXPECT_NO_THROW(Validate(f));
    EXPECT_EQ(ParseFormat(f.name), f);
    EXPECT_EQ(ParseFormat(ToJson(f)), f);
  }
  for (const char* name : {"fp32",
                           "fp16",
                           "bf16",
                           "int8-g128",
                           "int4-g32",
                           "int4-g128-sym",
                           "int3-g128",
                           "int2-g128",
                           "int2-row",
                           "quip-2",
                           "quip-4",
                           "aqlm-1x16",
                           "aqlm-2x8",
                           "aqlm-3",
                           "gptvq-2",
                           "VQ<2,4,1>",
                           "VQ<16,4,8>-g128",
                           "kv-fp16",
                           "kv-int8",
                           "kv-int4",
                           "cq-4",
                           "cq-2",
                           "cq-1"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(Format, NamedRowsOfTheNotationMeanWhatTheNotationSays) {
  for (const Format& f : NamedFormats()) {
    if (!f.name.starts_with("VQ<")) continue;
    // "-tensor" says the default aloud: this string stands in no table, so it is parsed.
    Format parsed = ParseFormat(f.name + "-tensor");
    parsed.name = f.name;
    EXPECT_EQ(parsed, f) << f.name;
  }
}

TEST(Format, NotationReadsEverySuffix) {
  const Format integers = ParseFormat("int3-g96-sym");
  EXPECT_EQ(integers.bits, 3);
  EXPECT_EQ(integers.group, 96);
  EXPECT_TRUE(integers.symmetric);
  EXPECT_EQ(ParseFormat("int2-row-sym").scale, ScaleKind::kPerOutput);
  const Format tile = ParseFormat("VQ<6,10,2>-tile96x192-g96");
  EXPECT_EQ(tile.subvector, 6);
  EXPECT_EQ(tile.entries, (std::vector<int>{1024, 1024}));
  EXPECT_EQ(tile.scope, (Scope{ScopeKind::kTile, 96, 192}));
  EXPECT_EQ(tile.scale, ScaleKind::kGroup);
  EXPECT_EQ(tile.group, 96);
  const Format out = ParseFormat("VQ<8,12,1>-ingroup256-out-row");
  EXPECT_EQ(out.axis, Axis::kOut);
  EXPECT_EQ(out.scope, (Scope{ScopeKind::kInGroup, 0, 256}));
  EXPECT_EQ(out.scale, ScaleKind::kPerOutput);
  EXPECT_EQ(ParseFormat("VQ<2,8,1>-head").scope.kind, ScopeKind::kHeadChannel);
}

TEST(Format, RandomLegalTablesSurviveJson) {
  Rng rng(1);
  for (int round = 0; round < 2000; ++round) {
    Format f = Table(1 + static_cast<int>(rng.Below(16)), {});
    f.name = fmt::format("r{}", round);
    for (uint64_t m = 0; m <= rng.Below(8); ++m) f.entries.push_back(2 + static_cast<int>(rng.Below(65535)));
    f.axis = rng.Below(2) == 1 ? Axis::kOut : Axis::kIn;
    const int several = f.subvector * (1 + static_cast<int>(rng.Below(50)));
    switch (rng.Below(f.axis == Axis::kIn ? 4 : 3)) {
      case 1:
        f.scope = {ScopeKind::kTile, several, several};
        break;
      case 2:
        f.scope = {ScopeKind::kInGroup, 0, several};
        break;
      case 3:
        f.scope = {ScopeKind::kHeadChannel, 0, 0};
        break;
      default:
        break;
    }
    f.scale = rng.Below(2) == 1 ? ScaleKind::kGroup : ScaleKind::kNone;
    f.group = f.scale == ScaleKind::kGroup ? several : 0;
    f.rotation = rng.Below(2) == 1;
    f.permutation = rng.Below(2) == 1;
    f.input_affine = rng.Below(2) == 1;
    ASSERT_NO_THROW(Validate(f)) << ToJson(f);
    ASSERT_EQ(ParseFormat(ToJson(f)), f) << ToJson(f);
  }
}

TEST(Format, CodeBitsRoundUpForAnyNumberOfEntries) {
  const Format f = Table(4, {2, 3, 8, 512, 1000, 1024, 4096, 65536});
  const int expected[] = {1, 2, 3, 9, 10, 10, 12, 16};
  for (int stage = 0; stage < f.stages(); ++stage) EXPECT_EQ(f.CodeBits(stage), expected[stage]);
}

TEST(Format, EffectiveBitsCountCodesCodebooksScalesZerosAndPadding) {
  EXPECT_DOUBLE_EQ(EffectiveBits(ParseFormat("fp16"), 3, 5), 16);
  // 4 bits, a scale of 16 and a zero of 4 bits for each 128 weights.
  EXPECT_DOUBLE_EQ(EffectiveBits(ParseFormat("int4-g128"), 64, 256), 4 + 20.0 / 128);
  EXPECT_DOUBLE_EQ(EffectiveBits(ParseFormat("int4-g128-sym"), 64, 256), 4 + 16.0 / 128);
  // A codebook of 256 x 4 halves for each 256 x 256 tile: a quarter bit.
  EXPECT_DOUBLE_EQ(EffectiveBits(ParseFormat("gptvq-2"), 512, 512), 2.25);
  // Two codes of 8 bits a subvector, two codebooks, a scale a row.
  EXPECT_DOUBLE_EQ(EffectiveBits(ParseFormat("aqlm-2x8"), 1024, 1024),
                   2 + 2.0 * 256 * 8 * 16 / (1024.0 * 1024) + 16.0 / 1024);
  // Columns 10, v = 8: two subvectors a row, of which six values are padding; 16 bits of codes fill half a
  // word.
  EXPECT_DOUBLE_EQ(EffectiveBits(ParseFormat("VQ<8,8,1>"), 4, 10), (4 * 32 + 256 * 8 * 16) / 40.0);
  EXPECT_GT(EffectiveBits(ParseFormat("VQ<8,8,1>"), 64, 72), EffectiveBits(ParseFormat("VQ<8,8,1>"), 64, 96));
}

TEST(Format, ReadsAJsonFile) {
  const test::TempDir dir;
  const std::string path = dir / "mine.json";
  std::ofstream(path) << R"({"name": "mine", "kind": "table", "subvector": 6, "entries": [1000, 64],
      "scope": {"kind": "tile", "rows": 96, "cols": 192}, "scale": "group", "group": 96})";
  const Format f = ParseFormat(path);
  EXPECT_EQ(f.name, "mine");
  EXPECT_EQ(f.entries, (std::vector<int>{1000, 64}));
  EXPECT_THAT([&] { ParseFormat((dir / "absent.json").string()); },
              ThrowsMessage<Error>(HasSubstr("absent.json")));
}

struct BadFormat {
  const char* text;
  const char* field;
};
class BadFormats : public testing::TestWithParam<BadFormat> {};

TEST_P(BadFormats, AreRefusedWithTheFieldNamed) {
  EXPECT_THAT([] { ParseFormat(GetParam().text); },
              ThrowsMessage<Error>(AllOf(HasSubstr(GetParam().field), HasSubstr("allowed"))))
      << GetParam().text;
}

INSTANTIATE_TEST_SUITE_P(
    Text, BadFormats,
    testing::Values(
        BadFormat{"", "format"}, BadFormat{"int5-g128", "int5-g128"}, BadFormat{"int4", "int<bits>-g<group>"},
        BadFormat{"int5-g64", "2, 3, 4, 8"}, BadFormat{"int4-g", "group"}, BadFormat{"int4-g0", "group"},
        BadFormat{"int4-g64-sym-sym", "int<bits>-g<group>"}, BadFormat{"int99999999999-g64", "bits"},
        BadFormat{"VQ<", "VQ<v,b,R>"}, BadFormat{"VQ<4,8>", "VQ<v,b,R>"}, BadFormat{"VQ<4,8,1", "VQ<v,b,R>"},
        BadFormat{"VQ<0,8,1>", "subvector"}, BadFormat{"VQ<17,8,1>", "subvector"},
        BadFormat{"VQ<4,0,1>", "code bits"}, BadFormat{"VQ<4,17,1>", "code bits"},
        BadFormat{"VQ<4,8,0>", "stages"}, BadFormat{"VQ<4,8,9>", "stages"},
        BadFormat{"VQ<4,8,1>-tile256", "scope cols"}, BadFormat{"VQ<4,8,1>-tile256x255", "scope cols"},
        BadFormat{"VQ<4,8,1>-out-tile255x256", "scope rows"}, BadFormat{"VQ<4,8,1>-g0", "group"},
        BadFormat{"VQ<4,8,1>-g126", "group"}, BadFormat{"VQ<4,8,1>-g", "group"},
        BadFormat{"VQ<4,8,1>-g99999999999999999999", "group"}, BadFormat{"VQ<4,8,1>-g128-row", "-row"},
        BadFormat{"VQ<4,8,1>-head-tensor", "-tensor"}, BadFormat{"VQ<4,8,1>-head-out", "axis"},
        BadFormat{"VQ<4,8,1>;", "name"},
        BadFormat{"VQ<4,8,1>-tensor-tensor-tensor-tensor-tensor-tensor", "name"}));

INSTANTIATE_TEST_SUITE_P(
    Json, BadFormats,
    testing::Values(
        BadFormat{R"({"name":"a\"; system(\"x\");","kind":"dense"})", "name"},
        BadFormat{R"({"name":"a\nb","kind":"dense"})", "name"},
        BadFormat{R"({"name":"","kind":"dense"})", "name"},
        BadFormat{R"({"name":"\u00e9","kind":"dense"})", "name"},
        BadFormat{R"({"name":"a","kind":"trellis"})", "kind"},
        BadFormat{R"({"name":"a","kind":"dense","colour":1})", "colour"},
        BadFormat{R"({"name":"a","kind":"dense","dtype":"fp8"})", "dtype"},
        BadFormat{R"({"name":"a","kind":"dense","scale":"group","group":64})", "scale"},
        BadFormat{R"({"name":"a","kind":"dense","rotation":true})", "rotation"},
        BadFormat{R"({"name":"a","kind":"int","bits":5,"scale":"group","group":64})", "bits"},
        BadFormat{R"({"name":"a","kind":"int","bits":4.5,"scale":"group","group":64})", "bits"},
        BadFormat{R"({"name":"a","kind":"int","bits":4,"dtype":"fp32","scale":"group","group":64})", "dtype"},
        BadFormat{R"({"name":"a","kind":"int","bits":4})", "scale"},
        BadFormat{R"({"name":"a","kind":"int","bits":4,"scale":"group"})", "group"},
        BadFormat{R"({"name":"a","kind":"int","bits":4,"scale":"per-output","group":64})", "group"},
        BadFormat{R"({"name":"a","kind":"int","bits":4,"scale":"per-output","entries":16})", "entries"},
        BadFormat{R"({"name":"a","kind":"table","subvector":4,"entries":[]})", "entries"},
        BadFormat{R"({"name":"a","kind":"table","subvector":4,"entries":[1]})", "entries"},
        BadFormat{R"({"name":"a","kind":"table","subvector":4,"entries":[65537]})", "entries"},
        BadFormat{R"({"name":"a","kind":"table","subvector":4,"entries":[1e99]})", "entries"},
        BadFormat{R"({"name":"a","kind":"table","subvector":-4,"entries":[16]})", "subvector"},
        BadFormat{R"({"name":"a","kind":"table","subvector":4,"entries":[16],"scope":"tile"})", "scope"},
        BadFormat{R"({"name":"a","kind":"table","subvector":4,"entries":[16],"scope":{"kind":"tile"}})",
                  "scope rows"},
        BadFormat{
            R"({"name":"a","kind":"table","subvector":4,"entries":[16],"scope":{"kind":"tensor","rows":4}})",
            "scope rows"},
        BadFormat{R"({"name":"a","kind":"table","subvector":4,"entries":[16],"bits":4})", "bits"},
        BadFormat{R"({"name":"a","kind":"lattice","subvector":8,"entries":[256],"scale":"per-tensor"})",
                  "entries"},
        BadFormat{R"({"name":"a","kind":"lattice","subvector":4,"entries":[65536],"scale":"per-tensor"})",
                  "subvector"},
        BadFormat{R"({"name":"a","kind":"lattice","subvector":8,"entries":[65536]})", "scale"}));

TEST(Format, DamagedJsonIsRefused) {
  EXPECT_THAT([] { ParseFormat(R"({"kind":"dense"})"); }, ThrowsMessage<Error>(HasSubstr("name: missing")));
  for (const char* text :
       {"{", "{}", "{\"name\":", "{\"name\": \"a\", \"kind\": \"dense\"} x", "{\"a\":{\"a\":{\"a\":"}) {
    EXPECT_THROW(ParseFormat(text), Error) << text;
  }
  EXPECT_THROW(ParseFormat("{\"name\":" + std::string(100000, '[')), Error);
}

}  // namespace
}  // namespace vqllm
