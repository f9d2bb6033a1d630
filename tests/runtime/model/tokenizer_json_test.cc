#include <nlohmann/json.hpp>

#include "runtime/model/tokenizer.h"
#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

using nlohmann::json;

constexpr Tokenizer::EncodeOptions kPlain = {.add_bos = false, .parse_special = true};

/// A byte-level BPE: "Ġ" is a space, and "<|end|>" a special token.
json ByteLevel() {
  return json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 9, "content": "<|end|>", "special": true, "normalized": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
              "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "1": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "abab": 6, "11": 7, "Ġa": 8},
              "merges": ["a b", "Ġ ab", ["1", "1"], "Ġ a"]}
  })");
}

/// Llama 2's kind: spaces become U+2581, one is put in front, characters without a token become bytes.
json ByteFallback() {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte + 3;
  for (const char* text : {"▁", "a", "b", "ab", "▁ab"}) vocab[text] = vocab.size();
  json root = json::parse(R"({
    "added_tokens": [{"id": 1, "content": "<s>", "special": true}, {"id": 2, "content": "</s>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                   {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
                       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "merges": ["a b", "▁ ab"]}})");
  root["model"]["vocab"] = std::move(vocab);
  return root;
}
constexpr int32_t kSpace = 259;
constexpr int32_t kSpaceAb = 263;

std::shared_ptr<const Tokenizer> Parse(const json& root) { return ParseTokenizerJson(root.dump(), "t.json"); }

void ExpectRefused(const json& root, const std::string& place) {
  try {
    Parse(root);
    ADD_FAILURE() << "accepted; expected an error about " << place;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("t.json: " + place));
  }
}

using Ids = std::vector<int32_t>;

TEST(TokenizerJson, ByteLevelMergesInRank) {
  const auto tokenizer = Parse(ByteLevel());
  EXPECT_EQ(tokenizer->Encode("ab ab11<|end|>a", kPlain), (Ids{4, 5, 7, 9, 0}));
  EXPECT_EQ(tokenizer->Encode("abab", kPlain), (Ids{4, 4}));
  EXPECT_EQ(tokenizer->Decode(Ids{4, 5, 7, 9, 0}), "ab ab11a");
  EXPECT_FALSE(tokenizer->adds_bos());
}

TEST(TokenizerJson, IgnoreMergesTakesAWholeWord) {
  json root = ByteLevel();
  root["model"]["ignore_merges"] = true;
  EXPECT_EQ(Parse(root)->Encode("abab", kPlain), Ids{6});
}

/// Splits at single digits: "1" and "1" merge only where they stay one word.
TEST(TokenizerJson, SplitBehaviors) {
  const std::vector<std::pair<std::string, Ids>> cases = {{"Removed", {4, 4}},
                                                          {"Isolated", {4, 2, 2, 4}},
                                                          {"MergedWithPrevious", {4, 2, 2, 4}},
                                                          {"MergedWithNext", {4, 2, 2, 4}},
                                                          {"Contiguous", {4, 7, 4}}};
  for (const auto& [behavior, ids] : cases) {
    json root = ByteLevel();
    json split = {
        {"type", "Split"}, {"pattern", {{"Regex", "\\d"}}}, {"behavior", behavior}, {"invert", false}};
    json last = root["pre_tokenizer"];
    last["use_regex"] = false;
    root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, last}}};
    EXPECT_EQ(Parse(root)->Encode("ab11ab", kPlain), ids) << behavior;
  }
}

TEST(TokenizerJson, DigitsStandAloneWhereAsked) {
  json root = ByteLevel();
  root["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, root["pre_tokenizer"]}}};
  EXPECT_EQ(Parse(root)->Encode("11", kPlain), (Ids{2, 2}));
}

TEST(TokenizerJson, AddedTokensTakeSpaceAndMindWords) {
  json root = ByteLevel();
  root["added_tokens"].push_back({{"id", 10}, {"content", "<l>"}, {"lstrip", true}, {"normalized", false}});
  root["added_tokens"].push_back({{"id", 11}, {"content", "<r>"}, {"rstrip", true}, {"normalized", false}});
  root["added_tokens"].push_back({{"id", 12}, {"content", "ba"}, {"single_word", true}});
  const auto tokenizer = Parse(root);
  EXPECT_EQ(tokenizer->Encode("a  <l> a", kPlain), (Ids{0, 10, 8}));
  EXPECT_EQ(tokenizer->Encode("a <r>  a", kPlain), (Ids{0, 3, 11, 0}));
  EXPECT_EQ(tokenizer->Encode("ba", kPlain), Ids{12});
  EXPECT_EQ(tokenizer->Encode("bab", kPlain), (Ids{1, 4}));
  EXPECT_EQ(tokenizer->Decode(Ids{12, 10}), "ba<l>");  // added, but not special
}

TEST(TokenizerJson, ByteFallbackAsLlama2) {
  const auto tokenizer = Parse(ByteFallback());
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->Encode("ab ab", {}), (Ids{1, kSpaceAb, kSpaceAb}));
  EXPECT_EQ(tokenizer->Encode("é", {}), (Ids{1, kSpace, 0xc3 + 3, 0xa9 + 3}));
  EXPECT_EQ(tokenizer->Encode("<s>ab", {.add_bos = true, .parse_special = true}), (Ids{1, kSpaceAb}));
  EXPECT_EQ(tokenizer->Decode(Ids{1, kSpaceAb, 0xc3 + 3, 0xa9 + 3, 2}), "abé");
}

TEST(TokenizerJson, MetaspacePrependsAsItsSchemeSays) {
  const std::vector<std::pair<std::string, Ids>> cases = {
      {"always", {kSpaceAb, 2, kSpaceAb}}, {"first", {kSpaceAb, 2, 262}}, {"never", {262, 2, 262}}};
  for (const auto& [scheme, ids] : cases) {
    json root = ByteFallback();
    root["normalizer"] = nullptr;
    root["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", false}};
    EXPECT_EQ(Parse(root)->Encode("ab</s>ab", kPlain), ids) << scheme;
  }
}

TEST(TokenizerJson, UnicodeFormsAsQwen2) {
  json root = ByteFallback();
  root["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(Parse(root)->Encode("e\u0301", kPlain), (Ids{0xc3 + 3, 0xa9 + 3}));
  root["normalizer"] = {{"type", "NFD"}};
  EXPECT_EQ(Parse(root)->Encode("\u00e9", kPlain), (Ids{'e' + 3, 0xcc + 3, 0x81 + 3}));
  root["normalizer"] = {{"type", "NFKC"}};
  EXPECT_EQ(Parse(root)->Encode("\uff41\uff42", kPlain), Ids{262});
}

TEST(TokenizerJson, RefusesWhatItCannotHonourByName) {
  const auto with = [](const char* pointer, json value) {
    json root = ByteLevel();
    root[json::json_pointer(pointer)] = std::move(value);
    return root;
  };
  ExpectRefused(with("/surprise", 1), "unknown field \"surprise\"");
  ExpectRefused(with("/model/type", "Unigram"), "model: type");
  ExpectRefused(with("/model/dropout", 0.1), "model: dropout");
  ExpectRefused(with("/model/end_of_word_suffix", "</w>"), "model: end_of_word_suffix");
  ExpectRefused(with("/model/unk_token", "zz"), "model: unk_token");
  ExpectRefused(with("/model/vocab/zz", -1), "model: vocab");
  ExpectRefused(with("/model/vocab/zz", 1u << 31), "model: vocab");
  ExpectRefused(with("/model/vocab/zz", 4), "model: vocab: found id 4 twice");
  ExpectRefused(with("/model/merges/1", "a z"), "model: merges[1]");
  ExpectRefused(with("/model/merges/1", "a b c"), "model: merges[1]");
  ExpectRefused(with("/model/merges/1", 7), "model: merges[1]");
  ExpectRefused(with("/decoder", {{"type", "WordPiece"}}), "decoder: type");
  ExpectRefused(with("/decoder", {{"type", "Fuse"}}), "decoder");
  ExpectRefused(with("/normalizer", {{"type", "Lowercase"}}), "normalizer: type");
  ExpectRefused(with("/pre_tokenizer", {{"type", "BertPreTokenizer"}}), "pre_tokenizer: type");
  ExpectRefused(with("/post_processor", {{"type", "Other"}}), "post_processor: type");
  ExpectRefused(with("/added_tokens/0/id", 3), "added_tokens[0]");
  ExpectRefused(with("/added_tokens/0/content", ""), "added_tokens[0]");
  ExpectRefused(with("/added_tokens/0/content", "ab"), "added_tokens[0]: id");
  ExpectRefused(with("/added_tokens", 3), "added_tokens");
}

TEST(TokenizerJson, RefusesPatternsThatBreakOrMeanSomethingElse) {
  for (const char* pattern : {"(", "\\h", "(*UTF)a", "a(?C1)", "[[a]b]", "[a&&b]", "\\K"}) {
    json root = ByteLevel();
    json last = root["pre_tokenizer"];
    json split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, last}}};
    ExpectRefused(root, "pre_tokenizer: pretokenizers[0]: pattern: Regex");
  }
}

TEST(TokenizerJson, PatternThatBacktracksWithoutEndIsAnError) {
  json root = ByteLevel();
  json last = root["pre_tokenizer"];
  json split = {{"type", "Split"}, {"pattern", {{"Regex", "(a+)+(a+)+[xy]"}}}, {"behavior", "Isolated"}};
  root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, last}}};
  EXPECT_THROW(Parse(root)->Encode(std::string(200, 'a') + "b", kPlain), Error);
}

TEST(TokenizerJson, ConfigBesideItNamesBosAndEos) {
  const test::TempDir folder;
  WriteFileAtomically(folder / "tokenizer.json", ByteFallback().dump());
  WriteFileAtomically(
      folder / "tokenizer_config.json",
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": false, "x": 1})");
  const auto tokenizer = LoadTokenizer(folder.path());
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), Ids{2});
  EXPECT_FALSE(tokenizer->adds_bos());
  WriteFileAtomically(folder / "tokenizer_config.json", R"({"eos_token": "<none>"})");
  EXPECT_THROW(LoadTokenizer(folder.path()), Error);
}

}  // namespace
}  // namespace vqllm
