#include "runtime/model/tokenizer.h"

#include <algorithm>
#include <utility>

#include "runtime/model/tokenizer_parts.h"
#include "runtime/model/utf8.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

constexpr size_t kMaxText = size_t{1} << 30;  // bytes; positions are 32-bit

/// A tokenizer put together from parts.
class PartsTokenizer : public Tokenizer {
 public:
  explicit PartsTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {}

  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const override {
    if (text.size() > kMaxText) Fail("text: found {} bytes, allowed: at most {}", text.size(), kMaxText);
    std::vector<int32_t> ids;
    if (options.add_bos) ids = parts_.prefix;
    const size_t prefix = ids.size();
    for (const TextPart& part : parts_.added.Split(text, options.parse_special)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
      } else {
        EncodeText(part.text, part.text.data() == text.data(), options.parse_special, ids);
      }
    }
    // Text that brings its own BOS gets no second one.
    const auto own = ids.begin() + static_cast<std::ptrdiff_t>(prefix);
    if (prefix > 0 && ids.size() >= 2 * prefix && std::equal(ids.begin(), own, own))
      ids.erase(ids.begin(), own);
    return ids;
  }

  std::string TokenBytes(int32_t id, bool special) const override {
    if (id < 0) Fail("token: found id {}, allowed: 0 to {}", id, parts_.vocabulary->size() - 1);
    if (id >= parts_.vocabulary->size()) return {};
    const TokenKind kind = parts_.vocabulary->kind(id);
    if (!special && (kind == TokenKind::kControl || kind == TokenKind::kUnknown)) return {};
    return parts_.vocabulary->Bytes(id);
  }

  bool strips_first_space() const override { return parts_.strips_first_space; }
  int64_t vocab_size() const override { return parts_.vocabulary->size(); }
  int32_t bos() const override { return parts_.bos; }
  std::vector<int32_t> eos() const override { return parts_.eos; }
  bool adds_bos() const override { return !parts_.prefix.empty(); }

 private:
  /// Text between added tokens: whole characters go to the encoder, broken bytes become byte tokens.
  void EncodeText(std::string_view text, bool at_start, bool parse_special, std::vector<int32_t>& ids) const {
    Fragment fragment{text, at_start, false, parse_special};
    if (parts_.encoder->TakesBrokenUtf8()) {
      parts_.encoder->Encode(fragment, ids);
      return;
    }
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      const Utf8Front front = ClassifyUtf8(text.substr(at));
      if (front.kind != Utf8Front::kWhole) {
        fragment.text = text.substr(done, at - done);
        if (!fragment.text.empty()) parts_.encoder->Encode(fragment, ids);
        EncodeBytes(text.substr(at, front.size), ids);
        done = at + front.size;
        fragment.at_start = false;
        fragment.continues = true;
      }
      at += front.size;
    }
    fragment.text = text.substr(done);
    if (!fragment.text.empty()) parts_.encoder->Encode(fragment, ids);
  }

  void EncodeBytes(std::string_view bytes, std::vector<int32_t>& ids) const {
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      const int32_t id = parts_.vocabulary->FindByte(byte);
      if (id < 0 && parts_.unknown < 0) {
        Fail("text: found the byte 0x{:02X}, which is not UTF-8 and for which the vocabulary has no token",
             byte);
      }
      ids.push_back(id < 0 ? parts_.unknown : id);
    }
  }

  TokenizerParts parts_;
};

}  // namespace

std::shared_ptr<const Tokenizer> MakeTokenizer(TokenizerParts parts) {
  return std::make_shared<PartsTokenizer>(std::move(parts));
}

}  // namespace vqllm
