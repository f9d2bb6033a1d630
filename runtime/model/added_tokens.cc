#include "runtime/model/added_tokens.h"

#include <utility>

#include "runtime/model/utf8.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

constexpr size_t kMaxText = 1024;  // bytes; bounds the work at each byte of the input

bool IsWord(const Regex& word, std::string_view character) {
  if (ClassifyUtf8(character).kind != Utf8Front::kWhole) return false;
  return Regex::Scan(word, character).Next();
}

/// The whole character that ends at `end`, or its last byte where that is part of none.
std::string_view CharacterBefore(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  const std::string_view character = text.substr(begin, end - begin);
  const Utf8Front front = ClassifyUtf8(character);
  const bool whole = front.kind == Utf8Front::kWhole && front.size == character.size();
  return whole ? character : text.substr(end - 1, 1);
}

std::string_view CharacterAfter(std::string_view text, size_t begin) {
  return text.substr(begin, ClassifyUtf8(text.substr(begin)).size);
}

bool IsSpaceText(std::string_view character) {
  return ClassifyUtf8(character).kind == Utf8Front::kWhole && IsWhiteSpace(FirstCharacter(character));
}

}  // namespace

void AddedTokens::Add(AddedToken token, const std::string& where) {
  if (token.text.empty() || token.text.size() > kMaxText) {
    Fail("{}: found a token of {} bytes, allowed: 1 to {}", where, token.text.size(), kMaxText);
  }
  first_[static_cast<unsigned char>(token.text[0])] = true;
  size_t node = 0;
  for (const char byte : token.text) {
    const auto [edge, fresh] = edges_.try_emplace(Edge(node, byte), ends_.size());
    if (fresh) ends_.push_back(-1);
    node = edge->second;
  }
  // \w of Unicode's technical standard 18, which Hugging Face's library uses here; PCRE2's is narrower.
  if (token.single_word && !word_) {
    word_.emplace("[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}]", "a word character");
  }
  ends_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::LongestAt(std::string_view text, size_t begin, bool parse_special) const {
  if (!first_[static_cast<unsigned char>(text[begin])]) return nullptr;
  const AddedToken* longest = nullptr;
  size_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto edge = edges_.find(Edge(node, text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (ends_[node] < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(ends_[node])];
    if (token.special && !parse_special) continue;
    if (token.single_word) {
      const bool joined = (begin > 0 && IsWord(*word_, CharacterBefore(text, begin))) ||
                          (i + 1 < text.size() && IsWord(*word_, CharacterAfter(text, i + 1)));
      if (joined) continue;
    }
    longest = &token;
  }
  return longest;
}

std::vector<TextPart> AddedTokens::Split(std::string_view text, bool parse_special) const {
  std::vector<TextPart> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const AddedToken* token = LongestAt(text, at, parse_special);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->text.size();
    if (token->lstrip) {
      while (begin > done) {
        const std::string_view before = CharacterBefore(text, begin);
        if (!IsSpaceText(before)) break;
        begin -= before.size();
      }
    }
    if (token->rstrip) {
      while (end < text.size() && IsSpaceText(CharacterAfter(text, end)))
        end += CharacterAfter(text, end).size();
    }
    if (begin > done) parts.push_back({text.substr(done, begin - done)});
    parts.push_back({text.substr(begin, end - begin), token->id});
    done = at = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done)});
  return parts;
}

}  // namespace vqllm
