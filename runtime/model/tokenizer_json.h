#pragma once

#include <string>

#include "runtime/model/bpe_encoder.h"
#include "vq/base/json_reader.h"

namespace vqllm {

/// What the "decoder" of a tokenizer.json comes to.
struct DecoderSteps {
  bool byte_level = false;
  bool byte_fallback = false;
  bool strips_first_space = false;
};

// Each reads one part of a tokenizer.json and throws Error that names the field of what it cannot honour
// exactly.
DecoderSteps ReadDecoder(const JsonReader& reader);
void AddNormalizer(const JsonReader& reader, Normalizer& normalizer);
/// True where it ends in ByteLevel, so that words are bytes.
bool AddPreTokenizer(const JsonReader& reader, PreTokenizer& pretokenizer);

/// Reads the added token `id`, as tokenizer.json and tokenizer_config.json write it, and enters it in the
/// vocabulary. Throws Error where its id contradicts the vocabulary.
AddedToken ReadAddedToken(const JsonReader& reader, int32_t id, Vocabulary& vocabulary);

}  // namespace vqllm
