#include <utility>

#include "runtime/model/tokenizer_json.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

using nlohmann::json;

constexpr int kMaxSteps = 64;

/// Calls visit(reader, is_last) for each element of a "Sequence", whose list is `field`.
template <typename Visit>
void ForEachStep(const JsonReader& reader, std::string_view field, Visit visit) {
  reader.AllowOnly({"type", field});
  const json& list = reader.Raw(field);
  if (!list.is_array() || list.size() > kMaxSteps)
    reader.Refuse(field, fmt::format("a list of at most {}", kMaxSteps));
  for (size_t i = 0; i < list.size(); ++i) {
    visit(JsonReader(list[i], fmt::format("{}: {}[{}]", reader.where(), field, i)), i + 1 == list.size());
  }
}

bool IsSequence(const JsonReader& reader) { return reader.Has("type") && reader.Raw("type") == "Sequence"; }

/// The one field of a "pattern": {"Regex": ...} or {"String": ...}; the other is empty.
struct Pattern {
  std::string regex;
  std::string text;
};

Pattern ReadPattern(const JsonReader& reader) {
  const JsonReader pattern = reader.Object("pattern");
  pattern.AllowOnly({"Regex", "String"});
  Pattern result;
  const bool regex = pattern.Has("Regex");
  if (regex == pattern.Has("String")) reader.Refuse("pattern", "one of Regex, String");
  (regex ? result.regex : result.text) = pattern.String(regex ? "Regex" : "String");
  if (result.regex.empty() && result.text.empty()) reader.Refuse("pattern", "a pattern that is not empty");
  return result;
}

/// Newer files say prepend_scheme; older ones add_prefix_space.
PrependScheme ReadScheme(const JsonReader& reader) {
  if (reader.Has("prepend_scheme")) {
    constexpr PrependScheme kSchemes[] = {PrependScheme::kAlways, PrependScheme::kFirst,
                                          PrependScheme::kNever};
    return kSchemes[reader.Choice("prepend_scheme", {"always", "first", "never"})];
  }
  return reader.BoolOr("add_prefix_space", true) ? PrependScheme::kAlways : PrependScheme::kNever;
}

void CheckMetaspace(const JsonReader& reader) {
  reader.AllowOnly({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  if (reader.String("replacement") != kMetaspace) reader.Refuse("replacement", "U+2581");
}

void AddDigits(const JsonReader& reader, PreTokenizer& pretokenizer) {
  reader.AllowOnly({"type", "individual_digits"});
  const bool single = reader.BoolOr("individual_digits", false);
  pretokenizer.AddSplit(Regex(single ? "\\p{N}" : "\\p{N}+", reader.where()), SplitBehavior::kIsolated,
                        false);
}

void AddSplit(const JsonReader& reader, PreTokenizer& pretokenizer) {
  reader.AllowOnly({"type", "pattern", "behavior", "invert"});
  const Pattern pattern = ReadPattern(reader);
  constexpr SplitBehavior kBehaviors[] = {SplitBehavior::kRemoved, SplitBehavior::kIsolated,
                                          SplitBehavior::kMergedWithPrevious, SplitBehavior::kMergedWithNext,
                                          SplitBehavior::kContiguous};
  const SplitBehavior behavior = kBehaviors[reader.Choice(
      "behavior", {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"})];
  const bool invert = reader.BoolOr("invert", false);
  if (pattern.regex.empty()) {
    pretokenizer.AddSplit(pattern.text, behavior, invert);
  } else {
    pretokenizer.AddSplit(Regex(pattern.regex, reader.where() + ": pattern: Regex"), behavior, invert);
  }
}

bool AddPreTokenizerStep(const JsonReader& reader, PreTokenizer& pretokenizer) {
  switch (reader.Choice("type", {"ByteLevel", "Split", "Digits", "Metaspace"})) {
    case 0:
      reader.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      if (reader.BoolOr("add_prefix_space", true)) pretokenizer.AddPrefixSpace();
      if (reader.BoolOr("use_regex", true)) {
        pretokenizer.AddSplit(Regex(kGpt2Split, reader.where()), SplitBehavior::kIsolated, false);
      }
      return true;
    case 1:
      AddSplit(reader, pretokenizer);
      break;
    case 2:
      AddDigits(reader, pretokenizer);
      break;
    default:
      CheckMetaspace(reader);
      pretokenizer.AddMetaspace(std::string(kMetaspace), ReadScheme(reader), reader.BoolOr("split", true));
  }
  return false;
}

void AddNormalizerStep(const JsonReader& reader, Normalizer& normalizer) {
  constexpr Normalizer::UnicodeForm kForms[] = {Normalizer::UnicodeForm::kNfc, Normalizer::UnicodeForm::kNfd,
                                                Normalizer::UnicodeForm::kNfkc,
                                                Normalizer::UnicodeForm::kNfkd};
  const int type = reader.Choice("type", {"NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace"});
  if (type < 4) {
    reader.AllowOnly({"type"});
    normalizer.AddUnicodeForm(kForms[type]);
  } else if (type == 4) {
    reader.AllowOnly({"type", "prepend"});
    normalizer.AddPrepend(reader.String("prepend"));
  } else {
    reader.AllowOnly({"type", "pattern", "content"});
    const Pattern pattern = ReadPattern(reader);
    if (pattern.regex.empty()) {
      normalizer.AddReplace(pattern.text, reader.String("content"));
    } else {
      normalizer.AddReplace(Regex(pattern.regex, reader.where() + ": pattern: Regex"),
                            reader.String("content"));
    }
  }
}

/// Steps that follow one another as in Llama 2's files. `fused`: the tokens have become one text.
void AddDecoderStep(const JsonReader& reader, bool& fused, DecoderSteps& steps) {
  switch (reader.Choice("type", {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"})) {
    case 0:
      reader.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      steps.byte_level = true;
      break;
    case 1:
      CheckMetaspace(reader);
      steps.strips_first_space = ReadScheme(reader) != PrependScheme::kNever;
      break;
    case 2: {
      reader.AllowOnly({"type", "pattern", "content"});
      const Pattern pattern = ReadPattern(reader);
      if (pattern.text != kMetaspace) reader.Refuse("pattern", "the String U+2581");
      if (reader.String("content") != " ") reader.Refuse("content", "a space");
      break;
    }
    case 3:
      if (fused) reader.Refuse("type", "ByteFallback before Fuse");
      steps.byte_fallback = true;
      break;
    case 4:
      fused = true;
      break;
    default:
      reader.AllowOnly({"type", "content", "start", "stop"});
      if (!fused) reader.Refuse("type", "Strip after Fuse");
      if (reader.String("content") != " ") reader.Refuse("content", "a space");
      reader.IntOr("stop", 0, 0, 0);
      steps.strips_first_space = reader.IntOr("start", 0, 1, 0) == 1;
  }
}

}  // namespace

DecoderSteps ReadDecoder(const JsonReader& reader) {
  DecoderSteps steps;
  bool fused = false;
  if (!IsSequence(reader)) {
    AddDecoderStep(reader, fused, steps);
  } else {
    ForEachStep(reader, "decoders",
                [&](const JsonReader& step, bool) { AddDecoderStep(step, fused, steps); });
  }
  if (steps.byte_level && (steps.byte_fallback || steps.strips_first_space)) {
    Fail("{}: found ByteLevel with other steps, allowed: ByteLevel alone", reader.where());
  }
  return steps;
}

void AddNormalizer(const JsonReader& reader, Normalizer& normalizer) {
  if (!IsSequence(reader)) return AddNormalizerStep(reader, normalizer);
  ForEachStep(reader, "normalizers",
              [&](const JsonReader& step, bool) { AddNormalizerStep(step, normalizer); });
}

bool AddPreTokenizer(const JsonReader& reader, PreTokenizer& pretokenizer) {
  if (!IsSequence(reader)) return AddPreTokenizerStep(reader, pretokenizer);
  bool byte_level = false;
  ForEachStep(reader, "pretokenizers", [&](const JsonReader& step, bool last) {
    byte_level = AddPreTokenizerStep(step, pretokenizer);
    // Later steps would cut the byte alphabet, not the text.
    if (byte_level && !last) step.Refuse("type", "ByteLevel as the last step only");
  });
  return byte_level;
}

}  // namespace vqllm
