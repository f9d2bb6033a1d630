#include "runtime/ptx/convert.h"

#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>

#include "vq/base/half.h"

namespace vqllm::ptx {
namespace {

double ValueOf(Type type, uint64_t bits) {
  switch (type) {
    case Type::kF16:
      return HalfBitsToFloat(static_cast<uint16_t>(bits));
    case Type::kBf16:
      return BFloat16BitsToFloat(static_cast<uint16_t>(bits));
    case Type::kF32:
      return std::bit_cast<float>(static_cast<uint32_t>(bits));
    default:
      return std::bit_cast<double>(bits);
  }
}

double FlushSingle(double value) { return std::fabs(value) < 0x1p-126 ? std::copysign(0.0, value) : value; }

double RoundToWhole(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::kZero:
      return std::trunc(value);
    case Rounding::kDown:
      return std::floor(value);
    case Rounding::kUp:
      return std::ceil(value);
    default: {
      const double down = std::floor(value);
      const double part = value - down;
      if (part != 0.5) return std::copysign(part < 0.5 ? down : down + 1, value);
      return std::copysign(std::fmod(down, 2) == 0 ? down : down + 1, value);
    }
  }
}

uint64_t NanBits(Type type) {
  switch (type) {
    case Type::kF64:
      return 0x7fffffffffffffffull;
    case Type::kF32:
      return 0x7fffffffu;
    default:
      return 0x7fff;
  }
}

// A float to an integer clamps. A NaN gives the highest bit alone where a double or an integer of 64 bits is
// at one end, else 0.
template <typename T>
uint64_t ToInteger(double whole, bool from_double) {
  if (std::isnan(whole)) {
    const int highest = from_double || sizeof(T) == 8 ? 8 * static_cast<int>(sizeof(T)) - 1 : -1;
    return highest < 0 ? 0
                       : static_cast<uint64_t>(static_cast<int64_t>(static_cast<T>(uint64_t{1} << highest)));
  }
  // 2^digits is exact; everything at or above it does not fit.
  const double above = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (whole >= above) return static_cast<uint64_t>(static_cast<int64_t>(std::numeric_limits<T>::max()));
  if (whole <= (std::is_signed_v<T> ? -above : 0.0)) {
    return static_cast<uint64_t>(static_cast<int64_t>(std::numeric_limits<T>::min()));
  }
  return static_cast<uint64_t>(static_cast<int64_t>(static_cast<T>(whole)));
}

uint64_t IntegerResult(Type type, double whole, bool from_double) {
  switch (type) {
    case Type::kU8:
      return ToInteger<uint8_t>(whole, from_double);
    case Type::kU16:
      return ToInteger<uint16_t>(whole, from_double);
    case Type::kU32:
      return ToInteger<uint32_t>(whole, from_double);
    case Type::kU64:
      return ToInteger<uint64_t>(whole, from_double);
    case Type::kS8:
      return ToInteger<int8_t>(whole, from_double);
    case Type::kS16:
      return ToInteger<int16_t>(whole, from_double);
    case Type::kS32:
      return ToInteger<int32_t>(whole, from_double);
    default:
      return ToInteger<int64_t>(whole, from_double);
  }
}

uint64_t Extended(Type type, uint64_t bits) {
  const int unused = 64 - 8 * TypeSize(type);
  return IsSigned(type) ? static_cast<uint64_t>(static_cast<int64_t>(bits << unused) >> unused)
                        : bits << unused >> unused;
}

// An integer as a double and what that lost: 64-bit values do not all fit.
double FromInteger(Type type, uint64_t bits, int* sticky) {
  bits = Extended(type, bits);
  const bool negative = IsSigned(type) && static_cast<int64_t>(bits) < 0;
  const uint64_t magnitude = negative ? uint64_t{0} - bits : bits;
  // The top 53 bits, cut; what is below makes the sticky bit.
  const int drop = std::max(0, 11 - std::countl_zero(magnitude));
  const uint64_t kept = magnitude >> drop << drop;
  *sticky = kept != magnitude ? 1 : 0;
  const double value = static_cast<double>(kept);
  return negative ? -value : value;
}

// The nearest double, for which a sticky bit below 53 others does not say enough.
double NearestDouble(Type type, uint64_t bits) {
  bits = Extended(type, bits);
  return IsSigned(type) ? static_cast<double>(static_cast<int64_t>(bits)) : static_cast<double>(bits);
}

}  // namespace

FloatFormat FormatOf(Type type) {
  switch (type) {
    case Type::kF16:
      return {10, -14, 15, true, 0x3ff};
    case Type::kBf16:
      return {7, -126, 127, true, 0x7f};
    case Type::kTf32:
      return {10, -126, 127, true, 0x3ff};
    case Type::kE4m3:
    case Type::kE4m3x2:
      return {3, -6, 8, false, 6};  // 0x7f is NaN, the largest is 448
    case Type::kE5m2:
    case Type::kE5m2x2:
      return {2, -14, 15, true, 3};
    case Type::kF64:
      return {52, -1022, 1023, true, (uint64_t{1} << 52) - 1};
    default:
      return {23, -126, 127, true, (uint64_t{1} << 23) - 1};
  }
}

uint64_t RoundToFormat(double value, const FloatFormat& format, Rounding rounding, bool satfinite,
                       int sticky) {
  const int m = format.mantissa_bits;
  const int exponent_bits =
      std::bit_width(static_cast<unsigned>(format.max_exponent - format.min_exponent + 1));
  const bool negative = std::signbit(value);
  const uint64_t sign = negative ? uint64_t{1} << (m + exponent_bits) : 0;
  const uint64_t bias = static_cast<uint64_t>(1 - format.min_exponent);
  const uint64_t largest = (static_cast<uint64_t>(format.max_exponent) + bias) << m | format.max_mantissa;
  const uint64_t infinity = (static_cast<uint64_t>(format.max_exponent) + bias + 1) << m;
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | (satfinite || !format.has_infinity ? largest : infinity);
  if (magnitude == 0) return sign;
  // Scale so that the last kept bit has weight one.
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  const double scaled = std::ldexp(magnitude, m - exponent);
  const double down = std::floor(scaled);
  const double part = scaled - down;  // exact
  bool up = false;
  const bool inexact = part > 0 || sticky > 0;
  switch (rounding) {
    case Rounding::kNearest:
      up = part > 0.5 || (part == 0.5 && (sticky > 0 || std::fmod(down, 2) != 0));
      break;
    case Rounding::kNearestAway:
      up = part >= 0.5;
      break;
    case Rounding::kZero:
      break;
    case Rounding::kDown:
      up = inexact && negative;
      break;
    case Rounding::kUp:
      up = inexact && !negative;
      break;
  }
  const uint64_t units = static_cast<uint64_t>(down) + (up ? 1 : 0);
  // Units up to 2^m - 1 at the smallest exponent are subnormal; a carry into the exponent is right by itself.
  uint64_t bits = units;
  if (units >> m != 0) bits = ((static_cast<uint64_t>(exponent) + bias) << m) + (units - (uint64_t{1} << m));
  if (bits > largest) {
    const bool stays = rounding == Rounding::kZero || (rounding == Rounding::kDown && !negative) ||
                       (rounding == Rounding::kUp && negative);
    bits = satfinite || stays || !format.has_infinity ? largest : infinity;
  }
  return sign | bits;
}

Conversion::Conversion(const Opcode& opcode) {
  constexpr std::string_view kModes[] = {"rn", "rz", "rm", "rp", "rna"};
  constexpr std::string_view kWhole[] = {"rni", "rzi", "rmi", "rpi"};
  to = opcode.type();
  from = opcode.last_type();
  if (const int mode = opcode.Find(kModes); mode >= 0) rounding = static_cast<Rounding>(mode);
  if (const int mode = opcode.Find(kWhole); mode >= 0) {
    rounding = static_cast<Rounding>(mode);
    integral = true;
  }
  ftz = opcode.Has("ftz");
  saturate = opcode.Has("sat");
  satfinite = opcode.Has("satfinite");
  relu = opcode.Has("relu");
}

uint32_t Conversion::Pack() const {
  return static_cast<uint32_t>(to) | static_cast<uint32_t>(from) << 8 |
         static_cast<uint32_t>(rounding) << 16 | (integral ? 1u << 20 : 0u) | (ftz ? 1u << 21 : 0u) |
         (saturate ? 1u << 22 : 0u) | (satfinite ? 1u << 23 : 0u) | (relu ? 1u << 24 : 0u);
}

Conversion Conversion::Unpack(uint32_t packed) {
  Conversion out;
  out.to = static_cast<Type>(packed & 255);
  out.from = static_cast<Type>(packed >> 8 & 255);
  out.rounding = static_cast<Rounding>(packed >> 16 & 15);
  out.integral = packed >> 20 & 1;
  out.ftz = packed >> 21 & 1;
  out.saturate = packed >> 22 & 1;
  out.satfinite = packed >> 23 & 1;
  out.relu = packed >> 24 & 1;
  return out;
}

uint64_t Convert(const Conversion& c, uint64_t bits) {
  int sticky = 0;
  const bool nearest_double = c.to == Type::kF64 && c.rounding == Rounding::kNearest;
  double value = IsFloat(c.from)  ? ValueOf(c.from, bits)
                 : nearest_double ? NearestDouble(c.from, bits)
                                  : FromInteger(c.from, bits, &sticky);
  if (c.ftz && c.from == Type::kF32) value = FlushSingle(value);
  if (c.integral) value = RoundToWhole(value, c.rounding);
  if (!IsFloat(c.to)) return IntegerResult(c.to, value, c.from == Type::kF64);
  if (c.saturate) {
    value = value > 0 ? std::fmin(value, 1.0) : 0.0;  // NaN to zero
    sticky = 0;                                       // of a whole number only one and zero are left
  }
  if (c.relu && !(value > 0) && !std::isnan(value)) value = 0.0;
  if (std::isnan(value)) return NanBits(c.to);
  uint64_t result;
  if (c.to == Type::kF64 && sticky == 0) {
    result = std::bit_cast<uint64_t>(value);
  } else {
    const Rounding rounding = c.integral ? Rounding::kNearest : c.rounding;
    result = RoundToFormat(value, FormatOf(c.to), rounding, c.satfinite, sticky);
  }
  if (c.ftz && c.to == Type::kF32 && (result & 0x7f800000u) == 0) result &= 0x80000000u;
  return result;
}

}  // namespace vqllm::ptx
