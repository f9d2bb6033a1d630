#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vq/base/bytes.h"
#include "vq/checkpoint/stored_tensor.h"

namespace vqllm {

/// A safetensors file, mapped: 8 bytes with the length of the header, a JSON header, and the data. Opening it
/// checks everything that the header says: its length (at most kMaxHeaderBytes) and UTF-8, that every
/// tensor's offsets lie in the file and match shape x type, that tensors neither overlap nor leave a hole or
/// a tail, and that no name or field comes twice. Legal oddities load: tensors with no element, scalars, a
/// header with only __metadata__, padding with spaces. Throws Error that names the file and the tensor.
class SafetensorsFile {
 public:
  /// The limit of the reference implementation.
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;

  explicit SafetensorsFile(const std::filesystem::path& path);
  /// The same from bytes in memory; `where` stands for the file in errors.
  SafetensorsFile(Bytes file, std::string where);

  /// In the order of their data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Null where there is none of that name.
  const StoredTensor* Find(std::string_view name) const;
  /// The strings under __metadata__.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& where() const { return where_; }

 private:
  std::string where_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace vqllm
