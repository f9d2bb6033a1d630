#include <string>

#include "runtime/model/kv_files.h"
#include "vq/base/file.h"
#include "vq/checkpoint/gguf.h"

namespace vqllm {
namespace {

/// Little-endian pieces of a GGUF file of version 3.
class GgufText {
 public:
  template <typename T>
  void Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void String(const std::string& text) {
    Number(static_cast<uint64_t>(text.size()));
    bytes_ += text;
  }
  void Key(const std::string& key, GgufType type) {
    String(key);
    Number(static_cast<uint32_t>(type));
    ++keys_;
  }
  void Array(const std::string& key, GgufType element, size_t count) {
    Key(key, GgufType::kArray);
    Number(static_cast<uint32_t>(element));
    Number(static_cast<uint64_t>(count));
  }
  /// The whole file: header, metadata, no tensors.
  std::string File() const {
    GgufText header;
    header.bytes_ = "GGUF";
    header.Number(uint32_t{3});
    header.Number(uint64_t{0});
    header.Number(keys_);
    return header.bytes_ + bytes_;
  }

 private:
  std::string bytes_;
  uint64_t keys_ = 0;
};

}  // namespace

void WriteVocabulary(const std::filesystem::path& gguf, const std::filesystem::path& out) {
  const GgufFile file(gguf);
  if (!file.Has("tokenizer.ggml.tokens")) return;
  GgufText text;
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.pre"}) {
    if (!file.Has(key)) continue;
    text.Key(key, GgufType::kString);
    text.String(file.String(key));
  }
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    if (!file.Has(key)) continue;
    const std::vector<std::string> strings = file.Strings(key);
    text.Array(key, GgufType::kString, strings.size());
    for (const std::string& string : strings) text.String(string);
  }
  if (file.Has("tokenizer.ggml.scores")) {
    const std::vector<float> scores = file.Floats("tokenizer.ggml.scores");
    text.Array("tokenizer.ggml.scores", GgufType::kF32, scores.size());
    for (const float score : scores) text.Number(score);
  }
  if (file.Has("tokenizer.ggml.token_type")) {
    const std::vector<int64_t> types = file.Ints("tokenizer.ggml.token_type");
    text.Array("tokenizer.ggml.token_type", GgufType::kI32, types.size());
    for (const int64_t type : types) text.Number(static_cast<int32_t>(type));
  }
  for (const char* key :
       {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id", "tokenizer.ggml.unknown_token_id"}) {
    if (!file.Has(key)) continue;
    text.Key(key, GgufType::kU32);
    text.Number(static_cast<uint32_t>(file.Int(key, 0, UINT32_MAX)));
  }
  for (const char* key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix"}) {
    if (!file.Has(key)) continue;
    text.Key(key, GgufType::kBool);
    text.Number(static_cast<uint8_t>(file.BoolOr(key, false)));
  }
  WriteFileAtomically(out, text.File());
}

}  // namespace vqllm
