#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace vqllm::ptx {

struct Token {
  enum class Kind : uint8_t {
    kWord,    ///< name, register, directive, opcode with its modifiers
    kNumber,  ///< integer in any base, 0f/0d bits, or decimal float
    kString,  ///< with its quotes
    kPunctuation,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string_view text;  ///< a piece of the source
  int line = 0;
};

/// Cuts PTX text into tokens; comments vanish, the last token is kEnd. The tokens point into `source`. Throws
/// Error, naming `name` and the line, for a byte that PTX does not have or an open comment or string.
std::vector<Token> Lex(std::string_view source, std::string_view name);

}  // namespace vqllm::ptx
