#include "runtime/model/bpe_encoder.h"

#include <string>
#include <unordered_map>
#include <utility>

namespace vqllm {
namespace {

constexpr size_t kCachedWord = 64;  // bytes; longer words seldom come twice
constexpr size_t kCachedWords = 65536;

class BpeEncoder : public FragmentEncoder {
 public:
  explicit BpeEncoder(BpePipeline pipeline) : pipeline_(std::move(pipeline)) {}

  void Encode(const Fragment& fragment, std::vector<int32_t>& ids) const override {
    if (pipeline_.normalizer.empty() && pipeline_.added.empty()) {
      EncodeWords(fragment.text, fragment.at_start, ids);
      return;
    }
    const std::string text = pipeline_.normalizer.Apply(fragment.text, !fragment.continues);
    for (const TextPart& part : pipeline_.added.Split(text, fragment.parse_special)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
      } else {
        EncodeWords(part.text, fragment.at_start && part.text.data() == text.data(), ids);
      }
    }
  }

 private:
  void EncodeWords(std::string_view text, bool at_start, std::vector<int32_t>& ids) const {
    // The cache lives as long as the text: no lock, and no memory that others' texts fill.
    std::unordered_map<std::string_view, std::pair<size_t, size_t>> seen;
    const PreTokenizer::Words words = pipeline_.pretokenizer.Split(text, at_start);
    for (const std::string_view word : words.list) {
      if (word.size() > kCachedWord) {
        pipeline_.bpe->Encode(word, ids);
        continue;
      }
      const auto found = seen.find(word);
      const size_t begin = ids.size();
      if (found == seen.end()) {
        pipeline_.bpe->Encode(word, ids);
        if (seen.size() < kCachedWords) seen.emplace(word, std::pair(begin, ids.size()));
      } else {
        for (size_t i = found->second.first; i < found->second.second; ++i) ids.push_back(ids[i]);
      }
    }
  }

  BpePipeline pipeline_;
};

}  // namespace

std::unique_ptr<FragmentEncoder> MakeBpeEncoder(BpePipeline pipeline) {
  return std::make_unique<BpeEncoder>(std::move(pipeline));
}

}  // namespace vqllm
