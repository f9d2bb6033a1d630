#include <sstream>

#include "runtime/model/tokenizer.h"
#include "tests/support/data.h"
#include "vq/base/file.h"
#include "vq/base/json_reader.h"

namespace vqllm {
namespace {

constexpr Tokenizer::EncodeOptions kPlain = {.add_bos = false, .parse_special = false};

std::vector<std::string> SplitAt(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at; (at = text.find(separator, begin)) != std::string::npos; begin = at + separator.size()) {
    parts.push_back(text.substr(begin, at - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<int32_t> Numbers(const std::string& line) {
  std::istringstream in(line);
  std::vector<int32_t> numbers;
  for (int32_t number; in >> number;) numbers.push_back(number);
  return numbers;
}

/// Texts and ids as llama.cpp's test-tokenizer-0 has them: texts between separator lines, a line of ids each.
void ExpectVectors(const std::string& name) {
  const auto tokenizer = LoadTokenizerFile(test::DataDir() / "tokenizers" / (name + ".gguf"));
  const auto file = test::DataDir() / "tokenizer_vectors" / (name + ".gguf");
  auto texts = SplitAt(ReadTextFile(file.string() + ".inp"), "\n__ggml_vocab_test__\n");
  auto lines = SplitAt(ReadTextFile(file.string() + ".out"), "\n");
  ASSERT_EQ(texts.size(), lines.size());
  ASSERT_EQ(texts.size(), 47u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<int32_t> ids = tokenizer->Encode(texts[i], kPlain);
    EXPECT_EQ(ids, Numbers(lines[i])) << "text " << i << ": " << texts[i];
    EXPECT_EQ(tokenizer->Decode(ids), texts[i]);
  }
}

TEST(TokenizerVectors, LlamaSentencepieceInGguf) {
  VQLLM_NEED_DATA("tokenizers/ggml-vocab-llama-spm.gguf");
  ExpectVectors("ggml-vocab-llama-spm");
}

TEST(TokenizerVectors, Gpt2InGguf) {
  VQLLM_NEED_DATA("tokenizers/ggml-vocab-gpt-2.gguf");
  ExpectVectors("ggml-vocab-gpt-2");
}

TEST(TokenizerVectors, Gpt2OfALongText) {
  VQLLM_NEED_DATA("tokenizers/ggml-vocab-gpt-2.gguf");
  const auto tokenizer = LoadTokenizerFile(test::DataDir() / "tokenizers/ggml-vocab-gpt-2.gguf");
  const std::string file = (test::DataDir() / "tokenizer_vectors/swift_gpt2_encoded_tokens.json").string();
  const nlohmann::json golden = ParseJson(ReadTextFile(file), file);
  EXPECT_EQ(tokenizer->Encode(golden.at("text").get<std::string>(), kPlain),
            golden.at("token_ids").get<std::vector<int32_t>>());
}

/// llama2.c's own table, looked up from the folder of the weights, and the same vocabulary in a GGUF file.
TEST(TokenizerVectors, Stories260KAllWays) {
  VQLLM_NEED_DATA("stories260K/golden.json");
  const auto folder = test::DataDir() / "stories260K";
  const nlohmann::json golden =
      ParseJson(ReadTextFile(folder / "golden.json"), "golden.json").at("stories260K").at("greedy");
  const auto gguf = LoadTokenizerFile(folder / "stories260K-f32.gguf");
  const auto table = LoadTokenizer(folder / "f32");
  ASSERT_TRUE(table);
  EXPECT_EQ(table->vocab_size(), 512);
  EXPECT_EQ(table->bos(), 1);
  EXPECT_EQ(table->eos(), std::vector<int32_t>{2});
  for (const nlohmann::json& sample : golden) {
    const auto prompt = sample.at("prompt").get<std::string>();
    auto ids = sample.at("ids").get<std::vector<int32_t>>();
    ids.resize(sample.at("n_prompt_tokens").get<size_t>());
    EXPECT_EQ(table->Encode(prompt, {}), ids) << prompt;
    EXPECT_EQ(gguf->Encode(prompt, {}), ids) << prompt;
    EXPECT_EQ(table->Decode(ids), prompt);
  }
}

/// Every loadable file of the data folder gives back the texts that it can express.
class TokenizerRoundTrip : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerRoundTrip, GivesTheTextBack) {
  const std::string name = std::string("tokenizers/") + GetParam();
  VQLLM_NEED_DATA(name);
  const auto tokenizer = LoadTokenizerFile(test::DataDir() / name);
  for (const char* text :
       {"", "Hello, world! 123 + 45 = 168", "fn main() {\n\tprintln!(\"x\");\n}\n",
        "  two spaces, then   three", "naïve café Ωμέγα привет 你好 🦙👨‍👩‍👧",
        " \n\n  \t"}) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, {})), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerRoundTrip,
                         testing::Values("minimind_tokenizer.json", "roberta-base_tokenizer.json",
                                         "mini_llama_tokenizer.json", "mistral_v1_tokenizer.model",
                                         "ggml-vocab-gpt-2.gguf", "ggml-vocab-llama-spm.gguf"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

/// This model normalises: white space runs become one space, and characters outside its 1000 pieces are
/// unknown. Its own library's ids for its own training sentence.
TEST(TokenizerVectors, UnigramModelNormalisesAsItsLibraryDoes) {
  VQLLM_NEED_DATA("tokenizers/sp_test_model.model");
  const auto tokenizer = LoadTokenizerFile(test::DataDir() / "tokenizers/sp_test_model.model");
  EXPECT_EQ(tokenizer->vocab_size(), 1000);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("This  is a test.", {})), "This is a test.");
  EXPECT_EQ(tokenizer->Encode("", {}), std::vector<int32_t>{tokenizer->bos()});
}

}  // namespace
}  // namespace vqllm
