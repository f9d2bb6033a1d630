#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vq/base/bytes.h"
#include "vq/checkpoint/stored_tensor.h"

namespace vqllm {

/// Writes a safetensors file. Add() only notes names and shapes; Finish() asks for the bytes of one tensor
/// after the other, so that a repacked copy of one tensor is all that lies in memory beside the model. The
/// file appears whole or not at all. Tensors are ordered by falling element size, then by name, and the
/// header is padded with spaces to a multiple of 8, so every tensor is aligned to its element and the same
/// tensors give the same bytes.
class SafetensorsWriter {
 public:
  /// Metadata starts as {"format": "pt"}, which the transformers library asks for.
  explicit SafetensorsWriter(std::filesystem::path path);

  void SetMetadata(std::string key, std::string value);

  /// `make` is called once, in Finish(), and returns the bytes; what it refers to must live until then.
  void Add(std::string name, StoredType type, std::vector<int64_t> shape, std::function<Bytes()> make);
  /// Shares the bytes.
  void Add(std::string name, StoredType type, std::vector<int64_t> shape, Bytes bytes);
  /// Copies the values: for small tensors, norms and codebooks.
  void Add(std::string name, std::vector<int64_t> shape, const std::vector<float>& values);
  void Add(std::string name, std::vector<int64_t> shape, const std::vector<Half>& values);

  /// Writes the file. Throws Error that names it where that fails; nothing is left behind then.
  void Finish();

 private:
  struct Item {
    std::string name;
    StoredType type;
    std::vector<int64_t> shape;
    std::function<Bytes()> make;
  };

  std::string Header() const;

  std::filesystem::path path_;
  std::map<std::string, std::string> metadata_{{"format", "pt"}};
  std::vector<Item> items_;
};

}  // namespace vqllm
