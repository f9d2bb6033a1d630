#include "runtime/model/utf8.h"

namespace vqllm {

/// Table 3-7 of the Unicode standard: the second byte is narrower after E0, ED, F0 and F4.
Utf8Front ClassifyUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8Front::kWhole, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Utf8Front::kBroken, 1};
  const size_t size = Utf8Size(text[0]);
  for (size_t i = 1; i < size; ++i) {
    if (i == text.size()) return {Utf8Front::kUnfinished, i};
    unsigned char low = 0x80;
    unsigned char high = 0xbf;
    if (i == 1) {
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    }
    if (byte(i) < low || byte(i) > high) return {Utf8Front::kBroken, i};
  }
  return {Utf8Front::kWhole, size};
}

size_t Utf8Size(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
}

char32_t FirstCharacter(std::string_view text) {
  const size_t size = Utf8Size(text[0]);
  const auto lead = static_cast<unsigned char>(text[0]);
  char32_t character = size == 1 ? lead : lead & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i)
    character = character << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
  return character;
}

char32_t LastCharacter(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return FirstCharacter(text.substr(begin));
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string_view::npos; begin = at + from.size()) {
    out += text.substr(begin, at - begin);
    out += to;
  }
  out += text.substr(begin);
  return out;
}

}  // namespace vqllm
