#include "runtime/model/spm.h"

#include <utility>

#include "runtime/model/merge_symbols.h"
#include "runtime/model/utf8.h"
#include "vq/base/error.h"

namespace vqllm {

ScoreMerger::ScoreMerger(const Vocabulary& vocabulary, std::vector<float> scores, int32_t unknown)
    : vocabulary_(vocabulary), scores_(std::move(scores)), unknown_(unknown) {}

void ScoreMerger::Encode(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < text.size();) {
    const size_t size = Utf8Size(text[at]);
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({vocabulary_.Find(text.substr(at, size)), static_cast<uint32_t>(at),
                       static_cast<uint32_t>(size), index - 1, index + 1});
    at += size;
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  MergeSymbols(symbols, [&](const Symbol& left, const Symbol& right) -> Merge {
    const size_t size = size_t{left.size} + right.size;
    if (size > vocabulary_.longest()) return {0, -1};
    const int32_t id = vocabulary_.Find(text.substr(left.begin, size));
    return id < 0 ? Merge{0, -1} : Merge{-static_cast<double>(scores_[static_cast<size_t>(id)]), id};
  });
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    const Symbol& symbol = symbols[static_cast<size_t>(i)];
    if (symbol.id >= 0) {
      ids.push_back(symbol.id);
      continue;
    }
    // Only single characters are left without a token: every merge made one.
    for (const char byte : text.substr(symbol.begin, symbol.size)) {
      const int32_t id = vocabulary_.FindByte(static_cast<unsigned char>(byte));
      if (id < 0) {
        if (unknown_ < 0) Fail("text: found a character for which the vocabulary has no token");
        ids.push_back(unknown_);
        break;
      }
      ids.push_back(id);
    }
  }
}

}  // namespace vqllm
