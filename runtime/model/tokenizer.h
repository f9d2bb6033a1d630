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

/// Text to token ids and back. Immutable; may be shared by threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  struct EncodeOptions {
    bool add_bos = true;  ///< BOS in front, where the model has one that its own settings add; never twice
    bool parse_special = false;  ///< "<|endoftext|>" in the text means the token; else it is plain characters
  };
  /// Invalid UTF-8 is encoded byte by byte where the vocabulary has bytes, else as the unknown token; nothing
  /// is lost silently. (Sentencepiece's own library takes U+FFFD for it.) Throws Error on text that the
  /// vocabulary cannot express.
  virtual std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const = 0;

  /// The bytes that a token adds to a text; a piece of a UTF-8 character is possible. Special tokens give
  /// nothing unless `special`, which gives their name; ids past the vocabulary, which pad some embeddings,
  /// give nothing either. Throws Error on negative ids.
  virtual std::string TokenBytes(int32_t id, bool special = false) const = 0;

  /// Whether a space that the encoder puts in front of a text is taken off again where a text begins.
  virtual bool strips_first_space() const { return false; }

  virtual int64_t vocab_size() const = 0;
  virtual int32_t bos() const = 0;               ///< -1: none
  virtual std::vector<int32_t> eos() const = 0;  ///< may be empty
  virtual bool adds_bos() const = 0;             ///< whether EncodeOptions::add_bos has an effect

  /// A whole text: valid UTF-8, every invalid sequence replaced by U+FFFD.
  std::string Decode(std::span<const int32_t> ids) const;
};

/// Decodes token by token and never hands out part of a UTF-8 character. The pieces and Finish() add up to
/// what Tokenizer::Decode gives for the same tokens.
class StreamDecoder {
 public:
  /// `continues`: the tokens go on from a prompt, so that a first space stays.
  StreamDecoder(const Tokenizer& tokenizer, bool continues) : tokenizer_(tokenizer), at_start_(!continues) {}
  /// Text that is complete with this token.
  std::string Push(int32_t id);
  /// What is left: U+FFFD for an unfinished character, else nothing.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  bool at_start_;
  std::string pending_;  // the beginning of a character
};

/// The longest prefix of `bytes` that does not end within a character, each invalid sequence replaced by
/// U+FFFD (one for each maximal broken part, as Unicode recommends); the rest, at most 3 bytes, is left in
/// `bytes`.
std::string TakeWholeCharacters(std::string& bytes);

/// The tokenizer of a Hugging Face directory: tokenizer.json (byte-level or byte-fallback BPE), else
/// tokenizer.model (sentencepiece), else tokenizer.gguf (what a quantised .gguf leaves), else tokenizer.bin
/// or tok512.bin of llama2.c there or one folder up. A tokenizer_config.json beside the first two names BOS
/// and EOS, and has the last word on whether BOS is added. Null where there is none. Throws Error on files
/// that it cannot honour exactly.
std::shared_ptr<const Tokenizer> LoadTokenizer(const std::filesystem::path& folder);

/// The tokenizer of one file, by its ending: .json, .model, .bin (llama2.c) or .gguf; or of a directory as
/// above, which must have one.
std::shared_ptr<const Tokenizer> LoadTokenizerFile(const std::filesystem::path& path);

/// A tokenizer.json.
std::shared_ptr<const Tokenizer> ParseTokenizerJson(std::string_view json, const std::string& where);

/// A vocabulary as GGUF metadata holds it.
struct GgufVocabulary {
  std::string model;  ///< tokenizer.ggml.model: "llama" (SPM) or "gpt2" (byte-level BPE)
  std::string pre;    ///< tokenizer.ggml.pre: names the split of "gpt2" vocabularies
  std::vector<std::string> tokens;
  std::vector<float> scores;        ///< "llama"
  std::vector<int32_t> types;       ///< 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;  ///< "gpt2": "left right"
  int32_t bos = -1, eos = -1, unknown = -1;
  std::vector<int32_t> more_eos;         ///< eot and eom ids
  std::optional<bool> add_bos;           ///< else what the kind of vocabulary does
  std::optional<bool> add_space_prefix;  ///< likewise
};
/// Throws Error that begins with `where` and names the key.
std::shared_ptr<const Tokenizer> MakeTokenizer(const GgufVocabulary& vocabulary, const std::string& where);

class GgufFile;
/// The tokenizer in the metadata of a GGUF file; null where there is none. Throws Error that names file and
/// key.
std::shared_ptr<const Tokenizer> ReadGgufTokenizer(const GgufFile& file);

}  // namespace vqllm
