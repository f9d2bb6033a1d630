#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace vqllm {

/// What the bytes at the front of a text are.
struct Utf8Front {
  enum Kind {
    kWhole,       ///< a character
    kBroken,      ///< bytes that are part of none: a maximal subpart, as Unicode section 3.9 has it
    kUnfinished,  ///< the beginning of a character that the text cuts off
  } kind;
  size_t size;
};

/// `text` must not be empty.
Utf8Front ClassifyUtf8(std::string_view text);

/// Bytes of the character that begins with `lead`, in text known to be valid.
size_t Utf8Size(char lead);

/// The first character of valid, non-empty text.
char32_t FirstCharacter(std::string_view text);
/// The last character of valid, non-empty text.
char32_t LastCharacter(std::string_view text);

/// Unicode's White_Space.
bool IsWhiteSpace(char32_t character);

/// Text in which every "from" is "to". `from` must not be empty.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

}  // namespace vqllm
