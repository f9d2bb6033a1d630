#include "vq/checkpoint/stored_tensor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "vq/base/check.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoint files are read in place");

struct TypeRow {
  StoredType type;
  const char* name;
  int bytes;
};

// https://github.com/huggingface/safetensors, the Dtype enumeration; types below one byte stay kOther.
constexpr std::array<TypeRow, 17> kTypes{{
    {StoredType::kBool, "BOOL", 1},
    {StoredType::kU8, "U8", 1},
    {StoredType::kI8, "I8", 1},
    {StoredType::kF8E4M3, "F8_E4M3", 1},
    {StoredType::kF8E5M2, "F8_E5M2", 1},
    {StoredType::kF8E8M0, "F8_E8M0", 1},
    {StoredType::kU16, "U16", 2},
    {StoredType::kI16, "I16", 2},
    {StoredType::kF16, "F16", 2},
    {StoredType::kBF16, "BF16", 2},
    {StoredType::kU32, "U32", 4},
    {StoredType::kI32, "I32", 4},
    {StoredType::kF32, "F32", 4},
    {StoredType::kU64, "U64", 8},
    {StoredType::kI64, "I64", 8},
    {StoredType::kF64, "F64", 8},
    {StoredType::kOther, "other", 0},
}};

const TypeRow& Row(StoredType type) { return kTypes[static_cast<size_t>(type)]; }

template <typename T>
constexpr StoredType IntegerType() {
  constexpr bool kSigned = std::is_signed_v<T>;
  if constexpr (sizeof(T) == 1) return kSigned ? StoredType::kI8 : StoredType::kU8;
  if constexpr (sizeof(T) == 2) return kSigned ? StoredType::kI16 : StoredType::kU16;
  if constexpr (sizeof(T) == 4) return kSigned ? StoredType::kI32 : StoredType::kU32;
  if constexpr (sizeof(T) == 8) return kSigned ? StoredType::kI64 : StoredType::kU64;
}

}  // namespace

const char* ToString(StoredType type) { return Row(type).name; }

StoredType StoredTypeOf(std::string_view name) {
  const auto found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& row) { return row.name == name; });
  return found == kTypes.end() ? StoredType::kOther : found->type;
}

int BytesPerElement(StoredType type) { return Row(type).bytes; }

int64_t StoredTensor::elements() const { return ElementCount(shape); }

void RequireShape(const StoredTensor& tensor, const std::vector<int64_t>& shape) {
  if (tensor.shape == shape) return;
  Fail("{}: found shape {}, allowed: {}", tensor.where, ShapeText(tensor.shape), ShapeText(shape));
}

void RequireType(const StoredTensor& tensor, std::initializer_list<StoredType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), tensor.type) != allowed.end()) return;
  std::vector<const char*> names;
  for (const StoredType type : allowed) names.push_back(ToString(type));
  Fail("{}: found type {}, allowed: {}", tensor.where, Quoted(tensor.type_name), fmt::join(names, ", "));
}

std::vector<float> ReadFloats(const StoredTensor& tensor) {
  RequireType(tensor, {StoredType::kF32, StoredType::kF16, StoredType::kBF16, StoredType::kF64});
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    switch (tensor.type) {
      case StoredType::kF16:
        values[i] = HalfBitsToFloat(tensor.bytes.Load<uint16_t>(i));
        break;
      case StoredType::kBF16:
        values[i] = BFloat16BitsToFloat(tensor.bytes.Load<uint16_t>(i));
        break;
      case StoredType::kF64: {
        // A double beyond the range of float is undefined to convert; it becomes the infinity it would round
        // to.
        const double value = tensor.bytes.Load<double>(i);
        const bool fits = !(std::fabs(value) > std::numeric_limits<float>::max());
        values[i] = fits ? static_cast<float>(value)
                         : std::copysign(INFINITY, static_cast<float>(value > 0 ? 1 : -1));
        break;
      }
      default:
        values[i] = tensor.bytes.Load<float>(i);
    }
  }
  return values;
}

std::vector<Half> ReadHalves(const StoredTensor& tensor) {
  RequireType(tensor, {StoredType::kF16, StoredType::kBF16, StoredType::kF32});
  std::vector<Half> halves(static_cast<size_t>(tensor.elements()));
  if (tensor.type == StoredType::kF16) {
    for (size_t i = 0; i < halves.size(); ++i) halves[i] = Half::FromBits(tensor.bytes.Load<uint16_t>(i));
    return halves;
  }
  const std::vector<float> floats = ReadFloats(tensor);
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i] = Half(floats[i]);
    if (std::isfinite(floats[i]) && !std::isfinite(static_cast<float>(halves[i]))) {
      Fail("{}: element {}: found {}, allowed: values that fit in 16-bit floats", tensor.where, i, floats[i]);
    }
  }
  return halves;
}

template <typename T>
std::vector<T> ReadInts(const StoredTensor& tensor) {
  RequireType(tensor, {IntegerType<T>()});
  std::vector<T> values(static_cast<size_t>(tensor.elements()));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), values.size() * sizeof(T));
  return values;
}

template std::vector<int8_t> ReadInts(const StoredTensor&);
template std::vector<uint8_t> ReadInts(const StoredTensor&);
template std::vector<int16_t> ReadInts(const StoredTensor&);
template std::vector<uint16_t> ReadInts(const StoredTensor&);
template std::vector<int32_t> ReadInts(const StoredTensor&);
template std::vector<uint32_t> ReadInts(const StoredTensor&);
template std::vector<int64_t> ReadInts(const StoredTensor&);
template std::vector<uint64_t> ReadInts(const StoredTensor&);

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string shown = "'";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", byte);
    }
  }
  return shown + (text.size() > kShown ? "...'" : "'");
}

int64_t ElementCount(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) return -1;
  }
  return count;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace vqllm
