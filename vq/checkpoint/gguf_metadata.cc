// Decoding of the metadata of a GgufFile. The constructor has walked it, so nothing here can run past its
// end.

#include <cmath>
#include <cstring>
#include <limits>

#include "vq/base/error.h"
#include "vq/checkpoint/gguf.h"
#include "vq/checkpoint/stored_tensor.h"

namespace vqllm {
namespace {

std::string_view TextAt(const Bytes& raw, size_t& position) {
  uint64_t size;
  std::memcpy(&size, raw.data() + position, sizeof(size));
  const std::string_view text(reinterpret_cast<const char*>(raw.data()) + position + sizeof(size), size);
  position += sizeof(size) + size;
  return text;
}

bool IsFloat(GgufType type) { return type == GgufType::kF32 || type == GgufType::kF64; }
bool IsInteger(GgufType type) {
  return !IsFloat(type) && type != GgufType::kBool && type != GgufType::kString && type != GgufType::kArray;
}

}  // namespace

void GgufFile::Refuse(std::string_view key, const Value& value, std::string_view allowed) const {
  const std::string found = value.type == GgufType::kArray
                                ? fmt::format("{} of {}", value.count, ToString(value.element))
                                : std::string(ToString(value.type));
  Fail("{}: {}: found {}, allowed: {}", where_, Quoted(key), found, allowed);
}

const GgufFile::Value& GgufFile::Scalar(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) Fail("{}: key {} is missing", where_, Quoted(key));
  if (found->second.type == GgufType::kArray) Refuse(key, found->second, "a single value");
  return found->second;
}

const GgufFile::Value& GgufFile::Array(std::string_view key, std::string_view allowed) const {
  const auto found = values_.find(key);
  if (found == values_.end()) Fail("{}: key {} is missing", where_, Quoted(key));
  if (found->second.type != GgufType::kArray) Refuse(key, found->second, allowed);
  return found->second;
}

int64_t GgufFile::IntAt(std::string_view key, const Value& value, size_t index) const {
  switch (value.element) {
    case GgufType::kU8:
      return value.raw.Load<uint8_t>(index);
    case GgufType::kI8:
      return value.raw.Load<int8_t>(index);
    case GgufType::kU16:
      return value.raw.Load<uint16_t>(index);
    case GgufType::kI16:
      return value.raw.Load<int16_t>(index);
    case GgufType::kU32:
      return value.raw.Load<uint32_t>(index);
    case GgufType::kI32:
      return value.raw.Load<int32_t>(index);
    case GgufType::kI64:
      return value.raw.Load<int64_t>(index);
    case GgufType::kU64: {
      const uint64_t wide = value.raw.Load<uint64_t>(index);
      if (wide > static_cast<uint64_t>(INT64_MAX))
        Fail("{}: {}: found {}, allowed: 63 bits", where_, Quoted(key), wide);
      return static_cast<int64_t>(wide);
    }
    default:
      Refuse(key, value, "whole numbers");
  }
}

double GgufFile::NumberAt(std::string_view key, const Value& value, size_t index) const {
  if (value.element == GgufType::kF32) return static_cast<double>(value.raw.Load<float>(index));
  if (value.element == GgufType::kF64) return value.raw.Load<double>(index);
  if (!IsInteger(value.element)) Refuse(key, value, "numbers");
  return static_cast<double>(IntAt(key, value, index));
}

bool GgufFile::IsArray(std::string_view key) const {
  const auto found = values_.find(key);
  return found != values_.end() && found->second.type == GgufType::kArray;
}

std::vector<std::string> GgufFile::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

int64_t GgufFile::Int(std::string_view key, int64_t low, int64_t high) const {
  const int64_t value = IntAt(key, Scalar(key), 0);
  if (value < low || value > high) {
    Fail("{}: {}: found {}, allowed: {} to {}", where_, Quoted(key), value, low, high);
  }
  return value;
}

int64_t GgufFile::IntOr(std::string_view key, int64_t low, int64_t high, int64_t otherwise) const {
  return Has(key) ? Int(key, low, high) : otherwise;
}

double GgufFile::Number(std::string_view key) const {
  const double value = NumberAt(key, Scalar(key), 0);
  if (!std::isfinite(value)) Fail("{}: {}: found {}, allowed: finite numbers", where_, Quoted(key), value);
  return value;
}

double GgufFile::NumberOr(std::string_view key, double otherwise) const {
  return Has(key) ? Number(key) : otherwise;
}

bool GgufFile::BoolOr(std::string_view key, bool otherwise) const {
  if (!Has(key)) return otherwise;
  const Value& value = Scalar(key);
  if (value.type != GgufType::kBool) Refuse(key, value, "bool");
  return value.raw.Load<uint8_t>(0) != 0;
}

std::string GgufFile::String(std::string_view key) const {
  const Value& value = Scalar(key);
  if (value.type != GgufType::kString) Refuse(key, value, "string");
  size_t position = 0;
  return std::string(TextAt(value.raw, position));
}

std::string GgufFile::StringOr(std::string_view key, std::string_view otherwise) const {
  return Has(key) ? String(key) : std::string(otherwise);
}

std::vector<int64_t> GgufFile::Ints(std::string_view key) const {
  const Value& value = Array(key, "an array of whole numbers");
  if (!IsInteger(value.element)) Refuse(key, value, "an array of whole numbers");
  std::vector<int64_t> values(value.count);
  for (size_t i = 0; i < values.size(); ++i) values[i] = IntAt(key, value, i);
  return values;
}

std::vector<float> GgufFile::Floats(std::string_view key) const {
  const Value& value = Array(key, "an array of f32 or f64");
  if (!IsFloat(value.element)) Refuse(key, value, "an array of f32 or f64");
  std::vector<float> values(value.count);
  for (size_t i = 0; i < values.size(); ++i) {
    const double number = NumberAt(key, value, i);
    if (!(std::fabs(number) <= std::numeric_limits<float>::max())) {
      Fail("{}: {}: element {}: found {}, allowed: finite numbers", where_, Quoted(key), i, number);
    }
    values[i] = static_cast<float>(number);
  }
  return values;
}

std::vector<std::string> GgufFile::Strings(std::string_view key) const {
  const Value& value = Array(key, "an array of strings");
  if (value.element != GgufType::kString) Refuse(key, value, "an array of strings");
  std::vector<std::string> texts;
  size_t position = 0;
  for (uint64_t i = 0; i < value.count; ++i) texts.emplace_back(TextAt(value.raw, position));
  return texts;
}

}  // namespace vqllm
