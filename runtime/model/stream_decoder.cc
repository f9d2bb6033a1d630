#include "runtime/model/tokenizer.h"
#include "runtime/model/utf8.h"

namespace vqllm {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

std::string TakeWholeCharacters(std::string& bytes) {
  std::string out;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const Utf8Front front = ClassifyUtf8(rest);
    if (front.kind == Utf8Front::kUnfinished) break;
    out += front.kind == Utf8Front::kWhole ? rest.substr(0, front.size) : kReplacement;
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
