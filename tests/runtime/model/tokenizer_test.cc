#include "runtime/model/tokenizer.h"

#include "tests/support/data.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

constexpr Tokenizer::EncodeOptions kPlain = {.add_bos = false, .parse_special = false};

/// A sentencepiece vocabulary: unknown, BOS, EOS, 256 bytes, then "▁", "a", "b", "ab", "▁ab", "é".
std::shared_ptr<const Tokenizer> ByteFallback() {
  GgufVocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>"};
  v.types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    v.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    v.types.push_back(6);
  }
  v.scores.assign(v.tokens.size(), 0.0f);
  float score = -1;
  for (const char* text : {"▁", "a", "b", "ab", "▁ab", "é"}) {
    v.tokens.emplace_back(text);
    v.types.push_back(1);
    v.scores.push_back(score--);
  }
  v.bos = 1;
  v.eos = 2;
  v.unknown = 0;
  return MakeTokenizer(v, "test");
}
constexpr int32_t kByte0 = 3;
constexpr int32_t kSpace = 259;
constexpr int32_t kA = 260;
constexpr int32_t kSpaceAb = 263;

int32_t ByteToken(int byte) { return kByte0 + byte; }

/// What StreamDecoder hands out, piece by piece, with Finish() as the last.
std::vector<std::string> Pieces(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder decoder(tokenizer, false);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(decoder.Push(id));
  pieces.push_back(decoder.Finish());
  return pieces;
}

std::string Join(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

std::vector<int32_t> ByteTokens(std::string_view bytes) {
  std::vector<int32_t> ids;
  for (const char c : bytes) ids.push_back(ByteToken(static_cast<unsigned char>(c)));
  return ids;
}

TEST(Tokenizer, MergesByScoreAndFallsBackToBytes) {
  const auto tokenizer = ByteFallback();
  EXPECT_EQ(tokenizer->Encode("ab", kPlain), std::vector<int32_t>{kSpaceAb});
  const std::vector<int32_t> euro = {kSpace, ByteToken(0xe2), ByteToken(0x82), ByteToken(0xac), kA};
  EXPECT_EQ(tokenizer->Encode("€a", kPlain), euro);
}

TEST(Tokenizer, BosComesExactlyOnce) {
  const auto tokenizer = ByteFallback();
  ASSERT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->Encode("", {}), std::vector<int32_t>{1});
  EXPECT_EQ(tokenizer->Encode("ab", {}), (std::vector<int32_t>{1, kSpaceAb}));
  EXPECT_EQ(tokenizer->Encode("<s>ab", {.add_bos = true, .parse_special = true}),
            (std::vector<int32_t>{1, kSpaceAb}));
  EXPECT_EQ(tokenizer->Encode("<s>ab", {.add_bos = false, .parse_special = true}),
            (std::vector<int32_t>{1, kSpaceAb}));
}

TEST(Tokenizer, SpecialTokensInTextArePlainUnlessAskedFor) {
  const auto tokenizer = ByteFallback();
  const std::vector<int32_t> plain = tokenizer->Encode("</s>", kPlain);
  EXPECT_EQ(plain.front(), kSpace);
  EXPECT_EQ(tokenizer->Decode(plain), "</s>");
  EXPECT_EQ(tokenizer->Encode("</s>", {.add_bos = false, .parse_special = true}), std::vector<int32_t>{2});
}

TEST(Tokenizer, SpecialTokensGiveTheirNameOnlyOnRequest) {
  const auto tokenizer = ByteFallback();
  EXPECT_EQ(tokenizer->TokenBytes(2), "");
  EXPECT_EQ(tokenizer->TokenBytes(2, true), "</s>");
  EXPECT_EQ(tokenizer->TokenBytes(kSpaceAb), " ab");
  EXPECT_EQ(tokenizer->TokenBytes(100000), "");
  EXPECT_THROW(tokenizer->TokenBytes(-1), Error);
}

/// Case S04: bytes of characters of every size, a family of three joined by U+200D.
TEST(Tokenizer, StreamNeverSplitsACharacter) {
  const auto tokenizer = ByteFallback();
  for (const std::string text : {"é", "€", "🦙", "👨‍👩‍👧"}) {
    const std::vector<std::string> pieces = Pieces(*tokenizer, ByteTokens(text));
    for (const std::string& piece : pieces) {
      std::string rest = piece;
      EXPECT_EQ(TakeWholeCharacters(rest), piece);
      EXPECT_EQ(piece.find("\ufffd"), std::string::npos);
    }
    EXPECT_EQ(Join(pieces), text);
    EXPECT_EQ(tokenizer->Decode(ByteTokens(text)), text);
  }
}

TEST(Tokenizer, UnfinishedCharacterIsOneReplacementAtTheEnd) {
  const auto tokenizer = ByteFallback();
  const std::vector<std::string> pieces = Pieces(*tokenizer, ByteTokens("x\xf0\x9f\xa6"));
  EXPECT_EQ(pieces, (std::vector<std::string>{"x", "", "", "", "\ufffd"}));
}

TEST(Tokenizer, LoneLeadByteIsReplacedWhenTheNextCharacterComes) {
  const auto tokenizer = ByteFallback();
  EXPECT_EQ(Pieces(*tokenizer, ByteTokens("\xc4z")), (std::vector<std::string>{"", "\ufffdz", ""}));
}

/// Every string of three bytes from the corners of UTF-8: pieces and whole agree, and are valid.
TEST(Tokenizer, StreamEqualsDecodeOnBrokenBytes) {
  const auto tokenizer = ByteFallback();
  const std::string bytes = "a\x80\xbf\xc0\xc2\xe0\xa0\x9f\xed\xef\xf0\x90\xf4\x8f\xf5\xff";
  for (const char a : bytes) {
    for (const char b : bytes) {
      for (const char c : bytes) {
        const std::vector<int32_t> ids = ByteTokens(std::string{a, b, c});
        const std::string whole = tokenizer->Decode(ids);
        EXPECT_EQ(Join(Pieces(*tokenizer, ids)), whole);
        std::string rest = whole;
        EXPECT_EQ(TakeWholeCharacters(rest), whole);
        EXPECT_EQ(rest, "");
      }
    }
  }
}

TEST(Tokenizer, FirstSpaceGoesOnlyWhereTheTextBegins) {
  const auto tokenizer = ByteFallback();
  const std::vector<int32_t> ids = {1, kSpaceAb, kSpaceAb};
  EXPECT_EQ(tokenizer->Decode(ids), "ab ab");
  StreamDecoder continued(*tokenizer, true);
  EXPECT_EQ(continued.Push(kSpaceAb), " ab");
}

TEST(Tokenizer, BrokenBytesOfTheInputBecomeByteTokens) {
  const auto tokenizer = ByteFallback();
  const std::vector<int32_t> expected = {kSpaceAb, ByteToken(0xc4), kA, ByteToken(0xf0), ByteToken(0x9f)};
  EXPECT_EQ(tokenizer->Encode("ab\xc4"
                              "a\xf0\x9f",
                              kPlain),
            expected);
}

TEST(Tokenizer, AMegabyteWithoutABreakIsNoHardship) {
  const auto tokenizer = ByteFallback();
  const std::string text = std::string(1 << 20, 'a') + "b";
  const std::vector<int32_t> ids = tokenizer->Encode(text, kPlain);
  EXPECT_EQ(ids.size(), (size_t{1} << 20) + 1);  // "▁", then 'a's, then "ab"
  EXPECT_EQ(tokenizer->Decode(ids), text);
}

GgufVocabulary Small() {
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  v.tokens = {"a", "b", "ab"};
  v.merges = {"a b"};
  return v;
}

void ExpectRefused(const GgufVocabulary& vocabulary, const std::string& part) {
  try {
    MakeTokenizer(vocabulary, "x.gguf");
    ADD_FAILURE() << "accepted; expected an error with " << part;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("x.gguf: " + part));
  }
}

TEST(Tokenizer, GgufFaultsNameTheKey) {
  EXPECT_EQ(MakeTokenizer(Small(), "x.gguf")->Encode("ab", kPlain), std::vector<int32_t>{2});
  GgufVocabulary v = Small();
  v.model = "bert";
  ExpectRefused(v, "tokenizer.ggml.model");
  v = Small();
  v.pre = "unheard-of";
  ExpectRefused(v, "tokenizer.ggml.pre");
  v = Small();
  v.tokens.clear();
  ExpectRefused(v, "tokenizer.ggml.tokens");
  v = Small();
  v.merges = {"a c"};
  ExpectRefused(v, "tokenizer.ggml.merges");
  v.merges = {"ab"};
  ExpectRefused(v, "tokenizer.ggml.merges");
  v = Small();
  v.types = {1, 1};
  ExpectRefused(v, "tokenizer.ggml.token_type");
  v.types = {1, 1, 9};
  ExpectRefused(v, "tokenizer.ggml.token_type");
  v = Small();
  v.bos = 3;
  ExpectRefused(v, "tokenizer.ggml.bos_token_id");
  v = Small();
  v.model = "llama";
  ExpectRefused(v, "tokenizer.ggml.scores");
  v.scores = {0, 0, NAN};
  ExpectRefused(v, "tokenizer.ggml.scores");
}

TEST(Tokenizer, TextThatTheVocabularyLacksIsAnError) {
  EXPECT_THROW(MakeTokenizer(Small(), "x.gguf")->Encode("abc", kPlain), Error);
}

TEST(Tokenizer, FolderWithoutTokenizerGivesNull) {
  const test::TempDir folder;
  std::filesystem::create_directories(folder / "model");
  EXPECT_EQ(LoadTokenizer(folder / "model"), nullptr);
  EXPECT_THROW(LoadTokenizerFile(folder / "model"), Error);
}

}  // namespace
}  // namespace vqllm
