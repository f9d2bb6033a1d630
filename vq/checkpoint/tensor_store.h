#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vq/checkpoint/safetensors.h"
#include "vq/checkpoint/stored_tensor.h"

namespace vqllm {

/// The tensors of a Hugging Face directory: model.safetensors, or the shards that
/// model.safetensors.index.json lists. Files are mapped; the tensors share the mappings and outlive the
/// store.
class TensorStore {
 public:
  static constexpr const char* kSingleName = "model.safetensors";
  static constexpr const char* kIndexName = "model.safetensors.index.json";

  /// Opens a directory. Where both are there, model.safetensors wins over the index, as in the transformers
  /// library. The index is checked in both directions. Throws Error that lists them where a shard is absent,
  /// where a shard lacks a tensor that the index places in it, and where two shards hold the same tensor.
  /// Shards and tensors that the index does not mention are passed over with a note.
  static TensorStore OpenFolder(const std::filesystem::path& folder);
  /// Opens one file of any name.
  static TensorStore OpenFile(const std::filesystem::path& file);

  /// Null where there is none of that name.
  const StoredTensor* Find(std::string_view name) const;
  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  /// Throws Error where there is none of that name.
  const StoredTensor& Get(std::string_view name) const;
  /// Throws Error that lists every name that is missing.
  void Require(const std::vector<std::string>& names) const;

  /// All names, sorted.
  std::vector<std::string> Names() const;
  /// __metadata__ of the files, merged; the first file wins.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// What was found odd but harmless, one line each.
  const std::vector<std::string>& notes() const { return notes_; }
  /// The folder or file, as errors name it.
  const std::string& where() const { return where_; }

 private:
  void AddFile(const SafetensorsFile& file);
  void AddShards(const std::filesystem::path& folder);
  void NoteStrayShards(const std::filesystem::path& folder, const std::map<std::string, bool>& listed);

  std::string where_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> notes_;
};

/// At most 32 names joined by ", ", then how many more there are: for error messages.
std::string NameList(const std::vector<std::string>& names);

}  // namespace vqllm
