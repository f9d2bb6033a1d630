#include <algorithm>
#include <utility>

#include "runtime/model/tokenizer_json.h"
#include "runtime/model/tokenizer_parts.h"
#include "vq/base/error.h"
#include "vq/base/json_reader.h"

namespace vqllm {
namespace {

using nlohmann::json;

void AddVocabulary(const JsonReader& model, bool byte_tokens, Vocabulary& vocabulary) {
  const std::string where = model.where() + ": vocab";
  for (const auto& [text, id] : model.Object("vocab").value().items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(Vocabulary::kMaxId)) {
      Fail("{}: found an id that is none for token {}, allowed: 0 to {}", where,
           json(text).dump(-1, ' ', true), Vocabulary::kMaxId);
    }
    const bool byte = byte_tokens && text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
    vocabulary.Add(id.get<int64_t>(), text, byte ? TokenKind::kByte : TokenKind::kNormal, where);
  }
}

void AddMerges(const JsonReader& model, Bpe& bpe) {
  const json& merges = model.Raw("merges");
  if (!merges.is_array()) model.Refuse("merges", "a list");
  size_t index = 0;
  for (const json& merge : merges) {
    const std::string where = fmt::format("{}: merges[{}]", model.where(), index++);
    const bool pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    if (pair) {
      bpe.AddMerge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), where);
      continue;
    }
    const std::string_view text =
        merge.is_string() ? merge.get_ref<const std::string&>() : std::string_view();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      Fail("{}: found something else, allowed: \"left right\" or [\"left\", \"right\"]", where);
    }
    bpe.AddMerge(text.substr(0, space), text.substr(space + 1), where);
  }
}

void RefuseText(const JsonReader& model, std::string_view field) {
  if (!model.StringOr(field, "").empty()) model.Refuse(field, "null, or an empty string");
}

std::unique_ptr<Bpe> ReadModel(const JsonReader& model, bool decodes_bytes, TokenizerParts& parts) {
  model.AllowOnly({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                   "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.Has("type")) model.Choice("type", {"BPE"});
  model.NumberOr("dropout", 0, 0, 0);
  RefuseText(model, "continuing_subword_prefix");
  RefuseText(model, "end_of_word_suffix");
  Bpe::Options options;
  options.ignore_merges = model.BoolOr("ignore_merges", false);
  options.byte_fallback = model.BoolOr("byte_fallback", false);
  options.fuse_unknown = model.BoolOr("fuse_unk", false);
  AddVocabulary(model, options.byte_fallback || decodes_bytes, *parts.vocabulary);
  if (model.Has("unk_token")) {
    options.unknown = parts.unknown = parts.vocabulary->Find(model.String("unk_token"));
    if (parts.unknown < 0) model.Refuse("unk_token", "a token of the vocabulary");
  }
  auto bpe = std::make_unique<Bpe>(*parts.vocabulary, options);
  AddMerges(model, *bpe);
  return bpe;
}

void AddTokens(const JsonReader& top, TokenizerParts& parts, BpePipeline& pipeline) {
  if (!top.Has("added_tokens")) return;
  const json& list = top.Raw("added_tokens");
  if (!list.is_array()) top.Refuse("added_tokens", "a list");
  size_t index = 0;
  for (const json& item : list) {
    const JsonReader reader(item, fmt::format("{}: added_tokens[{}]", top.where(), index++));
    reader.AllowOnly({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    const auto id = static_cast<int32_t>(reader.Int("id", 0, Vocabulary::kMaxId));
    AddedToken token = ReadAddedToken(reader, id, *parts.vocabulary);
    // Those that ask for it are found in normalised text, after the others have been taken out.
    if (reader.BoolOr("normalized", !token.special)) {
      token.text = pipeline.normalizer.Apply(token.text, true);
      pipeline.added.Add(std::move(token), reader.where());
    } else {
      parts.added.Add(std::move(token), reader.where());
    }
  }
}

/// What a template puts in front of a text. What it puts behind (EOS, as encoders for search want it) is left
/// out: the texts of this project go on.
std::vector<int32_t> TemplatePrefix(const JsonReader& reader) {
  reader.AllowOnly({"type", "single", "pair", "special_tokens"});
  const json& single = reader.Raw("single");
  if (!single.is_array()) reader.Refuse("single", "a list");
  std::vector<int32_t> prefix;
  for (const json& item : single) {
    const JsonReader piece(item, reader.where() + ": single");
    piece.AllowOnly({"SpecialToken", "Sequence"});
    if (!piece.Has("SpecialToken")) return prefix;
    const std::string name = piece.Object("SpecialToken").String("id");
    const JsonReader token = reader.Object("special_tokens").Object(name);
    for (const int64_t id : token.Ints("ids", 0, Vocabulary::kMaxId))
      prefix.push_back(static_cast<int32_t>(id));
  }
  reader.Refuse("single", "a list with a Sequence");
}

std::vector<int32_t> PostProcessorPrefix(const JsonReader& reader) {
  switch (reader.Choice(
      "type", {"ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing", "Sequence"})) {
    case 0:  // concerns offsets only
      return {};
    case 1:
      return TemplatePrefix(reader);
    case 2:
    case 3: {
      const json& cls = reader.Raw("cls");
      const bool good = cls.is_array() && cls.size() == 2 && cls[1].is_number_unsigned() &&
                        cls[1].get<uint64_t>() <= static_cast<uint64_t>(Vocabulary::kMaxId);
      if (!good) reader.Refuse("cls", "[token, id]");
      return {static_cast<int32_t>(cls[1].get<int64_t>())};
    }
  }
  const json& list = reader.Raw("processors");
  if (!list.is_array()) reader.Refuse("processors", "a list");
  std::vector<int32_t> prefix;
  for (const json& item : list) {
    const JsonReader inner(item, reader.where() + ": processors");
    if (inner.Choice("type", {"ByteLevel", "TemplateProcessing"}) == 1) {
      if (!prefix.empty()) reader.Refuse("processors", "at most one TemplateProcessing");
      prefix = TemplatePrefix(inner);
    }
  }
  return prefix;
}

}  // namespace

AddedToken ReadAddedToken(const JsonReader& reader, int32_t id, Vocabulary& vocabulary) {
  AddedToken token;
  token.id = id;
  token.text = reader.String("content");
  token.special = reader.BoolOr("special", false);
  token.single_word = reader.BoolOr("single_word", false);
  token.lstrip = reader.BoolOr("lstrip", false);
  token.rstrip = reader.BoolOr("rstrip", false);

  const TokenKind kind = token.special ? TokenKind::kControl : TokenKind::kUserDefined;
  const int32_t known = vocabulary.Find(token.text);
  if (known >= 0 && known != id)
    Fail("{}: id: found {}, allowed: {}, its id in the vocabulary", reader.where(), id, known);
  if (known < 0) {
    vocabulary.Add(id, token.text, kind, reader.where());
  } else if (token.special || vocabulary.kind(known) == TokenKind::kNormal) {
    vocabulary.SetKind(known, kind);
  }
  return token;
}

TokenizerParts ReadTokenizerJson(std::string_view text, const std::string& where) {
  const json parsed = ParseJson(text, where);
  const JsonReader top(parsed, where);
  // Padding and truncation are not honoured: they shape batches for training, and every caller overrides
  // them.
  top.AllowOnly({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                 "post_processor", "decoder", "model"});
  const DecoderSteps decoder = ReadDecoder(top.Object("decoder"));
  TokenizerParts parts;
  parts.vocabulary =
      std::make_unique<Vocabulary>(decoder.byte_level ? Spelling::kByteLevel : Spelling::kMetaspace);
  parts.strips_first_space = decoder.strips_first_space;
  BpePipeline pipeline;
  if (top.Has("normalizer")) AddNormalizer(top.Object("normalizer"), pipeline.normalizer);
  const bool byte_level =
      top.Has("pre_tokenizer") && AddPreTokenizer(top.Object("pre_tokenizer"), pipeline.pretokenizer);
  if (byte_level != decoder.byte_level) {
    top.Refuse("decoder",
               byte_level ? "ByteLevel, as the pre_tokenizer" : "no ByteLevel without one in pre_tokenizer");
  }
  pipeline.bpe = ReadModel(top.Object("model"), decoder.byte_fallback, parts);
  AddTokens(top, parts, pipeline);
  if (parts.unknown >= 0) parts.vocabulary->SetKind(parts.unknown, TokenKind::kUnknown);
  if (top.Has("post_processor")) parts.prefix = PostProcessorPrefix(top.Object("post_processor"));
  for (const int32_t id : parts.prefix) {
    if (id >= parts.vocabulary->size() || parts.vocabulary->kind(id) == TokenKind::kAbsent) {
      top.Refuse("post_processor", fmt::format("ids of the vocabulary, not {}", id));
    }
  }
  if (!parts.prefix.empty()) parts.bos = parts.prefix.front();
  parts.encoder = MakeBpeEncoder(std::move(pipeline));
  return parts;
}

std::shared_ptr<const Tokenizer> ParseTokenizerJson(std::string_view text, const std::string& where) {
  return MakeTokenizer(ReadTokenizerJson(text, where));
}

}  // namespace vqllm
