#include <cmath>
#include <limits>

#include "runtime/ptx/convert.h"
#include "runtime/ptx/exec.h"
#include "runtime/ptx/half_math.h"

namespace vqllm::ptx {
namespace {

// Storage of each type in the low bits of its register.
template <Type kType>
struct Stored;
template <>
struct Stored<Type::kU8> {
  using type = uint8_t;
};
template <>
struct Stored<Type::kU16> {
  using type = uint16_t;
};
template <>
struct Stored<Type::kU32> {
  using type = uint32_t;
};
template <>
struct Stored<Type::kU64> {
  using type = uint64_t;
};
template <>
struct Stored<Type::kS8> {
  using type = int8_t;
};
template <>
struct Stored<Type::kS16> {
  using type = int16_t;
};
template <>
struct Stored<Type::kS32> {
  using type = int32_t;
};
template <>
struct Stored<Type::kS64> {
  using type = int64_t;
};

// Integers to integers: truncated or extended, then extended to the register.
template <typename D, typename S>
void Resize(Warp& warp, const Instruction& instruction) {
  ForLanes(warp.mask, [&](int i) {
    const S value = static_cast<S>(LaneBits(warp, instruction.source[0], instruction.source_bytes, i));
    SetLaneBits(warp, instruction.dest[0], instruction.dest_bytes, i,
                static_cast<uint64_t>(static_cast<int64_t>(static_cast<D>(value))));
  });
}
// The usual case: registers of the width of the types, or of 16 bits for bytes.
template <typename D, typename S>
void ResizeFast(Warp& warp, const Instruction& instruction) {
  using RD = std::conditional_t<sizeof(D) == 1, uint16_t, D>;
  using RS = std::conditional_t<sizeof(S) == 1, uint16_t, S>;
  if (instruction.dest_bytes != sizeof(RD) || instruction.source_bytes != sizeof(RS)) {
    return Resize<D, S>(warp, instruction);
  }
  const RS* a = warp.Read<RS>(instruction.source[0]);
  alignas(64) RD values[kWarpSize];
  for (int i = 0; i < kWarpSize; ++i) values[i] = static_cast<RD>(static_cast<D>(static_cast<S>(a[i])));
  StoreLanes(warp.Write<RD>(instruction.dest[0]), values, warp.mask);
}

template <typename D, typename S>
void ResizeSaturating(Warp& warp, const Instruction& instruction) {
  __extension__ using Wide = __int128;
  ForLanes(warp.mask, [&](int i) {
    const Wide value = static_cast<S>(LaneBits(warp, instruction.source[0], instruction.source_bytes, i));
    const Wide low = std::numeric_limits<D>::min();
    const Wide high = std::numeric_limits<D>::max();
    const D result = static_cast<D>(value < low ? low : value > high ? high : value);
    SetLaneBits(warp, instruction.dest[0], instruction.dest_bytes, i,
                static_cast<uint64_t>(static_cast<int64_t>(result)));
  });
}

template <typename D, Type kSource>
Handler PickResize(bool saturate) {
  using S = typename Stored<kSource>::type;
  return saturate ? Handler{ResizeSaturating<D, S>} : Handler{ResizeFast<D, S>};
}

template <typename D>
Handler SelectFromInteger(Type source, bool saturate) {
  switch (source) {
    case Type::kU8:
      return PickResize<D, Type::kU8>(saturate);
    case Type::kU16:
      return PickResize<D, Type::kU16>(saturate);
    case Type::kU32:
      return PickResize<D, Type::kU32>(saturate);
    case Type::kU64:
      return PickResize<D, Type::kU64>(saturate);
    case Type::kS8:
      return PickResize<D, Type::kS8>(saturate);
    case Type::kS16:
      return PickResize<D, Type::kS16>(saturate);
    case Type::kS32:
      return PickResize<D, Type::kS32>(saturate);
    default:
      return PickResize<D, Type::kS64>(saturate);
  }
}

Handler SelectResize(const Opcode& o) {
  const bool saturate = o.Has("sat");
  const Type source = o.last_type();
  switch (o.type()) {
    case Type::kU8:
      return SelectFromInteger<uint8_t>(source, saturate);
    case Type::kU16:
      return SelectFromInteger<uint16_t>(source, saturate);
    case Type::kU32:
      return SelectFromInteger<uint32_t>(source, saturate);
    case Type::kU64:
      return SelectFromInteger<uint64_t>(source, saturate);
    case Type::kS8:
      return SelectFromInteger<int8_t>(source, saturate);
    case Type::kS16:
      return SelectFromInteger<int16_t>(source, saturate);
    case Type::kS32:
      return SelectFromInteger<int32_t>(source, saturate);
    default:
      return SelectFromInteger<int64_t>(source, saturate);
  }
}

// Everything with a float in it, lane by lane; the choice of types and modes is data in the immediate.
void ConvertLanes(Warp& warp, const Instruction& instruction) {
  const Conversion conversion = Conversion::Unpack(instruction.immediate);
  ForLanes(warp.mask, [&](int i) {
    const uint64_t bits = LaneBits(warp, instruction.source[0], instruction.source_bytes, i);
    SetLaneBits(warp, instruction.dest[0], instruction.dest_bytes, i, Convert(conversion, bits));
  });
}

template <typename Kind>
void HalfToFloat(Warp& warp, const Instruction& instruction) {
  if (instruction.source_bytes != 2) return ConvertLanes(warp, instruction);
  alignas(64) float values[kWarpSize];
  LoadHalves<Kind, kWarpSize>(warp.Read<uint16_t>(instruction.source[0]), values);
  // A quiet NaN keeps its payload in cvt; a signalling one would be quieted by the hardware as well.
  StoreLanes(warp.Write<float>(instruction.dest[0]), values, warp.mask);
}

template <typename Kind>
void FloatToHalf(Warp& warp, const Instruction& instruction) {
  if (instruction.dest_bytes != 2) return ConvertLanes(warp, instruction);
  alignas(64) uint16_t values[kWarpSize];
  RoundHalves<Kind, kWarpSize>(warp.Read<float>(instruction.source[0]), values);
  StoreLanes(warp.Write<uint16_t>(instruction.dest[0]), values, warp.mask);
}

template <typename S>
void IntegerToFloat(Warp& warp, const Instruction& instruction) {
  if (instruction.source_bytes != 4) return ConvertLanes(warp, instruction);
  const S* a = warp.Read<S>(instruction.source[0]);
  alignas(64) float values[kWarpSize];
  for (int i = 0; i < kWarpSize; ++i) values[i] = static_cast<float>(a[i]);
  StoreLanes(warp.Write<float>(instruction.dest[0]), values, warp.mask);
}

}  // namespace

Handler SelectConvert(const Opcode& o) {
  const Type to = o.type();
  const Type from = o.last_type();
  if (!IsFloat(to) && !IsFloat(from)) return SelectResize(o);
  const bool plain = !o.Has("ftz") && !o.Has("sat");
  if (plain && to == Type::kF32 && from == Type::kF16 && o.parts.size() == 2) return HalfToFloat<HalfKind>;
  if (plain && to == Type::kF32 && from == Type::kBf16 && o.parts.size() == 2)
    return HalfToFloat<BFloat16Kind>;
  if (plain && to == Type::kF16 && from == Type::kF32 && o.Has("rn")) return FloatToHalf<HalfKind>;
  if (plain && to == Type::kF32 && from == Type::kS32 && o.Has("rn")) return IntegerToFloat<int32_t>;
  if (plain && to == Type::kF32 && from == Type::kU32 && o.Has("rn")) return IntegerToFloat<uint32_t>;
  return ConvertLanes;
}

}  // namespace vqllm::ptx
