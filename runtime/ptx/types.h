#pragma once

#include <cstdint>
#include <string_view>

namespace vqllm::ptx {

inline constexpr int kWarpSize = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

/// Types of PTX, the packed ones among them. Sizes in bytes by TypeSize.
enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kTf32,
  kF32,
  kF64,
  kU16x2,
  kS16x2,
  kE4m3,
  kE5m2,
  kE4m3x2,
  kE5m2x2,
};

/// kNone for an unknown name. Without the leading dot.
Type TypeFromName(std::string_view name);
std::string_view TypeName(Type type);

/// Bytes; 0 for a predicate.
constexpr int TypeSize(Type type) {
  switch (type) {
    case Type::kNone:
    case Type::kPred:
      return 0;
    case Type::kB8:
    case Type::kU8:
    case Type::kS8:
    case Type::kE4m3:
    case Type::kE5m2:
      return 1;
    case Type::kB16:
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBf16:
    case Type::kE4m3x2:
    case Type::kE5m2x2:
      return 2;
    case Type::kB64:
    case Type::kU64:
    case Type::kS64:
    case Type::kF64:
      return 8;
    case Type::kB128:
      return 16;
    default:
      return 4;
  }
}
constexpr bool IsSigned(Type type) {
  return type == Type::kS8 || type == Type::kS16 || type == Type::kS32 || type == Type::kS64 ||
         type == Type::kS16x2;
}
/// Scalar floats (not the packed ones).
constexpr bool IsFloat(Type type) {
  return type == Type::kF16 || type == Type::kBf16 || type == Type::kF32 || type == Type::kF64 ||
         type == Type::kTf32;
}

/// State spaces. Generic addresses fall into windows of 4 GiB; everything else is global.
enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam, kConst };

inline constexpr uint64_t kWindowBytes = uint64_t{1} << 32;
inline constexpr uint64_t kSharedWindow = uint64_t{1} << 40;
inline constexpr uint64_t kLocalWindow = uint64_t{2} << 40;
inline constexpr uint64_t kConstWindow = uint64_t{3} << 40;
inline constexpr uint64_t kParamWindow = uint64_t{4} << 40;
inline constexpr uint64_t kGlobalBase = uint64_t{0x7f} << 40;

constexpr uint64_t WindowOf(Space space) {
  switch (space) {
    case Space::kShared:
      return kSharedWindow;
    case Space::kLocal:
      return kLocalWindow;
    case Space::kConst:
      return kConstWindow;
    case Space::kParam:
      return kParamWindow;
    default:
      return 0;
  }
}

}  // namespace vqllm::ptx
