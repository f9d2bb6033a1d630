#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/ptx/convert.h"
#include "runtime/ptx/exec.h"
#include "runtime/ptx/half_math.h"

namespace vqllm::ptx {
namespace {

// One value of a pair: to a half, to tf32 (its bits are the top of a float) or to fp8.
uint32_t ConvertElement(const Conversion& c, float value) {
  if (c.relu && !(value > 0) && value == value) value = 0;
  const bool eight = TypeSize(c.to) == 2 && (c.to == Type::kE4m3x2 || c.to == Type::kE5m2x2);
  if (value != value) return c.to == Type::kTf32 ? 0x7fffffffu : eight ? 0x7fu : 0x7fffu;
  const Type element = c.to == Type::kF16x2 ? Type::kF16 : c.to == Type::kBf16x2 ? Type::kBf16 : c.to;
  const uint64_t bits = RoundToFormat(static_cast<double>(value), FormatOf(element), c.rounding, c.satfinite);
  return static_cast<uint32_t>(c.to == Type::kTf32 ? bits << 13 : bits);
}

// d = {a, b}: the first source lies in the high half.
void PairFromFloats(Warp& warp, const Instruction& instruction) {
  const Conversion c = Conversion::Unpack(instruction.immediate);
  const int half = TypeSize(c.to) * 4;  // bits of an element
  ForLanes(warp.mask, [&](int i) {
    const uint32_t high = ConvertElement(c, warp.Read<float>(instruction.source[0])[i]);
    const uint32_t low = ConvertElement(c, warp.Read<float>(instruction.source[1])[i]);
    SetLaneBits(warp, instruction.dest[0], instruction.dest_bytes, i, high << half | low);
  });
}

template <typename Kind>
void HalvesFromFloats(Warp& warp, const Instruction& instruction) {
  alignas(64) uint16_t high[kWarpSize];
  alignas(64) uint16_t low[kWarpSize];
  alignas(64) uint32_t values[kWarpSize];
  RoundHalves<Kind, kWarpSize>(warp.Read<float>(instruction.source[0]), high);
  RoundHalves<Kind, kWarpSize>(warp.Read<float>(instruction.source[1]), low);
  for (int i = 0; i < kWarpSize; ++i) values[i] = low[i] | static_cast<uint32_t>(high[i]) << 16;
  StoreLanes(warp.Write<uint32_t>(instruction.dest[0]), values, warp.mask);
}

void ElementFromFloat(Warp& warp, const Instruction& instruction) {
  const Conversion c = Conversion::Unpack(instruction.immediate);
  ForLanes(warp.mask, [&](int i) {
    SetLaneBits(warp, instruction.dest[0], instruction.dest_bytes, i,
                ConvertElement(c, warp.Read<float>(instruction.source[0])[i]));
  });
}

template <typename Kind>
void HalfFromFloat(Warp& warp, const Instruction& instruction) {
  if (instruction.dest_bytes != 2) return ElementFromFloat(warp, instruction);
  alignas(64) uint16_t values[kWarpSize];
  RoundHalves<Kind, kWarpSize>(warp.Read<float>(instruction.source[0]), values);
  StoreLanes(warp.Write<uint16_t>(instruction.dest[0]), values, warp.mask);
}

void Fp8FromHalves(Warp& warp, const Instruction& instruction) {
  const Conversion c = Conversion::Unpack(instruction.immediate);
  ForLanes(warp.mask, [&](int i) {
    const uint32_t pair = warp.Read<uint32_t>(instruction.source[0])[i];
    const uint32_t low = ConvertElement(c, HalfBitsToFloat(static_cast<uint16_t>(pair)));
    const uint32_t high = ConvertElement(c, HalfBitsToFloat(static_cast<uint16_t>(pair >> 16)));
    SetLaneBits(warp, instruction.dest[0], instruction.dest_bytes, i, high << 8 | low);
  });
}

// Both fp8 kinds are exact in half.
uint16_t HalfFromFp8(uint32_t byte, bool e5m2, bool relu) {
  uint16_t half;
  if (e5m2) {
    half = static_cast<uint16_t>(byte << 8);
    if ((half & 0x7fff) > 0x7c00) half = 0x7fff;
  } else {
    const uint32_t magnitude = byte & 0x7f;
    const float value = magnitude == 0x7f ? std::numeric_limits<float>::quiet_NaN()
                        : magnitude < 8   ? std::ldexp(static_cast<float>(magnitude), -9)
                                          : std::ldexp(static_cast<float>(8 + (magnitude & 7)),
                                                       static_cast<int>(magnitude >> 3) - 10);
    half = value != value ? uint16_t{0x7fff}
                          : static_cast<uint16_t>(FloatToHalfBits(value) | (byte & 0x80) << 8);
  }
  return relu && (half & 0x8000) ? uint16_t{0} : half;
}

template <bool kE5m2, bool kRelu>
void HalvesFromFp8(Warp& warp, const Instruction& instruction) {
  ForLanes(warp.mask, [&](int i) {
    const uint32_t pair =
        static_cast<uint32_t>(LaneBits(warp, instruction.source[0], instruction.source_bytes, i));
    const uint32_t low = HalfFromFp8(pair & 0xff, kE5m2, kRelu);
    const uint32_t high = HalfFromFp8(pair >> 8 & 0xff, kE5m2, kRelu);
    SetLaneBits(warp, instruction.dest[0], instruction.dest_bytes, i, high << 16 | low);
  });
}

template <typename T>
uint32_t Saturate(int32_t value) {
  const int32_t low = std::numeric_limits<T>::min();
  const int32_t high = std::numeric_limits<T>::max();
  return static_cast<std::make_unsigned_t<T>>(std::clamp(value, low, high));
}

// cvt.pack: a lies above b; the 8-bit forms shift c up and put both below it.
template <typename T>
void PackIntegers(Warp& warp, const Instruction& instruction) {
  constexpr int kBits = 8 * sizeof(T);
  ForLanes(warp.mask, [&](int i) {
    const uint32_t a = Saturate<T>(warp.Read<int32_t>(instruction.source[0])[i]);
    const uint32_t b = Saturate<T>(warp.Read<int32_t>(instruction.source[1])[i]);
    uint32_t result = a << kBits | b;
    if (kBits == 8) result |= warp.Read<uint32_t>(instruction.source[2])[i] << 16;
    warp.Write<uint32_t>(instruction.dest[0])[i] = result;
  });
}

}  // namespace

Handler SelectConvertPacked(const Opcode& o) {
  const bool plain = o.Has("rn") && !o.Has("relu") && !o.Has("satfinite");
  if (o.Has("pack")) {
    switch (o.type()) {
      case Type::kS16:
        return PackIntegers<int16_t>;
      case Type::kU16:
        return PackIntegers<uint16_t>;
      case Type::kS8:
        return PackIntegers<int8_t>;
      default:
        return PackIntegers<uint8_t>;
    }
  }
  switch (o.last_type()) {
    case Type::kE4m3x2:
      return o.Has("relu") ? HalvesFromFp8<false, true> : HalvesFromFp8<false, false>;
    case Type::kE5m2x2:
      return o.Has("relu") ? HalvesFromFp8<true, true> : HalvesFromFp8<true, false>;
    case Type::kF16x2:
      return Fp8FromHalves;
    default:
      break;
  }
  switch (o.type()) {
    case Type::kF16x2:
      return plain ? HalvesFromFloats<HalfKind> : PairFromFloats;
    case Type::kBf16x2:
      return plain ? HalvesFromFloats<BFloat16Kind> : PairFromFloats;
    case Type::kE4m3x2:
    case Type::kE5m2x2:
      return PairFromFloats;
    case Type::kF16:
      return plain ? HalfFromFloat<HalfKind> : ElementFromFloat;
    case Type::kBf16:
      return plain ? HalfFromFloat<BFloat16Kind> : ElementFromFloat;
    default:
      return ElementFromFloat;
  }
}

}  // namespace vqllm::ptx
