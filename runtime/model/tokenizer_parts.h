#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/added_tokens.h"
#include "runtime/model/tokenizer.h"
#include "runtime/model/vocabulary.h"

namespace vqllm {

/// A stretch of input between added tokens.
struct Fragment {
  std::string_view text;       ///< not empty
  bool at_start = false;       ///< the input begins with it
  bool continues = false;      ///< it follows broken bytes, not an added token: nothing is put in front
  bool parse_special = false;  ///< for added tokens that are found after normalising
};

/// The part of a tokenizer in which the kinds differ: text between added tokens to ids.
class FragmentEncoder {
 public:
  virtual ~FragmentEncoder() = default;
  virtual void Encode(const Fragment& fragment, std::vector<int32_t>& ids) const = 0;
  /// Whether it takes broken UTF-8 and does with it what its model's authors want. Else it sees whole
  /// characters only, and broken bytes become byte tokens.
  virtual bool TakesBrokenUtf8() const { return false; }
};

/// What a loader finds out about a tokenizer.
struct TokenizerParts {
  std::unique_ptr<Vocabulary> vocabulary;  ///< on the heap: encoders point to it
  AddedTokens added;
  std::unique_ptr<FragmentEncoder> encoder;
  int32_t bos = -1;
  std::vector<int32_t> eos;
  int32_t unknown = -1;
  std::vector<int32_t> prefix;  ///< what EncodeOptions::add_bos puts in front
  bool strips_first_space = false;
};

std::shared_ptr<const Tokenizer> MakeTokenizer(TokenizerParts parts);

/// The file tokenizer.model of sentencepiece, with the tokens that tokenizer_config.json adds to it.
TokenizerParts ReadSentencePiece(const std::filesystem::path& path);
/// llama2.c's tokenizer.bin.
TokenizerParts ReadLlama2c(std::string_view bytes, const std::string& where);
TokenizerParts ReadTokenizerJson(std::string_view json, const std::string& where);
/// What tokenizer_config.json (`json`) says of BOS, EOS and added tokens.
/// `adds_tokens`: whether its added_tokens_decoder counts, as beside a tokenizer.model.
void ApplyTokenizerConfig(std::string_view json, const std::string& where, bool adds_tokens,
                          TokenizerParts& parts);

/// Sentencepiece's BPE by scores: spaces become U+2581, one in front of a text and after added tokens where
/// `space_prefix`.
std::unique_ptr<FragmentEncoder> MakeScoreEncoder(const Vocabulary& vocabulary, std::vector<float> scores,
                                                  int32_t unknown, bool space_prefix);

}  // namespace vqllm
