#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vq/base/bytes.h"
#include "vq/checkpoint/ggml_blocks.h"

namespace vqllm {

/// Types of metadata values; the numbers are those of the file.
enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};
const char* ToString(GgufType type);

/// One tensor of a GGUF file.
struct GgufTensor {
  std::string name;
  uint32_t type_id = 0;
  const GgmlType* type = nullptr;  ///< null where the number is not known
  std::vector<int64_t> shape;      ///< row-major, [rows, cols]: the reverse of the order in the file
  Bytes bytes;                     ///< a piece of the mapped file; empty where the type is not known
  std::string where;               ///< "<file>: <name>", what errors about it begin with
};

/// A GGUF file of version 2 or 3, mapped. Opening it walks all of it: every count, string, array, nested
/// array, alignment, shape and offset is compared with the size of the file; keys and tensors that come
/// twice, tensors that overlap, misaligned offsets and big-endian files are refused. Throws Error that names
/// the file and the place. Layout: docs/gguf.md of ggml.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);
  /// The same from bytes in memory; `where` stands for the file in errors.
  GgufFile(Bytes file, std::string where);

  int version() const { return version_; }
  const std::string& where() const { return where_; }

  /// In the order of the file.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Null where there is none of that name.
  const GgufTensor* Find(std::string_view name) const;
  /// Throws Error where there is none of that name.
  const GgufTensor& Get(std::string_view name) const;

  /// Metadata. All of these throw Error that names file and key where the key is absent (without "Or") or its
  /// value has another type or lies outside [low, high]. Whole numbers of every width are one kind, as are
  /// both floats.
  bool Has(std::string_view key) const { return values_.contains(key); }
  bool IsArray(std::string_view key) const;
  std::vector<std::string> Keys() const;
  int64_t Int(std::string_view key, int64_t low, int64_t high) const;
  int64_t IntOr(std::string_view key, int64_t low, int64_t high, int64_t otherwise) const;
  double Number(std::string_view key) const;
  double NumberOr(std::string_view key, double otherwise) const;
  bool BoolOr(std::string_view key, bool otherwise) const;
  std::string String(std::string_view key) const;
  std::string StringOr(std::string_view key, std::string_view otherwise) const;
  std::vector<int64_t> Ints(std::string_view key) const;
  std::vector<float> Floats(std::string_view key) const;
  std::vector<std::string> Strings(std::string_view key) const;

 private:
  /// A value as it lies in the file: decoded when asked for, so that arrays cost nothing until then.
  struct Value {
    GgufType type;
    GgufType element;  ///< kArray: the type of its elements
    uint64_t count;    ///< kArray: how many there are, else 1
    Bytes raw;         ///< the elements
  };
  class Reader;

  const Value& Scalar(std::string_view key) const;
  const Value& Array(std::string_view key, std::string_view allowed) const;
  [[noreturn]] void Refuse(std::string_view key, const Value& value, std::string_view allowed) const;
  int64_t IntAt(std::string_view key, const Value& value, size_t index) const;
  double NumberAt(std::string_view key, const Value& value, size_t index) const;
  void LocateTensors(const Bytes& file, uint64_t data_begin, const std::vector<uint64_t>& offsets);
  void CheckOverlap() const;

  std::string where_;
  int version_ = 0;
  std::map<std::string, Value, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace vqllm
