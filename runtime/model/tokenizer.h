#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vqllm {

/// What a token is, in the words of GGUF's tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      ///< no text of its own: BOS, EOS, chat marks
  kUserDefined = 4,  ///< text that is always one token
  kUnused = 5,
  kByte = 6,  ///< one byte of text, for characters that the vocabulary lacks
};

struct EncodeOptions {
  /// Begin with BOS where the tokenizer asks for it (adds_bos()). Text that itself begins with BOS, when
  /// special tokens are parsed, gets no second one.
  bool add_bos = true;
  /// The text of a control token in the input ("</s>") becomes that token. Leave it off for untrusted text.
  bool parse_special = false;
};

struct DecodeOptions {
  /// Control and unknown tokens give no text.
  bool skip_special = true;
  /// The ids follow earlier text, so their first space is real. Off, the space that the encoder put before
  /// the text is taken away again.
  bool continuation = false;
};

/// A vocabulary with the byte strings that its tokens stand for, and the facts that loaders find beside it.
struct TokenizerParts;
/// What tokenizer.ggml.* of a GGUF file says.
struct GgufVocabulary;

/// Text <-> token ids. Immutable; safe to share between threads.
///
/// Text is UTF-8. Each ill-formed byte sequence (the maximal subparts of Unicode section 3.9) counts as
/// U+FFFD, going in and coming out: Encode never fails on bytes, and Decode gives valid UTF-8.
class Tokenizer {
 public:
  /// The tokenizer of a Hugging Face directory: tokenizer.json (byte-level or byte-fallback BPE), else
  /// tokenizer.model (sentencepiece), else llama2.c's tokenizer.bin or tok*.bin there or in the parent
  /// folder. tokenizer_config.json, where present, names BOS and EOS. Null where there is none of these.
  /// Throws Error that names the file and the field.
  static std::shared_ptr<const Tokenizer> FromDirectory(const std::filesystem::path& folder);
  /// One file by its ending: .json, .model, .bin or .gguf; or a directory, as above but never null.
  static std::shared_ptr<const Tokenizer> FromFile(const std::filesystem::path& path);
  /// `where` begins the errors. Kinds "llama" (sentencepiece by scores) and "gpt2" (byte-level BPE).
  static std::shared_ptr<const Tokenizer> FromGguf(GgufVocabulary vocabulary, const std::string& where);

  explicit Tokenizer(TokenizerParts parts);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Throws Error where a byte-level vocabulary lacks a byte of the text.
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Throws Error where an id is outside the vocabulary.
  std::string Decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  /// One more than the largest id. A model's embedding may have more rows: padding.
  int64_t vocab_size() const;
  /// -1 where the tokenizer has none.
  int32_t bos_id() const;
  /// Tokens that end a text (EOS, end of turn) as far as the tokenizer's files say; the model's own config may
  /// list more.
  const std::vector<int32_t>& eos_ids() const;
  bool adds_bos() const;

  /// The token as the vocabulary spells it ("Ġthe", "▁the", "<0x0A>"); empty for an id without a token.
  const std::string& TokenText(int32_t id) const;
  /// The id of a token as the vocabulary spells it.
  std::optional<int32_t> FindToken(std::string_view text) const;
  /// True for control and unknown tokens.
  bool IsSpecial(int32_t id) const;
  /// Jinja source of the chat template that lies beside the tokenizer; empty where there is none.
  const std::string& chat_template() const;

 private:
  friend class StreamDecoder;
  /// The bytes of a token; empty where `options` skip it.
  std::string_view Bytes(int32_t id, const DecodeOptions& options) const;

  std::unique_ptr<const TokenizerParts> parts_;
};

/// Decodes token by token. The pieces are whole characters, and together with Finish() they equal Decode of
/// all ids at once.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options = {});
  /// The text that has become certain; empty while a character is incomplete.
  std::string Push(int32_t id);
  /// The end: an incomplete character becomes one U+FFFD.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::string held_;
  int strip_left_;
};

}  // namespace vqllm
