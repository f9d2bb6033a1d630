#pragma once

#include <cstdint>

/// Arithmetic of floats by whole numbers, exact and rounded once: an oracle that shares no code with the
/// interpreter.
namespace vqllm::ptx::test {

/// A binary float format: `mantissa` explicit bits, exponents of normal values from `least` to `most`.
struct FloatKind {
  int bits;
  int mantissa;
  int least;
  int most;
  bool has_infinity = true;
  uint64_t largest = 0;  ///< bits of the largest finite value, 0: all below infinity
  uint64_t nan = 0;      ///< what an operation gives for "not a number"
};
inline constexpr FloatKind kF32Kind = {32, 23, -126, 127, true, 0, 0x7fffffff};
inline constexpr FloatKind kF64Kind = {64, 52, -1022, 1023, true, 0, 0x7fffffffffffffff};
inline constexpr FloatKind kF16Kind = {16, 10, -14, 15, true, 0, 0x7fff};
inline constexpr FloatKind kBf16Kind = {16, 7, -126, 127, true, 0, 0x7fff};
inline constexpr FloatKind kTf32Kind = {19, 10, -126, 127, true, 0, 0x3ffff};
inline constexpr FloatKind kE4m3Kind = {8, 3, -6, 8, false, 0x7e, 0x7f};
inline constexpr FloatKind kE5m2Kind = {8, 2, -14, 15, true, 0, 0x7f};

enum class Round : uint8_t { kNearest, kZero, kDown, kUp, kAway };

/// A number m 2^e, or an infinity, or not a number. Zeros keep their sign.
struct Exact {
  __extension__ typedef __int128 Whole;
  enum class What : uint8_t { kNumber, kInfinity, kNan };
  What what = What::kNumber;
  bool negative = false;
  Whole magnitude = 0;
  int exponent = 0;

  bool is_zero() const { return what == What::kNumber && magnitude == 0; }
};

Exact Decode(const FloatKind& kind, uint64_t bits);
/// A whole number of 64 bits.
Exact FromInteger(uint64_t bits, bool is_signed);
/// The bits; a NaN gives kind.nan. `satfinite`: what overflows gives the largest finite value.
uint64_t Encode(const FloatKind& kind, const Exact& value, Round mode, bool satfinite = false);
Exact Multiply(const Exact& a, const Exact& b);
/// The sum for rounding in `mode`, which decides the sign of a sum that is zero. Operands whose exponents lie
/// so far apart that the sum does not fit keep their order and the fact that the small one is there.
Exact Add(const Exact& a, const Exact& b, Round mode);
/// To more than 60 bits, the last of which tells whether anything was cut.
Exact Divide(const Exact& a, const Exact& b);
Exact SquareRoot(const Exact& a);
Exact Negate(Exact a);
/// -1, 0, 1; 2 where one is not a number.
int Compare(const Exact& a, const Exact& b);
/// A subnormal of the kind turned into the zero of its sign.
uint64_t FlushSubnormal(const FloatKind& kind, uint64_t bits);
bool IsNan(const FloatKind& kind, uint64_t bits);
/// The value rounded to a whole number, clamped to the integers of `bits`; 0 for NaN.
uint64_t ToInteger(const Exact& value, Round mode, int bits, bool is_signed);

}  // namespace vqllm::ptx::test
