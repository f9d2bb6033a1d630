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

/// Enters an added token in the vocabulary. Throws Error "<where>: ..." where its id contradicts it.
void DeclareAddedToken(const AddedToken& token, const std::string& where, Vocabulary& vocabulary);

}  // namespace vqllm
