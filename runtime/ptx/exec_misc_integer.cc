#include <algorithm>

#include "runtime/ptx/exec.h"

namespace vqllm::ptx {
namespace {

// The condition code: one bit a lane. sub.cc stores the borrow.
template <typename T>
struct Carried {
  T value;
  bool carry;
};

template <typename T>
Carried<T> AddCarry(T a, T b, bool carry) {
  const T sum = static_cast<T>(a + b);
  const T result = static_cast<T>(sum + T{carry});
  return {result, sum < a || result < sum};
}
template <typename T>
Carried<T> SubBorrow(T a, T b, bool borrow) {
  const T difference = static_cast<T>(a - b);
  return {static_cast<T>(difference - T{borrow}), a < b || difference < T{borrow}};
}

enum class CarryOperation : uint8_t { kAdd, kSub, kMadLow, kMadHigh };

template <typename T, CarryOperation kOperation, bool kIn, bool kOut, bool kSigned>
void CarryLanes(Warp& warp, const Instruction& instruction) {
  __extension__ using Wide = std::conditional_t<kSigned, __int128, unsigned __int128>;
  using S = std::conditional_t<kSigned, std::make_signed_t<T>, T>;
  ForLanes(warp.mask, [&](int i) {
    T a = warp.Read<T>(instruction.source[0])[i];
    T b = warp.Read<T>(instruction.source[1])[i];
    if constexpr (kOperation == CarryOperation::kMadLow || kOperation == CarryOperation::kMadHigh) {
      const Wide product = static_cast<Wide>(static_cast<S>(a)) * static_cast<Wide>(static_cast<S>(b));
      a = static_cast<T>(kOperation == CarryOperation::kMadLow ? product : product >> (8 * sizeof(T)));
      b = warp.Read<T>(instruction.source[2])[i];
    }
    const bool in = kIn && (warp.carry >> i & 1);
    const Carried<T> result = kOperation == CarryOperation::kSub ? SubBorrow(a, b, in) : AddCarry(a, b, in);
    warp.Write<T>(instruction.dest[0])[i] = result.value;
    if constexpr (kOut) warp.carry = (warp.carry & ~(1u << i)) | static_cast<uint32_t>(result.carry) << i;
  });
}

template <typename T, CarryOperation kOperation, bool kSigned>
Handler PickCarry(bool in, bool out) {
  if (in)
    return out ? CarryLanes<T, kOperation, true, true, kSigned>
               : CarryLanes<T, kOperation, true, false, kSigned>;
  return CarryLanes<T, kOperation, false, true, kSigned>;
}

template <typename T>
Handler SelectCarryTyped(const Opcode& o) {
  const bool in = o.base == "addc" || o.base == "subc" || o.base == "madc";
  const bool out = o.Has("cc");
  if (o.base.starts_with("add")) return PickCarry<T, CarryOperation::kAdd, false>(in, out);
  if (o.base.starts_with("sub")) return PickCarry<T, CarryOperation::kSub, false>(in, out);
  if (o.Has("lo")) return PickCarry<T, CarryOperation::kMadLow, false>(in, out);
  return IsSigned(o.type()) ? PickCarry<T, CarryOperation::kMadHigh, true>(in, out)
                            : PickCarry<T, CarryOperation::kMadHigh, false>(in, out);
}

template <typename T, auto F>
uint32_t Pair(uint32_t a, uint32_t b) {
  const uint32_t low = static_cast<uint16_t>(F(static_cast<T>(a), static_cast<T>(b)));
  const uint32_t high = static_cast<uint16_t>(F(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
  return high << 16 | low;
}
template <typename T, auto F>
constexpr Handler kPair =
    Lanes<uint32_t, [](uint32_t a, uint32_t b) { return Pair<T, F>(a, b); }, uint32_t, uint32_t>;

template <typename T>
int Smaller(T a, T b) {
  return std::min(a, b);
}
template <typename T>
int Larger(T a, T b) {
  return std::max(a, b);
}
int SmallerRelu(int16_t a, int16_t b) { return std::max(0, int{std::min(a, b)}); }
int LargerRelu(int16_t a, int16_t b) { return std::max(0, int{std::max(a, b)}); }
int Sum(uint16_t a, uint16_t b) { return a + b; }

// dp4a and dp2a: byte i of a value, with or without sign.
template <bool kSigned>
int64_t Byte(uint32_t value, int i) {
  const uint8_t byte = static_cast<uint8_t>(value >> (8 * i));
  return kSigned ? int64_t{static_cast<int8_t>(byte)} : int64_t{byte};
}
template <bool kA, bool kB>
constexpr Handler kDot4 = Lanes<uint32_t,
                                [](uint32_t a, uint32_t b, uint32_t c) {
                                  int64_t sum = 0;
                                  for (int i = 0; i < 4; ++i) sum += Byte<kA>(a, i) * Byte<kB>(b, i);
                                  return static_cast<uint32_t>(c + static_cast<uint64_t>(sum));
                                },
                                uint32_t, uint32_t, uint32_t>;
template <bool kA, bool kB, int kFirst>
constexpr Handler kDot2 =
    Lanes<uint32_t,
          [](uint32_t a, uint32_t b, uint32_t c) {
            int64_t sum = 0;
            for (int i = 0; i < 2; ++i) {
              const uint16_t half = static_cast<uint16_t>(a >> (16 * i));
              const int64_t wide = kA ? int64_t{static_cast<int16_t>(half)} : int64_t{half};
              sum += wide * Byte<kB>(b, kFirst + i);
            }
            return static_cast<uint32_t>(c + static_cast<uint64_t>(sum));
          },
          uint32_t, uint32_t, uint32_t>;

// mul24: bits 31..0 or 47..16 of the product of the low 24 bits.
template <bool kSigned>
int64_t Product24(uint32_t a, uint32_t b) {
  if (kSigned) {
    return int64_t{static_cast<int32_t>(a << 8) >> 8} * int64_t{static_cast<int32_t>(b << 8) >> 8};
  }
  return static_cast<int64_t>(uint64_t{a & 0xffffff} * (b & 0xffffff));
}
template <bool kSigned, int kShift>
Handler Select24(bool mad) {
  if (mad) {
    return Lanes<uint32_t,
                 [](uint32_t a, uint32_t b, uint32_t c) {
                   return static_cast<uint32_t>((Product24<kSigned>(a, b) >> kShift)) + c;
                 },
                 uint32_t, uint32_t, uint32_t>;
  }
  return Lanes<uint32_t,
               [](uint32_t a, uint32_t b) {
                 return static_cast<uint32_t>((Product24<kSigned>(a, b) >> kShift));
               },
               uint32_t, uint32_t>;
}

template <bool kA, bool kB>
Handler SelectDot(const Opcode& o) {
  if (o.base == "dp4a") return kDot4<kA, kB>;
  return o.Has("lo") ? kDot2<kA, kB, 0> : kDot2<kA, kB, 2>;
}

}  // namespace

Handler SelectCarry(const Opcode& o) {
  return TypeSize(o.type()) == 8 ? SelectCarryTyped<uint64_t>(o) : SelectCarryTyped<uint32_t>(o);
}

Handler SelectPackedInteger(const Opcode& o) {
  if (o.base == "dp4a" || o.base == "dp2a") {
    const bool a = IsSigned(o.type());
    const bool b = IsSigned(o.last_type());
    if (a) return b ? SelectDot<true, true>(o) : SelectDot<true, false>(o);
    return b ? SelectDot<false, true>(o) : SelectDot<false, false>(o);
  }
  if (o.base == "mul24" || o.base == "mad24") {
    const bool mad = o.base == "mad24";
    if (IsSigned(o.type())) return o.Has("lo") ? Select24<true, 0>(mad) : Select24<true, 16>(mad);
    return o.Has("lo") ? Select24<false, 0>(mad) : Select24<false, 16>(mad);
  }
  if (o.base == "add") return kPair<uint16_t, Sum>;
  if (o.Has("relu")) return o.base == "min" ? kPair<int16_t, SmallerRelu> : kPair<int16_t, LargerRelu>;
  if (o.type() == Type::kS16x2) {
    return o.base == "min" ? kPair<int16_t, Smaller<int16_t>> : kPair<int16_t, Larger<int16_t>>;
  }
  return o.base == "min" ? kPair<uint16_t, Smaller<uint16_t>> : kPair<uint16_t, Larger<uint16_t>>;
}

}  // namespace vqllm::ptx
