#pragma once

#include <filesystem>

#include "runtime/model/model.h"

// What a quantised directory holds beside weights, config and tokenizer.
namespace vqllm {

/// kv_cache.json (the formats and settings of model.kv) and, where a side is VQ, kv_codebooks.safetensors;
/// nothing for the default cache.
void WriteKvFiles(const Model& model, const std::filesystem::path& folder);

/// Reads them back into model.kv, whose config is there already; leaves the default where there is no
/// kv_cache.json. Throws Error that names file and field.
void ReadKvFiles(const std::filesystem::path& folder, Model& model);

/// The vocabulary of a .gguf as a .gguf without tensors: the tokenizer of a directory that was quantised from
/// one.
inline constexpr const char* kVocabularyFile = "tokenizer.gguf";
void WriteVocabulary(const std::filesystem::path& gguf, const std::filesystem::path& out);

}  // namespace vqllm
