#include "runtime/model/tokenizer.h"

namespace vqllm {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

/// What the bytes at the front of `s` are: a character, a broken part, or the beginning of a character that
/// the text cuts off.
struct Front {
  enum { kWhole, kBroken, kUnfinished } kind;
  size_t size;
};

/// Table 3-7 of the Unicode standard: the second byte is narrower after E0, ED, F0 and F4.
Front Classify(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Front::kWhole, 1};
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return {Front::kBroken, 1};
  for (size_t i = 1; i < size; ++i) {
    if (i == s.size()) return {Front::kUnfinished, i};
    unsigned char low = 0x80;
    unsigned char high = 0xbf;
    if (i == 1) {
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    }
    if (byte(i) < low || byte(i) > high) return {Front::kBroken, i};
  }
  return {Front::kWhole, size};
}

}  // namespace

std::string TakeWholeCharacters(std::string& bytes) {
  std::string out;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const Front front = Classify(rest);
    if (front.kind == Front::kUnfinished) break;
    out += front.kind == Front::kWhole ? rest.substr(0, front.size) : kReplacement;
    rest.remove_prefix(front.size);
  }
  bytes = std::string(rest);
  return out;
}

std::string StreamDecoder::Push(int32_t id) {
  std::string bytes = tokenizer_.TokenBytes(id);
  if (bytes.empty()) return {};
  if (at_start_ && tokenizer_.strips_first_space() && bytes.front() == ' ') bytes.erase(0, 1);
  at_start_ = false;
  pending_ += bytes;
  return TakeWholeCharacters(pending_);
}

std::string StreamDecoder::Finish() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return unfinished ? std::string(kReplacement) : std::string();
}

std::string Tokenizer::Decode(std::span<const int32_t> ids) const {
  StreamDecoder decoder(*this, false);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

}  // namespace vqllm
