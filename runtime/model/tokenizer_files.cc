#include <algorithm>
#include <utility>

#include "runtime/model/kv_files.h"
#include "runtime/model/tokenizer_json.h"
#include "runtime/model/tokenizer_parts.h"
#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/checkpoint/gguf.h"

namespace vqllm {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxJson = uint64_t{64} << 20;  // the largest in use has 33 MiB
constexpr uint64_t kMaxLlama2c = uint64_t{64} << 20;

/// A token as tokenizer_config.json writes it: its text, or an object with the text as "content".
int32_t ReadToken(const JsonReader& config, std::string_view field, const Vocabulary& vocabulary) {
  const std::string text =
      config.Raw(field).is_object() ? config.Object(field).String("content") : config.String(field);
  const int32_t id = vocabulary.Find(text);
  if (id < 0) config.Refuse(field, "a token of the vocabulary");
  return id;
}

void AddDecoderTokens(const JsonReader& config, TokenizerParts& parts) {
  const JsonReader tokens = config.Object("added_tokens_decoder");
  for (const auto& [key, value] : tokens.value().items()) {
    const JsonReader reader(value,
                            fmt::format("{}: {}", tokens.where(), nlohmann::json(key).dump(-1, ' ', true)));
    const bool number =
        !key.empty() && key.size() <= 7 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!number) Fail("{}: found a key that is no id", reader.where());
    parts.added.Add(ReadAddedToken(reader, std::stoi(key), *parts.vocabulary), reader.where());
  }
}

TokenizerParts ReadJsonFile(const fs::path& path) {
  return ReadTokenizerJson(ReadTextFile(path, kMaxJson), path.string());
}

TokenizerParts ReadLlama2cFile(const fs::path& path) {
  return ReadLlama2c(ReadTextFile(path, kMaxLlama2c), path.string());
}

/// Applies the tokenizer_config.json beside `path`, where there is one.
std::shared_ptr<const Tokenizer> WithConfig(TokenizerParts parts, const fs::path& folder, bool adds_tokens) {
  const fs::path path = folder / "tokenizer_config.json";
  if (fs::exists(path)) ApplyTokenizerConfig(ReadTextFile(path, kMaxJson), path.string(), adds_tokens, parts);
  return MakeTokenizer(std::move(parts));
}

}  // namespace

void ApplyTokenizerConfig(std::string_view text, const std::string& where, bool adds_tokens,
                          TokenizerParts& parts) {
  const nlohmann::json parsed = ParseJson(text, where);
  const JsonReader config(parsed, where);
  if (adds_tokens && config.Has("added_tokens_decoder")) AddDecoderTokens(config, parts);
  if (config.Has("bos_token")) parts.bos = ReadToken(config, "bos_token", *parts.vocabulary);
  if (config.Has("eos_token")) parts.eos = {ReadToken(config, "eos_token", *parts.vocabulary)};
  if (!config.Has("add_bos_token")) return;
  if (!config.BoolOr("add_bos_token", false)) {
    parts.prefix.clear();
  } else if (parts.prefix.empty() && parts.bos >= 0) {
    parts.prefix = {parts.bos};
  }
}

std::shared_ptr<const Tokenizer> LoadTokenizer(const fs::path& folder) {
  const auto there = [](const fs::path& path) { return fs::is_regular_file(path); };
  if (there(folder / "tokenizer.json"))
    return WithConfig(ReadJsonFile(folder / "tokenizer.json"), folder, false);
  if (there(folder / "tokenizer.model"))
    return WithConfig(ReadSentencePiece(folder / "tokenizer.model"), folder, true);
  if (there(folder / kVocabularyFile)) return ReadGgufTokenizer(GgufFile(folder / kVocabularyFile));
  for (const fs::path& place : {folder, fs::absolute(folder).lexically_normal() / ".."}) {
    for (const char* name : {"tokenizer.bin", "tok512.bin"}) {
      if (there(place / name)) return MakeTokenizer(ReadLlama2cFile(place / name));
    }
  }
  return nullptr;
}

std::shared_ptr<const Tokenizer> LoadTokenizerFile(const fs::path& path) {
  if (fs::is_directory(path)) {
    auto tokenizer = LoadTokenizer(path);
    if (!tokenizer)
      Fail("{}: found no tokenizer, allowed: tokenizer.json, tokenizer.model, tokenizer.bin", path.string());
    return tokenizer;
  }
  const std::string ending = path.extension().string();
  if (ending == ".json") return WithConfig(ReadJsonFile(path), path.parent_path(), false);
  if (ending == ".model") return WithConfig(ReadSentencePiece(path), path.parent_path(), true);
  if (ending == ".bin") return MakeTokenizer(ReadLlama2cFile(path));
  if (ending == ".gguf") {
    auto tokenizer = ReadGgufTokenizer(GgufFile(path));
    if (!tokenizer) Fail("{}: tokenizer.ggml.tokens: missing", path.string());
    return tokenizer;
  }
  Fail("{}: found a file ending in \"{}\", allowed: .json, .model, .bin, .gguf", path.string(), ending);
}

}  // namespace vqllm
