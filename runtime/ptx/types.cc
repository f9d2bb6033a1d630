#include "runtime/ptx/types.h"

#include <utility>

namespace vqllm::ptx {
namespace {

constexpr std::pair<std::string_view, Type> kNames[] = {
    {"pred", Type::kPred}, {"b8", Type::kB8},         {"b16", Type::kB16},       {"b32", Type::kB32},
    {"b64", Type::kB64},   {"b128", Type::kB128},     {"u8", Type::kU8},         {"u16", Type::kU16},
    {"u32", Type::kU32},   {"u64", Type::kU64},       {"s8", Type::kS8},         {"s16", Type::kS16},
    {"s32", Type::kS32},   {"s64", Type::kS64},       {"f16", Type::kF16},       {"f16x2", Type::kF16x2},
    {"bf16", Type::kBf16}, {"bf16x2", Type::kBf16x2}, {"tf32", Type::kTf32},     {"f32", Type::kF32},
    {"f64", Type::kF64},   {"u16x2", Type::kU16x2},   {"s16x2", Type::kS16x2},   {"e4m3", Type::kE4m3},
    {"e5m2", Type::kE5m2}, {"e4m3x2", Type::kE4m3x2}, {"e5m2x2", Type::kE5m2x2},
};

}  // namespace

Type TypeFromName(std::string_view name) {
  for (const auto& [text, type] : kNames) {
    if (text == name) return type;
  }
  return Type::kNone;
}

std::string_view TypeName(Type type) {
  for (const auto& [text, value] : kNames) {
    if (value == type) return text;
  }
  return "none";
}

}  // namespace vqllm::ptx
