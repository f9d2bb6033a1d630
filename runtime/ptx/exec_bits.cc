#include <algorithm>

#include "runtime/ptx/exec.h"

namespace vqllm::ptx {
namespace {

template <typename T>
constexpr uint32_t kBits = 8 * sizeof(T);

template <typename T>
Handler SelectShift(const Opcode& o) {
  using S = std::make_signed_t<T>;
  // A shift by the width or more gives zero, or the sign.
  if (o.base == "shl") {
    return Lanes<
        T, [](T a, uint32_t b) { return static_cast<T>(b >= kBits<T> ? T{0} : static_cast<T>(a << b)); }, T,
        uint32_t>;
  }
  if (IsSigned(o.type())) {
    return Lanes<S, [](S a, uint32_t b) { return static_cast<S>(a >> (b >= kBits<T> ? kBits<T> - 1 : b)); },
                 S, uint32_t>;
  }
  return Lanes<T,
               [](T a, uint32_t b) { return static_cast<T>(b >= kBits<T> ? T{0} : static_cast<T>(a >> b)); },
               T, uint32_t>;
}

template <typename T>
Handler SelectLogicTyped(const Opcode& o) {
  if (o.base == "and") return Lanes<T, [](T a, T b) { return static_cast<T>(a & b); }, T, T>;
  if (o.base == "or") return Lanes<T, [](T a, T b) { return static_cast<T>(a | b); }, T, T>;
  if (o.base == "xor") return Lanes<T, [](T a, T b) { return static_cast<T>(a ^ b); }, T, T>;
  if (o.base == "not") return Lanes<T, [](T a) { return static_cast<T>(~a); }, T>;
  if (o.base == "cnot") return Lanes<T, [](T a) { return static_cast<T>(a == 0); }, T>;
  return SelectShift<T>(o);
}

// Any function of three bits: the table of eight results, spread to masks once for all lanes.
void Lop3(Warp& warp, const Instruction& instruction) {
  const uint32_t* a = warp.Read<uint32_t>(instruction.source[0]);
  const uint32_t* b = warp.Read<uint32_t>(instruction.source[1]);
  const uint32_t* c = warp.Read<uint32_t>(instruction.source[2]);
  uint32_t table[8];
  for (int j = 0; j < 8; ++j) table[j] = (instruction.immediate >> j & 1) ? ~0u : 0u;
  alignas(64) uint32_t values[kWarpSize];
  for (int i = 0; i < kWarpSize; ++i) {
    // Select by c, then b, then a.
    const uint32_t x = c[i];
    const uint32_t n00 = (table[0] & ~x) | (table[1] & x);
    const uint32_t n01 = (table[2] & ~x) | (table[3] & x);
    const uint32_t n10 = (table[4] & ~x) | (table[5] & x);
    const uint32_t n11 = (table[6] & ~x) | (table[7] & x);
    const uint32_t y = b[i];
    const uint32_t m0 = (n00 & ~y) | (n01 & y);
    const uint32_t m1 = (n10 & ~y) | (n11 & y);
    values[i] = (m0 & ~a[i]) | (m1 & a[i]);
  }
  StoreLanes(warp.Write<uint32_t>(instruction.dest[0]), values, warp.mask);
}

uint32_t Permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t s = selector >> (4 * i) & 15;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (s & 7))) & 0xff;
    byte = (s & 8) ? ((byte & 0x80) ? 0xffu : 0u) : byte;
    result |= byte << (8 * i);
  }
  return result;
}

// The selectors that the modes of prmt stand for, by the two low bits of c (PTX ISA, table of prmt).
constexpr uint32_t kF4e[4] = {0x3210, 0x4321, 0x5432, 0x6543};
constexpr uint32_t kB4e[4] = {0x5670, 0x6701, 0x7012, 0x0123};
constexpr uint32_t kRc8[4] = {0x0000, 0x1111, 0x2222, 0x3333};
constexpr uint32_t kEcl[4] = {0x3210, 0x3211, 0x3222, 0x3333};
constexpr uint32_t kEcr[4] = {0x0000, 0x1110, 0x2210, 0x3210};
constexpr uint32_t kRc16[4] = {0x1010, 0x3232, 0x1010, 0x3232};

template <const uint32_t (&kTable)[4]>
constexpr Handler kPermuteMode =
    Lanes<uint32_t, [](uint32_t a, uint32_t b, uint32_t c) { return Permute(a, b, kTable[c & 3]); }, uint32_t,
          uint32_t, uint32_t>;

Handler SelectPermute(const Opcode& o) {
  if (o.Has("f4e")) return kPermuteMode<kF4e>;
  if (o.Has("b4e")) return kPermuteMode<kB4e>;
  if (o.Has("rc8")) return kPermuteMode<kRc8>;
  if (o.Has("ecl")) return kPermuteMode<kEcl>;
  if (o.Has("ecr")) return kPermuteMode<kEcr>;
  if (o.Has("rc16")) return kPermuteMode<kRc16>;
  return Lanes<uint32_t, [](uint32_t a, uint32_t b, uint32_t c) { return Permute(a, b, c); }, uint32_t,
               uint32_t, uint32_t>;
}

template <bool kLeft, bool kWrap>
constexpr Handler kFunnel = Lanes<uint32_t,
                                  [](uint32_t a, uint32_t b, uint32_t c) {
                                    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
                                    const uint32_t n = kWrap ? c & 31 : (c > 32 ? 32u : c);
                                    return static_cast<uint32_t>(kLeft ? (both << n) >> 32 : both >> n);
                                  },
                                  uint32_t, uint32_t, uint32_t>;

Handler SelectFunnel(const Opcode& o) {
  // Left by 32 would shift b out of 64 bits with the first half only: (both << 32) >> 32 is a, as it should.
  if (o.Has("l")) return o.Has("wrap") ? kFunnel<true, true> : kFunnel<true, false>;
  return o.Has("wrap") ? kFunnel<false, true> : kFunnel<false, false>;
}

// bfind: position of the highest bit that differs from the sign, -1 for none; or the shift that brings it up.
template <typename T, bool kShift>
constexpr Handler kFind =
    Lanes<uint32_t,
          [](T a) {
            using Unsigned = std::make_unsigned_t<T>;
            Unsigned bits = static_cast<Unsigned>(a);
            if constexpr (std::is_signed_v<T>) bits = a < 0 ? static_cast<Unsigned>(~bits) : bits;
            if (bits == 0) return ~0u;
            const uint32_t position = kBits<T> - 1 - static_cast<uint32_t>(std::countl_zero(bits));
            return kShift ? kBits<T> - 1 - position : position;
          },
          T>;

template <typename T>
Handler SelectFind(const Opcode& o) {
  return o.Has("shiftamt") ? kFind<T, true> : kFind<T, false>;
}

template <typename T>
T Reverse(T value) {
  T result = 0;
  for (uint32_t i = 0; i < kBits<T>; ++i) result = static_cast<T>(result << 1 | (value >> i & 1));
  return result;
}

// bfe: position and length are the low bytes; bits beyond the top are the sign.
template <typename T>
constexpr Handler kExtract =
    Lanes<T,
          [](T a, uint32_t b, uint32_t c) {
            using Unsigned = std::make_unsigned_t<T>;
            const uint32_t position = b & 255;
            const uint32_t length = c & 255;
            if (length == 0) return T{0};
            T shifted;
            if constexpr (std::is_signed_v<T>) {
              shifted = static_cast<T>(a >> std::min(position, kBits<T> - 1));
            } else {
              shifted = position >= kBits<T> ? T{0} : static_cast<T>(a >> position);
            }
            if (length >= kBits<T>) return shifted;
            if constexpr (std::is_signed_v<T>) {
              // The sign is bit position + length - 1, or the top bit where that lies beyond it.
              if (position + length >= kBits<T>) return shifted;
              const uint32_t up = kBits<T> - length;
              return static_cast<T>(static_cast<T>(static_cast<Unsigned>(shifted) << up) >> up);
            } else {
              return static_cast<T>(shifted & ((Unsigned{1} << length) - 1));
            }
          },
          T, uint32_t, uint32_t>;

template <typename T>
constexpr Handler kInsert =
    Lanes<T,
          [](T a, T b, uint32_t c, uint32_t d) {
            const uint32_t position = c & 255;
            const uint32_t length = d & 255;
            if (position >= kBits<T> || length == 0) return b;
            const T low = length >= kBits<T> ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << length) - 1);
            const T field = static_cast<T>(low << position);
            return static_cast<T>((b & ~field) | ((a << position) & field));
          },
          T, T, uint32_t, uint32_t>;

// fns: the n-th set bit of the mask from base on, upwards or downwards; -1 for none.
uint32_t FindNthSet(uint32_t mask, uint32_t base, uint32_t offset) {
  const int32_t n = static_cast<int32_t>(offset);
  if (base > 31) return ~0u;
  if (n == 0) return (mask >> base & 1) ? base : ~0u;
  const int step = n > 0 ? 1 : -1;
  int64_t left = n > 0 ? n : -int64_t{n};
  for (int position = static_cast<int>(base); position >= 0 && position < 32; position += step) {
    if ((mask >> position & 1) && --left == 0) return static_cast<uint32_t>(position);
  }
  return ~0u;
}

template <bool kClamp>
constexpr Handler kMask = Lanes<uint32_t,
                                [](uint32_t a, uint32_t b) {
                                  if (!kClamp) return ((1u << (b & 31)) - 1) << (a & 31);
                                  const uint32_t ones = b >= 32 ? ~0u : (1u << b) - 1;
                                  return a >= 32 ? 0u : ones << a;
                                },
                                uint32_t, uint32_t>;

// szext: the low n bits, extended by sign or zero.
template <bool kClamp, bool kSigned>
constexpr Handler kExtend =
    Lanes<uint32_t,
          [](uint32_t a, uint32_t b) {
            const uint32_t n = kClamp ? std::min(b, 32u) : b & 31;
            if (n == 0) return 0u;
            if (n == 32) return a;
            const uint32_t up = 32 - n;
            return kSigned ? static_cast<uint32_t>((static_cast<int32_t>(a << up) >> up)) : ((a << up) >> up);
          },
          uint32_t, uint32_t>;

}  // namespace

Handler SelectLogic(const Opcode& o) {
  if (o.base == "lop3") return Lop3;
  if (o.base == "prmt") return SelectPermute(o);
  if (o.base == "shf") return SelectFunnel(o);
  switch (TypeSize(o.type())) {
    case 2:
      return SelectLogicTyped<uint16_t>(o);
    case 4:
      return SelectLogicTyped<uint32_t>(o);
    default:
      return SelectLogicTyped<uint64_t>(o);
  }
}

Handler SelectBits(const Opcode& o) {
  const bool wide = TypeSize(o.type()) == 8;
  if (o.base == "popc") {
    return wide ? Handler{Lanes<uint32_t, [](uint64_t a) { return static_cast<uint32_t>(std::popcount(a)); },
                                uint64_t>}
                : Handler{Lanes<uint32_t, [](uint32_t a) { return static_cast<uint32_t>(std::popcount(a)); },
                                uint32_t>};
  }
  if (o.base == "clz") {
    return wide ? Handler{Lanes<uint32_t,
                                [](uint64_t a) { return static_cast<uint32_t>(std::countl_zero(a)); },
                                uint64_t>}
                : Handler{
                      Lanes<uint32_t, [](uint32_t a) { return static_cast<uint32_t>(std::countl_zero(a)); },
                            uint32_t>};
  }
  if (o.base == "brev") {
    return wide ? Handler{Lanes<uint64_t, [](uint64_t a) { return Reverse(a); }, uint64_t>}
                : Handler{Lanes<uint32_t, [](uint32_t a) { return Reverse(a); }, uint32_t>};
  }
  if (o.base == "bfind") {
    switch (o.type()) {
      case Type::kU32:
        return SelectFind<uint32_t>(o);
      case Type::kS32:
        return SelectFind<int32_t>(o);
      case Type::kU64:
        return SelectFind<uint64_t>(o);
      default:
        return SelectFind<int64_t>(o);
    }
  }
  if (o.base == "bfe") {
    switch (o.type()) {
      case Type::kU32:
        return kExtract<uint32_t>;
      case Type::kS32:
        return kExtract<int32_t>;
      case Type::kU64:
        return kExtract<uint64_t>;
      default:
        return kExtract<int64_t>;
    }
  }
  if (o.base == "bfi") return wide ? kInsert<uint64_t> : kInsert<uint32_t>;
  if (o.base == "fns") {
    return Lanes<uint32_t, [](uint32_t a, uint32_t b, uint32_t c) { return FindNthSet(a, b, c); }, uint32_t,
                 uint32_t, uint32_t>;
  }
  if (o.base == "bmsk") return o.Has("clamp") ? kMask<true> : kMask<false>;
  if (o.base == "szext") {
    const bool is_signed = IsSigned(o.type());
    if (o.Has("clamp")) return is_signed ? kExtend<true, true> : kExtend<true, false>;
    return is_signed ? kExtend<false, true> : kExtend<false, false>;
  }
  return nullptr;
}

}  // namespace vqllm::ptx
