#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/model/bpe_encoder.h"
#include "runtime/model/tokenizer_parts.h"
#include "vq/base/error.h"
#include "vq/checkpoint/gguf.h"

namespace vqllm {
namespace {

/// How the "gpt2" vocabularies of GGUF files cut text: tokenizer.ggml.pre names a row. The expressions are
/// those of the models' own tokenizer.json files, each of which cuts the words of the one before; what no
/// expression matches stays a word.
struct GgufSplit {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;
  bool ignore_merges;
  bool adds_bos;  ///< where the file does not say
};

constexpr std::string_view kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<GgufSplit>& GgufSplits() {
  static const std::vector<GgufSplit> splits = {
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"}, {kGpt2Split}, false, false},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"},
       {kLlama3Split},
       true,
       true},
      {{"dbrx", "smaug-bpe"}, {kLlama3Split}, false, false},
      {{"qwen2", "stablelm2", "deepseek-r1-qwen", "hunyuan"}, {kQwen2Split}, false, false},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       {R"(\p{N})", kGpt2Split},
       false,
       false},
      {{"tekken"}, {kTekkenSplit}, true, true},
      {{"deepseek-coder"},
       {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"},
       false,
       false},
      // Files that name none, or older ones that name "default".
      {{"default", ""},
       {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Split, R"(\p{N}+)", "[0-9][0-9][0-9]"},
       false,
       false},
  };
  return splits;
}

const GgufSplit& FindSplit(const std::string& name, const std::string& where) {
  std::string names;
  for (const GgufSplit& split : GgufSplits()) {
    if (std::find(split.names.begin(), split.names.end(), name) != split.names.end()) return split;
    for (const std::string_view known : split.names)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
  }
  Fail("{}: tokenizer.ggml.pre: found \"{}\", allowed: {}", where, name, names);
}

void CheckId(int32_t id, const TokenizerParts& parts, const std::string& where, std::string_view key) {
  if (id >= parts.vocabulary->size()) {
    Fail("{}: tokenizer.ggml.{}: found {}, allowed: below {}", where, key, id, parts.vocabulary->size());
  }
}

TokenKind KindOf(const GgufVocabulary& vocabulary, size_t id, const std::string& where) {
  if (vocabulary.types.empty()) return TokenKind::kNormal;
  const int32_t type = vocabulary.types[id];
  if (type < 0 || type > static_cast<int32_t>(TokenKind::kByte)) {
    Fail("{}: tokenizer.ggml.token_type: found {} for id {}, allowed: 1 to 6", where, type, id);
  }
  return type == 0 ? TokenKind::kNormal : static_cast<TokenKind>(type);
}

/// `count` must be that of the tokens, or 0 where the array may be absent.
void CheckCount(size_t count, const GgufVocabulary& vocabulary, const std::string& where,
                std::string_view key) {
  if (count != 0 && count != vocabulary.tokens.size()) {
    Fail("{}: tokenizer.ggml.{}: found {} elements, allowed: {}, one for each token", where, key, count,
         vocabulary.tokens.size());
  }
}

void AddMerges(const GgufVocabulary& vocabulary, const std::string& where, Bpe& bpe) {
  const std::string place = where + ": tokenizer.ggml.merges";
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size()) {
      Fail("{}: found a merge without two tokens, allowed: \"left right\"", place);
    }
    bpe.AddMerge(std::string_view(merge).substr(0, space), std::string_view(merge).substr(space + 1), place);
  }
}

}  // namespace

std::shared_ptr<const Tokenizer> MakeTokenizer(const GgufVocabulary& vocabulary, const std::string& where) {
  const bool spm = vocabulary.model == "llama";
  if (!spm && vocabulary.model != "gpt2") {
    Fail("{}: tokenizer.ggml.model: found \"{}\", allowed: llama, gpt2", where, vocabulary.model);
  }
  if (vocabulary.tokens.empty()) Fail("{}: tokenizer.ggml.tokens: found none, allowed: at least 1", where);
  CheckCount(vocabulary.types.size(), vocabulary, where, "token_type");
  CheckCount(vocabulary.scores.size(), vocabulary, where, "scores");
  TokenizerParts parts;
  parts.vocabulary = std::make_unique<Vocabulary>(spm ? Spelling::kMetaspace : Spelling::kByteLevel);
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& text = vocabulary.tokens[id];
    const TokenKind kind = KindOf(vocabulary, id, where);
    parts.vocabulary->Add(static_cast<int64_t>(id), text, kind, where + ": tokenizer.ggml.tokens");
    const bool special = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if ((special || kind == TokenKind::kUserDefined) && !text.empty()) {
      parts.added.Add({.text = text, .id = static_cast<int32_t>(id), .special = special},
                      where + ": tokenizer.ggml.tokens");
    }
  }
  CheckId(vocabulary.bos, parts, where, "bos_token_id");
  CheckId(vocabulary.eos, parts, where, "eos_token_id");
  CheckId(vocabulary.unknown, parts, where, "unknown_token_id");
  parts.bos = std::max(vocabulary.bos, -1);
  parts.unknown = std::max(vocabulary.unknown, -1);
  if (vocabulary.eos >= 0) parts.eos.push_back(vocabulary.eos);
  for (const int32_t id : vocabulary.more_eos) {
    CheckId(id, parts, where, "eot_token_id");
    if (id >= 0 && std::find(parts.eos.begin(), parts.eos.end(), id) == parts.eos.end())
      parts.eos.push_back(id);
  }
  bool adds_bos = true;
  if (spm) {
    if (vocabulary.scores.empty()) Fail("{}: tokenizer.ggml.scores: missing", where);
    for (const float score : vocabulary.scores) {
      if (!std::isfinite(score))
        Fail("{}: tokenizer.ggml.scores: found {}, allowed: finite numbers", where, score);
    }
    const bool space_prefix = vocabulary.add_space_prefix.value_or(true);
    parts.strips_first_space = space_prefix;
    parts.encoder = MakeScoreEncoder(*parts.vocabulary, vocabulary.scores, parts.unknown, space_prefix);
  } else {
    const GgufSplit& split = FindSplit(vocabulary.pre, where);
    adds_bos = split.adds_bos;
    BpePipeline pipeline;
    for (const std::string_view pattern : split.patterns) {
      pipeline.pretokenizer.AddSplit(Regex(pattern, "tokenizer.ggml.pre " + vocabulary.pre),
                                     SplitBehavior::kIsolated, false);
    }
    if (vocabulary.add_space_prefix.value_or(false)) pipeline.pretokenizer.AddPrefixSpace();
    pipeline.bpe = std::make_unique<Bpe>(
        *parts.vocabulary, Bpe::Options{.ignore_merges = split.ignore_merges, .unknown = parts.unknown});
    AddMerges(vocabulary, where, *pipeline.bpe);
    parts.encoder = MakeBpeEncoder(std::move(pipeline));
  }
  if (vocabulary.add_bos.value_or(adds_bos) && parts.bos >= 0) parts.prefix = {parts.bos};
  return MakeTokenizer(std::move(parts));
}

std::shared_ptr<const Tokenizer> ReadGgufTokenizer(const GgufFile& file) {
  const auto key = [](std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); };
  if (!file.Has(key("tokens"))) return nullptr;
  GgufVocabulary vocabulary;
  vocabulary.model = file.String(key("model"));
  vocabulary.pre = file.StringOr(key("pre"), "");
  vocabulary.tokens = file.Strings(key("tokens"));
  if (file.Has(key("scores"))) vocabulary.scores = file.Floats(key("scores"));
  if (file.Has(key("merges"))) vocabulary.merges = file.Strings(key("merges"));
  if (file.Has(key("token_type"))) {
    for (const int64_t type : file.Ints(key("token_type"))) {
      vocabulary.types.push_back(static_cast<int32_t>(std::clamp<int64_t>(type, -1, 7)));  // 7 is refused
    }
  }
  // Some writers put 2^32 - 1 for a token that there is none of.
  const auto id = [&](std::string_view name) {
    const int64_t value = file.IntOr(key(name), -1, UINT32_MAX, -1);
    return value == UINT32_MAX ? -1 : static_cast<int32_t>(std::min<int64_t>(value, INT32_MAX));
  };
  vocabulary.bos = id("bos_token_id");
  vocabulary.eos = id("eos_token_id");
  vocabulary.unknown = id("unknown_token_id");
  vocabulary.more_eos = {id("eot_token_id"), id("eom_token_id")};
  if (file.Has(key("add_bos_token"))) vocabulary.add_bos = file.BoolOr(key("add_bos_token"), true);
  if (file.Has(key("add_space_prefix")))
    vocabulary.add_space_prefix = file.BoolOr(key("add_space_prefix"), true);
  return MakeTokenizer(vocabulary, file.where());
}

}  // namespace vqllm
