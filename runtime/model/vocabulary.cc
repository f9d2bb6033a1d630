#include "runtime/model/vocabulary.h"

#include <algorithm>
#include <utility>

#include "runtime/model/utf8.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

/// GPT-2's alphabet both ways.
struct ByteAlphabet {
  std::array<std::string, 256> spelling;
  std::array<int, 0x144> byte;  // by character; -1: not of the alphabet

  ByteAlphabet() {
    byte.fill(-1);
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool prints = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
      const unsigned character = prints ? b : next++;
      byte[character] = static_cast<int>(b);
      if (character < 0x80) {
        spelling[b].assign(1, static_cast<char>(character));
      } else {
        spelling[b].assign(1, static_cast<char>(0xc0 | character >> 6));
        spelling[b].push_back(static_cast<char>(0x80 | (character & 0x3f)));
      }
    }
  }
};

const ByteAlphabet& Alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

/// Text that has a character outside the alphabet, as added tokens may, stands for itself.
std::string ByteLevelBytes(std::string_view text) {
  std::string bytes;
  for (std::string_view rest = text; !rest.empty();) {
    const Utf8Front front = ClassifyUtf8(rest);
    const char32_t character = front.kind == Utf8Front::kWhole ? FirstCharacter(rest) : 0xfffd;
    const int byte = character < Alphabet().byte.size() ? Alphabet().byte[character] : -1;
    if (byte < 0) return std::string(text);
    bytes += static_cast<char>(byte);
    rest.remove_prefix(front.size);
  }
  return bytes;
}

/// The byte that "<0x0A>" names; -1 for any other text.
int NamedByte(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  int byte = 0;
  for (const char c : text.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

}  // namespace

std::string ByteLevelSpelling(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += Alphabet().spelling[static_cast<unsigned char>(c)];
  return text;
}

Vocabulary::Vocabulary(Spelling spelling) : spelling_(spelling) { byte_ids_.fill(-1); }

void Vocabulary::Add(int64_t id, std::string text, TokenKind kind, const std::string& where) {
  if (id < 0 || id > kMaxId) Fail("{}: found id {}, allowed: 0 to {}", where, id, kMaxId);
  const auto at = static_cast<size_t>(id);
  if (at >= texts_.size()) {
    texts_.resize(at + 1);
    kinds_.resize(at + 1, TokenKind::kAbsent);
  }
  if (kinds_[at] != TokenKind::kAbsent)
    Fail("{}: found id {} twice, allowed: one token for an id", where, id);
  int byte = -1;
  if (spelling_ == Spelling::kByteLevel) {
    const std::string bytes = text.size() <= 2 ? ByteLevelBytes(text) : std::string();
    if (bytes.size() == 1) byte = static_cast<unsigned char>(bytes[0]);
  } else if (kind == TokenKind::kByte) {
    byte = NamedByte(text);
    if (byte < 0)
      Fail("{}: found a byte token of another spelling, id {}, allowed: <0x00> to <0xFF>", where, id);
  }
  if (byte >= 0) byte_ids_[static_cast<size_t>(byte)] = static_cast<int32_t>(id);
  longest_ = std::max(longest_, text.size());
  ids_.insert_or_assign(text, static_cast<int32_t>(id));
  texts_[at] = std::move(text);
  kinds_[at] = kind;
}

int32_t Vocabulary::Find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
}

std::string Vocabulary::Bytes(int32_t id) const {
  const TokenKind token = kind(id);
  if (token == TokenKind::kControl || token == TokenKind::kUnknown) return text(id);
  if (spelling_ == Spelling::kByteLevel) return ByteLevelBytes(text(id));
  if (token == TokenKind::kByte) return std::string(1, static_cast<char>(NamedByte(text(id))));
  return ReplaceAll(text(id), kMetaspace, " ");
}

}  // namespace vqllm
