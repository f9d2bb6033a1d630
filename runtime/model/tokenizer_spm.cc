#include <cstring>
#include <utility>

#include "runtime/model/spm.h"
#include "runtime/model/tokenizer_parts.h"
#include "runtime/model/utf8.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

class ScoreEncoder : public FragmentEncoder {
 public:
  ScoreEncoder(const Vocabulary& vocabulary, std::vector<float> scores, int32_t unknown, bool space_prefix)
      : merger_(vocabulary, std::move(scores), unknown), space_prefix_(space_prefix) {}

  void Encode(const Fragment& fragment, std::vector<int32_t>& ids) const override {
    std::string text = ReplaceAll(fragment.text, " ", kMetaspace);
    if (space_prefix_ && !fragment.continues) text.insert(0, kMetaspace);
    merger_.Encode(text, ids);
  }

 private:
  ScoreMerger merger_;
  bool space_prefix_;
};

}  // namespace

std::unique_ptr<FragmentEncoder> MakeScoreEncoder(const Vocabulary& vocabulary, std::vector<float> scores,
                                                  int32_t unknown, bool space_prefix) {
  return std::make_unique<ScoreEncoder>(vocabulary, std::move(scores), unknown, space_prefix);
}

/// The layout (llama2.c, tokenizer.py): int32 longest token; then for each id float score, int32 size, bytes.
/// Spaces were written for U+2581, and ids 0, 1, 2 are unknown, BOS and EOS.
TokenizerParts ReadLlama2c(std::string_view bytes, const std::string& where) {
  constexpr size_t kMaxToken = 4096;
  TokenizerParts parts;
  parts.vocabulary = std::make_unique<Vocabulary>(Spelling::kMetaspace);
  std::vector<float> scores;
  size_t at = sizeof(int32_t);
  while (at < bytes.size()) {
    float score = 0;
    int32_t size = 0;
    if (bytes.size() - at < sizeof(score) + sizeof(size)) Fail("{}: cut off at byte {}", where, at);
    std::memcpy(&score, bytes.data() + at, sizeof(score));
    std::memcpy(&size, bytes.data() + at + sizeof(score), sizeof(size));
    at += sizeof(score) + sizeof(size);
    if (size < 0 || static_cast<size_t>(size) > kMaxToken || static_cast<size_t>(size) > bytes.size() - at) {
      Fail("{}: token {}: found size {}, allowed: 0 to {}, within the file", where, scores.size(), size,
           kMaxToken);
    }
    if (!(score > -1e30f && score < 1e30f)) {
      Fail("{}: token {}: found score {}, allowed: a finite number", where, scores.size(), score);
    }
    const auto id = static_cast<int64_t>(scores.size());
    std::string text = ReplaceAll(bytes.substr(at, static_cast<size_t>(size)), " ", kMetaspace);
    at += static_cast<size_t>(size);
    const bool byte = text.size() == 6 && text.starts_with("<0x");
    const TokenKind kind = id == 0   ? TokenKind::kUnknown
                           : id <= 2 ? TokenKind::kControl
                           : byte    ? TokenKind::kByte
                                     : TokenKind::kNormal;
    // BOS and EOS are written between newlines.
    if (kind == TokenKind::kControl) text = id == 1 ? "<s>" : "</s>";
    if (kind == TokenKind::kControl)
      parts.added.Add({.text = text, .id = static_cast<int32_t>(id), .special = true}, where);
    parts.vocabulary->Add(id, std::move(text), kind, where);
    scores.push_back(score);
  }
  if (scores.size() < 3) Fail("{}: found {} tokens, allowed: at least 3", where, scores.size());
  parts.bos = 1;
  parts.eos = {2};
  parts.unknown = 0;
  parts.prefix = {1};
  parts.strips_first_space = true;
  parts.encoder = MakeScoreEncoder(*parts.vocabulary, std::move(scores), parts.unknown, true);
  return parts;
}

}  // namespace vqllm
