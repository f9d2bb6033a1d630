#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace vqllm {

/// What a token is; the numbers are those of tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kAbsent = 0,  ///< an id without a token: vocabularies may have holes
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      ///< no text of its own: BOS, EOS, chat marks
  kUserDefined = 4,  ///< text that is always one token
  kUnused = 5,
  kByte = 6,  ///< one byte of text, for characters that the vocabulary lacks
};

/// How the spelling of a token stands for bytes of text.
enum class Spelling : uint8_t {
  kByteLevel,  ///< GPT-2's alphabet: one printable character for each byte
  kMetaspace,  ///< U+2581 for a space, "<0x0A>" for kByte tokens
};

/// Tokens and their ids.
class Vocabulary {
 public:
  /// Ids are at most this: several times the largest vocabulary in use.
  static constexpr int64_t kMaxId = (1 << 20) - 1;

  explicit Vocabulary(Spelling spelling);

  /// Throws Error "<where>: ..." where the id is out of range or already has another token. Of two ids with
  /// one text, Find knows the later.
  void Add(int64_t id, std::string text, TokenKind kind, const std::string& where);
  void SetKind(int32_t id, TokenKind kind) { kinds_[static_cast<size_t>(id)] = kind; }

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }
  const std::string& text(int32_t id) const { return texts_[static_cast<size_t>(id)]; }
  TokenKind kind(int32_t id) const { return kinds_[static_cast<size_t>(id)]; }
  Spelling spelling() const { return spelling_; }
  /// -1 where no token is spelled so.
  int32_t Find(std::string_view text) const;
  /// The token of a single byte; -1 where there is none.
  int32_t FindByte(unsigned char byte) const { return byte_ids_[byte]; }
  /// Bytes of the longest token.
  size_t longest() const { return longest_; }
  /// The bytes that a token adds to a text; a control token's are its name.
  std::string Bytes(int32_t id) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  Spelling spelling_;
  std::vector<std::string> texts_;
  std::vector<TokenKind> kinds_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::array<int32_t, 256> byte_ids_;
  size_t longest_ = 0;
};

/// U+2581, sentencepiece's spelling of a space.
inline constexpr std::string_view kMetaspace = "\xe2\x96\x81";

/// The spelling of bytes in GPT-2's alphabet: bytes that print in Latin-1 stand for themselves, the others
/// follow from U+0100 on.
std::string ByteLevelSpelling(std::string_view bytes);

}  // namespace vqllm
