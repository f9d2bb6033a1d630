#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/ptx/opcode.h"

namespace vqllm::ptx {

enum class Rounding : uint8_t { kNearest, kZero, kDown, kUp, kNearestAway };

/// What a cvt with a float on one side does; fits into Instruction::immediate.
struct Conversion {
  Type to = Type::kF32;
  Type from = Type::kF32;
  Rounding rounding = Rounding::kNearest;
  bool integral = false;  ///< .rni and its like: round to a whole number
  bool ftz = false;
  bool saturate = false;   ///< floats to [0, 1]
  bool satfinite = false;  ///< overflow gives the largest finite value
  bool relu = false;

  explicit Conversion(const Opcode& opcode);
  Conversion() = default;
  uint32_t Pack() const;
  static Conversion Unpack(uint32_t packed);
};

/// One value: `bits` in the low bits, the result extended by its sign where its type has one.
uint64_t Convert(const Conversion& conversion, uint64_t bits);

/// A float format narrower than double: IEEE-like unless said otherwise.
struct FloatFormat {
  int mantissa_bits;
  int min_exponent;  ///< of the smallest normal value
  int max_exponent;  ///< of the largest
  bool has_infinity;
  uint64_t max_mantissa;  ///< of the largest finite value
};
FloatFormat FormatOf(Type type);

/// Rounds a double once. `sticky`, -1, 0 or 1, is the sign of what the exact value has beyond `value`
/// (towards larger magnitude is 1). Gives the bits of the format with its sign; NaN is the caller's.
uint64_t RoundToFormat(double value, const FloatFormat& format, Rounding rounding, bool satfinite,
                       int sticky = 0);

}  // namespace vqllm::ptx
