#pragma once

#include <memory>
#include <vector>

#include "runtime/model/added_tokens.h"
#include "runtime/model/bpe.h"
#include "runtime/model/normalizer.h"
#include "runtime/model/pretokenizer.h"
#include "runtime/model/tokenizer_parts.h"

namespace vqllm {

/// BPE as tokenizer.json describes it: normalise, find the added tokens that want normalised text, cut into
/// words, merge within words.
struct BpePipeline {
  Normalizer normalizer;
  AddedTokens added;
  PreTokenizer pretokenizer;
  std::unique_ptr<Bpe> bpe;
};
std::unique_ptr<FragmentEncoder> MakeBpeEncoder(BpePipeline pipeline);

/// The split of GPT-2, which a ByteLevel pre-tokenizer applies on its own.
inline constexpr const char* kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace vqllm
