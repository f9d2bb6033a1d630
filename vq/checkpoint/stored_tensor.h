#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "vq/base/bytes.h"
#include "vq/base/half.h"

namespace vqllm {

/// Element types of safetensors files. kOther stands for a name that we do not know: its bytes are
/// bounds-checked like all others, and only reading it is refused.
enum class StoredType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
  kOther,
};

/// The name in a safetensors header, such as "BF16"; kOther: "other".
const char* ToString(StoredType type);
/// The type of that name, or kOther.
StoredType StoredTypeOf(std::string_view name);
/// Bytes of one element; kOther: 0.
int BytesPerElement(StoredType type);

/// One array of a checkpoint file: row-major, little-endian, at any alignment.
struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kOther;
  std::string type_name;  ///< as the file spells it
  std::vector<int64_t> shape;
  Bytes bytes;        ///< a piece of the mapped file
  std::string where;  ///< "<file>: <name>", what errors about it begin with

  int64_t elements() const;
};

/// Throws Error unless the tensor has exactly this shape.
void RequireShape(const StoredTensor& tensor, const std::vector<int64_t>& shape);
/// Throws Error unless the type is one of `allowed`.
void RequireType(const StoredTensor& tensor, std::initializer_list<StoredType> allowed);

/// All elements of an F32, F16, BF16 or F64 tensor (the last rounded). Throws Error on other types.
std::vector<float> ReadFloats(const StoredTensor& tensor);
/// All elements of an F16 tensor, or those of a BF16 or F32 tensor rounded to it. Throws Error on other types
/// and on finite values that binary16 cannot hold.
std::vector<Half> ReadHalves(const StoredTensor& tensor);
/// All elements of a tensor of the integer type T (int8_t ... int64_t, signed or not). Throws Error on other
/// types.
template <typename T>
std::vector<T> ReadInts(const StoredTensor& tensor);

/// Text from a file as an error message shows it: quoted, control bytes and bytes above 126 as \xNN, cut
/// after 80.
std::string Quoted(std::string_view text);

/// The product of the dimensions, -1 where it does not fit in 63 bits or one of them is negative.
int64_t ElementCount(const std::vector<int64_t>& shape);

/// "[2, 3]"
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace vqllm
