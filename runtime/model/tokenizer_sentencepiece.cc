#include <sentencepiece_processor.h>

#include "runtime/model/tokenizer_parts.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

constexpr uint64_t kMaxFile = uint64_t{64} << 20;

void Check(const sentencepiece::util::Status& status, const std::string& where) {
  if (!status.ok()) Fail("{}: sentencepiece: {}", where, status.ToString());
}

class SentencePieceEncoder : public FragmentEncoder {
 public:
  explicit SentencePieceEncoder(std::unique_ptr<const sentencepiece::SentencePieceProcessor> processor)
      : processor_(std::move(processor)) {}

  void Encode(const Fragment& fragment, std::vector<int32_t>& ids) const override {
    std::vector<int> pieces;
    Check(processor_->Encode({fragment.text.data(), fragment.text.size()}, &pieces), "text");
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }
  bool TakesBrokenUtf8() const override { return true; }

 private:
  std::unique_ptr<const sentencepiece::SentencePieceProcessor> processor_;
};

TokenKind KindOf(const sentencepiece::SentencePieceProcessor& processor, int id) {
  if (processor.IsUnknown(id)) return TokenKind::kUnknown;
  if (processor.IsControl(id)) return TokenKind::kControl;
  if (processor.IsUnused(id)) return TokenKind::kUnused;
  if (processor.IsByte(id)) return TokenKind::kByte;
  return TokenKind::kNormal;
}

}  // namespace

TokenizerParts ReadSentencePiece(const std::filesystem::path& path) {
  const std::string where = path.string();
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  Check(processor->LoadFromSerializedProto(ReadTextFile(path, kMaxFile)), where);
  TokenizerParts parts;
  parts.vocabulary = std::make_unique<Vocabulary>(Spelling::kMetaspace);
  for (int id = 0; id < processor->GetPieceSize(); ++id) {
    const TokenKind kind = KindOf(*processor, id);
    const std::string& text = processor->IdToPiece(id);
    parts.vocabulary->Add(id, text, kind, where);
    const bool special = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if (special && !text.empty()) parts.added.Add({.text = text, .id = id, .special = true}, where);
  }
  parts.unknown = processor->unk_id();
  parts.bos = processor->bos_id();
  if (processor->eos_id() >= 0) parts.eos = {processor->eos_id()};
  if (parts.bos >= 0) parts.prefix = {parts.bos};
  // The library does not tell whether the model puts a space in front, but shows it.
  std::vector<std::string> shown;
  Check(processor->Encode("a", &shown), where);
  parts.strips_first_space = !shown.empty() && shown[0].starts_with(kMetaspace);
  parts.encoder = std::make_unique<SentencePieceEncoder>(std::move(processor));
  return parts;
}

}  // namespace vqllm
