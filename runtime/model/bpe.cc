#include "runtime/model/bpe.h"

#include "runtime/model/merge_symbols.h"
#include "runtime/model/utf8.h"
#include "vq/base/error.h"

namespace vqllm {

Bpe::Bpe(const Vocabulary& vocabulary, const Options& options) : vocabulary_(vocabulary), options_(options) {}

void Bpe::AddMerge(std::string_view left, std::string_view right, const std::string& where) {
  const int32_t a = vocabulary_.Find(left);
  const int32_t b = vocabulary_.Find(right);
  const int32_t merged = vocabulary_.Find(std::string(left) + std::string(right));
  if (a < 0 || b < 0 || merged < 0) {
    Fail("{}: found a merge that names a token outside the vocabulary, allowed: tokens that join to a token",
         where);
  }
  rules_.try_emplace(Pair(a, b), Rule{ranks_++, merged});
}

void Bpe::Encode(std::string_view word, std::vector<int32_t>& ids) const {
  const bool byte_level = vocabulary_.spelling() == Spelling::kByteLevel;
  if (options_.ignore_merges) {
    const int32_t whole = byte_level ? vocabulary_.Find(ByteLevelSpelling(word)) : vocabulary_.Find(word);
    if (whole >= 0) {
      ids.push_back(whole);
      return;
    }
  }
  std::vector<Symbol> symbols;
  const auto add = [&](int32_t id, size_t begin, size_t size) {
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(size), index - 1, index + 1});
  };
  bool after_unknown = false;
  for (size_t at = 0; at < word.size();) {
    const size_t size = byte_level ? 1 : Utf8Size(word[at]);
    const std::string_view character = word.substr(at, size);
    const int32_t id =
        byte_level ? vocabulary_.FindByte(static_cast<unsigned char>(word[at])) : vocabulary_.Find(character);
    bool as_bytes = id < 0 && options_.byte_fallback;
    for (const char byte : character) {
      as_bytes = as_bytes && vocabulary_.FindByte(static_cast<unsigned char>(byte)) >= 0;
    }
    const bool unknown = id < 0 && !as_bytes;
    if (id >= 0) {
      add(id, at, size);
    } else if (as_bytes) {
      for (size_t i = 0; i < size; ++i) {
        add(vocabulary_.FindByte(static_cast<unsigned char>(character[i])), at + i, 1);
      }
    } else if (options_.unknown < 0) {
      Fail("text: found U+{:04X} or a byte of it, for which the vocabulary has no token",
           static_cast<uint32_t>(byte_level ? static_cast<unsigned char>(word[at])
                                            : FirstCharacter(character)));
    } else if (after_unknown && options_.fuse_unknown) {
      symbols.back().size += static_cast<uint32_t>(size);
    } else {
      add(options_.unknown, at, size);
    }
    after_unknown = unknown;
    at += size;
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  MergeSymbols(symbols, [&](const Symbol& left, const Symbol& right) -> Merge {
    const auto rule = rules_.find(Pair(left.id, right.id));
    if (rule == rules_.end()) return {0, -1};
    return {static_cast<double>(rule->second.rank), rule->second.id};
  });
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace vqllm
