#include "tests/runtime/ptx/support/exact.h"

#include <algorithm>
#include <bit>

namespace vqllm::ptx::test {
namespace {

using Whole = Exact::Whole;

int Length(Whole magnitude) {
  const uint64_t high = static_cast<uint64_t>(magnitude >> 64);
  return high != 0 ? 64 + std::bit_width(high) : std::bit_width(static_cast<uint64_t>(magnitude));
}

uint64_t ExponentMask(const FloatKind& kind) {
  const int exponent_bits = kind.bits - 1 - kind.mantissa;
  return ((uint64_t{1} << exponent_bits) - 1) << kind.mantissa;
}
uint64_t SignBit(const FloatKind& kind) { return uint64_t{1} << (kind.bits - 1); }

// magnitude / 2^shift, rounded.
Whole Shifted(Whole magnitude, int shift, Round mode, bool negative) {
  if (shift <= 0) return magnitude << -shift;
  if (shift > 126) {  // all of it lies below half a unit
    magnitude = magnitude != 0 ? 1 : 0;
    shift = 2;
  }
  const Whole floor = magnitude >> shift;
  const Whole rest = magnitude - (floor << shift);
  if (rest == 0) return floor;
  const Whole half = Whole{1} << (shift - 1);
  bool up = false;
  switch (mode) {
    case Round::kNearest:
      up = rest > half || (rest == half && (floor & 1) != 0);
      break;
    case Round::kAway:
      up = rest >= half;
      break;
    case Round::kZero:
      break;
    case Round::kDown:
      up = negative;
      break;
    case Round::kUp:
      up = !negative;
      break;
  }
  return floor + (up ? 1 : 0);
}

}  // namespace

bool IsNan(const FloatKind& kind, uint64_t bits) {
  const uint64_t magnitude = bits & (SignBit(kind) - 1);
  return kind.has_infinity ? magnitude > ExponentMask(kind) : magnitude == kind.nan;
}

Exact Decode(const FloatKind& kind, uint64_t bits) {
  Exact value;
  value.negative = (bits & SignBit(kind)) != 0;
  const uint64_t magnitude = bits & (SignBit(kind) - 1);
  if (IsNan(kind, bits)) {
    value.what = Exact::What::kNan;
  } else if (kind.has_infinity && magnitude == ExponentMask(kind)) {
    value.what = Exact::What::kInfinity;
  } else {
    const uint64_t mantissa = magnitude & ((uint64_t{1} << kind.mantissa) - 1);
    const int field = static_cast<int>(magnitude >> kind.mantissa);
    value.magnitude = static_cast<Whole>(field == 0 ? mantissa : mantissa | uint64_t{1} << kind.mantissa);
    value.exponent = std::max(field, 1) - 1 + kind.least - kind.mantissa;
  }
  return value;
}

Exact FromInteger(uint64_t bits, bool is_signed) {
  Exact value;
  value.negative = is_signed && (bits >> 63) != 0;
  value.magnitude = value.negative ? static_cast<Whole>(~bits) + 1 : static_cast<Whole>(bits);
  return value;
}

uint64_t Encode(const FloatKind& kind, const Exact& value, Round mode, bool satfinite) {
  if (value.what == Exact::What::kNan) return kind.nan;
  const uint64_t sign = value.negative ? SignBit(kind) : 0;
  const uint64_t largest = kind.largest != 0 ? kind.largest : ExponentMask(kind) - 1;
  const uint64_t infinity = kind.has_infinity ? ExponentMask(kind) : kind.nan;
  if (value.what == Exact::What::kInfinity) return sign | (satfinite ? largest : infinity);
  if (value.magnitude == 0) return sign;
  const int top = Length(value.magnitude) - 1 + value.exponent;
  const int unit = std::max(top, kind.least) - kind.mantissa;
  const Whole units = Shifted(value.magnitude, unit - value.exponent, mode, value.negative);
  // A carry runs over into the exponent.
  uint64_t bits = static_cast<uint64_t>(units);
  if (top >= kind.least) {
    bits += (static_cast<uint64_t>(std::min(top, kind.most + 2) - kind.least + 1) << kind.mantissa) -
            (uint64_t{1} << kind.mantissa);
  }
  if (bits <= largest) return sign | bits;
  const bool to_largest = satfinite || mode == Round::kZero || (mode == Round::kDown && !value.negative) ||
                          (mode == Round::kUp && value.negative);
  return sign | (to_largest ? largest : infinity);
}

Exact Negate(Exact a) {
  a.negative = !a.negative;
  return a;
}

Exact Multiply(const Exact& a, const Exact& b) {
  Exact product;
  product.negative = a.negative != b.negative;
  const bool infinite = a.what == Exact::What::kInfinity || b.what == Exact::What::kInfinity;
  if (a.what == Exact::What::kNan || b.what == Exact::What::kNan ||
      (infinite && (a.is_zero() || b.is_zero()))) {
    product.what = Exact::What::kNan;
  } else if (infinite) {
    product.what = Exact::What::kInfinity;
  } else {
    product.magnitude = a.magnitude * b.magnitude;
    product.exponent = a.exponent + b.exponent;
  }
  return product;
}

Exact Divide(const Exact& a, const Exact& b) {
  const bool a_is_infinite = a.what == Exact::What::kInfinity;
  const bool b_is_infinite = b.what == Exact::What::kInfinity;
  Exact quotient;
  quotient.negative = a.negative != b.negative;
  if (a.what == Exact::What::kNan || b.what == Exact::What::kNan || (a_is_infinite && b_is_infinite) ||
      (a.is_zero() && b.is_zero())) {
    quotient.what = Exact::What::kNan;
  } else if (a_is_infinite || b.is_zero()) {
    quotient.what = Exact::What::kInfinity;
  } else if (!b_is_infinite && !a.is_zero()) {
    const int shift = 63 + Length(b.magnitude) - Length(a.magnitude);
    const Whole dividend = a.magnitude << shift;  // 63 bits more than the divisor
    const Whole whole = dividend / b.magnitude;
    quotient.magnitude = whole << 1 | (whole * b.magnitude != dividend ? 1 : 0);
    quotient.exponent = a.exponent - shift - b.exponent - 1;
  }
  return quotient;
}

Exact SquareRoot(const Exact& a) {
  if (a.what == Exact::What::kNan || (a.negative && !a.is_zero())) return {Exact::What::kNan, false, 0, 0};
  if (a.what == Exact::What::kInfinity || a.is_zero()) return a;
  int shift = 122 - Length(a.magnitude);
  if ((a.exponent - shift) % 2 != 0) ++shift;
  const Whole radicand = a.magnitude << shift;
  Whole root = 0;
  for (int bit = 62; bit >= 0; --bit) {
    const Whole next = root | Whole{1} << bit;
    if (next * next <= radicand) root = next;
  }
  return {Exact::What::kNumber, false, root << 1 | (root * root != radicand ? 1 : 0),
          (a.exponent - shift) / 2 - 1};
}

Exact Add(const Exact& a, const Exact& b, Round mode) {
  if (a.what == Exact::What::kNan) return a;
  if (b.what == Exact::What::kNan) return b;
  if (a.what == Exact::What::kInfinity && b.what == Exact::What::kInfinity && a.negative != b.negative) {
    return {Exact::What::kNan, false, 0, 0};
  }
  if (a.what == Exact::What::kInfinity) return a;
  if (b.what == Exact::What::kInfinity) return b;
  if (a.is_zero() && b.is_zero()) {
    return {Exact::What::kNumber, a.negative == b.negative ? a.negative : mode == Round::kDown, 0, 0};
  }
  if (a.is_zero()) return b;
  if (b.is_zero()) return a;
  const bool a_is_larger = Length(a.magnitude) + a.exponent >= Length(b.magnitude) + b.exponent;
  Exact large = a_is_larger ? a : b;
  Exact small = a_is_larger ? b : a;
  const int room = 124 - Length(large.magnitude);
  if (large.exponent - small.exponent > room) {
    // Too far apart for a common unit: what of the small one lies below 124 bits becomes their last bit, far
    // below the one that any rounding looks at.
    large.magnitude <<= room;
    large.exponent -= room;
    const int drop = std::min(large.exponent - small.exponent, 126);
    const Whole kept = small.magnitude >> drop;
    small.magnitude = kept | ((kept << drop) != small.magnitude ? 1 : 0);
    small.exponent = large.exponent;
  }
  const int unit = std::min(large.exponent, small.exponent);
  const auto aligned = [&](const Exact& x) {
    const Whole m = x.magnitude << (x.exponent - unit);
    return x.negative ? -m : m;
  };
  const Whole sum = aligned(large) + aligned(small);
  if (sum == 0) return {Exact::What::kNumber, mode == Round::kDown, 0, 0};
  return {Exact::What::kNumber, sum < 0, sum < 0 ? -sum : sum, unit};
}

int Compare(const Exact& a, const Exact& b) {
  if (a.what == Exact::What::kNan || b.what == Exact::What::kNan) return 2;
  if (a.what == Exact::What::kInfinity && b.what == Exact::What::kInfinity && a.negative == b.negative) {
    return 0;
  }
  const Exact difference = Add(a, Negate(b), Round::kNearest);
  return difference.is_zero() ? 0 : difference.negative ? -1 : 1;
}

uint64_t FlushSubnormal(const FloatKind& kind, uint64_t bits) {
  return (bits & ExponentMask(kind)) == 0 ? bits & SignBit(kind) : bits;
}

uint64_t ToInteger(const Exact& value, Round mode, int bits, bool is_signed) {
  if (value.what == Exact::What::kNan) return 0;
  const Whole most = (Whole{1} << (is_signed ? bits - 1 : bits)) - 1;
  const Whole least = is_signed ? -most - 1 : 0;
  Whole whole = most + 1;
  if (value.what == Exact::What::kNumber && Length(value.magnitude) + value.exponent <= 70) {
    whole = Shifted(value.magnitude, -value.exponent, mode, value.negative);
  }
  if (value.negative) whole = -whole;
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  return static_cast<uint64_t>(std::clamp(whole, least, most)) & mask;
}

}  // namespace vqllm::ptx::test
