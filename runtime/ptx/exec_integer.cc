#include "runtime/ptx/exec.h"

namespace vqllm::ptx {
namespace {

__extension__ typedef unsigned __int128 Uint128;
__extension__ typedef __int128 Int128;

// Types of double width, for products.
template <typename T>
struct Wider;
template <>
struct Wider<uint16_t> {
  using type = uint32_t;
};
template <>
struct Wider<int16_t> {
  using type = int32_t;
};
template <>
struct Wider<uint32_t> {
  using type = uint64_t;
};
template <>
struct Wider<int32_t> {
  using type = int64_t;
};
template <>
struct Wider<uint64_t> {
  using type = Uint128;
};
template <>
struct Wider<int64_t> {
  using type = Int128;
};

// Arithmetic wraps: it is done without sign, in at least 32 bits (uint16_t would promote to int).
template <typename T>
struct Bits;
template <>
struct Bits<uint16_t> {
  using type = uint32_t;
};
template <>
struct Bits<int16_t> {
  using type = uint32_t;
};
template <>
struct Bits<uint32_t> {
  using type = uint32_t;
};
template <>
struct Bits<int32_t> {
  using type = uint32_t;
};
template <>
struct Bits<uint64_t> {
  using type = uint64_t;
};
template <>
struct Bits<int64_t> {
  using type = uint64_t;
};
template <typename T>
using U = typename Bits<T>::type;

template <typename T>
constexpr int kBits = static_cast<int>(8 * sizeof(T));

template <typename T>
T High(T a, T b) {
  using W = typename Wider<T>::type;
  return static_cast<T>((static_cast<W>(a) * static_cast<W>(b)) >> kBits<T>);
}
template <typename T>
T Low(T a, T b) {
  return static_cast<T>(U<T>(a) * U<T>(b));
}

// Division by zero gives all ones, and the quotient that overflows wraps: what the hardware's routine
// returns.
template <typename T>
T Divide(T a, T b) {
  if (b == 0) return static_cast<T>(~T{0});
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return static_cast<T>(U<T>{0} - U<T>(a));
  }
  return static_cast<T>(a / b);
}
template <typename T>
T Remainder(T a, T b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return 0;
  }
  return static_cast<T>(a % b);
}

int32_t Saturate32(int64_t value) {
  return static_cast<int32_t>(value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value);
}

template <typename T>
Handler SelectTyped(const Opcode& o) {
  const std::string_view base = o.base;
  const bool high = o.Has("hi");
  if (base == "add") return Lanes<T, [](T a, T b) { return static_cast<T>(U<T>(a) + U<T>(b)); }, T, T>;
  if (base == "sub") return Lanes<T, [](T a, T b) { return static_cast<T>(U<T>(a) - U<T>(b)); }, T, T>;
  if (base == "mul" && high) return Lanes<T, [](T a, T b) { return High(a, b); }, T, T>;
  if (base == "mul") return Lanes<T, [](T a, T b) { return Low(a, b); }, T, T>;
  if (base == "mad" && high) {
    return Lanes<T, [](T a, T b, T c) { return static_cast<T>(U<T>(High(a, b)) + U<T>(c)); }, T, T, T>;
  }
  if (base == "mad") {
    return Lanes<T, [](T a, T b, T c) { return static_cast<T>(U<T>(a) * U<T>(b) + U<T>(c)); }, T, T, T>;
  }
  if (base == "sad") {
    return Lanes<T,
                 [](T a, T b, T c) {
                   const U<T> difference = a < b ? U<T>(b) - U<T>(a) : U<T>(a) - U<T>(b);
                   return static_cast<T>(difference + U<T>(c));
                 },
                 T, T, T>;
  }
  if (base == "div") return Lanes<T, [](T a, T b) { return Divide(a, b); }, T, T>;
  if (base == "rem") return Lanes<T, [](T a, T b) { return Remainder(a, b); }, T, T>;
  if (base == "min") return Lanes<T, [](T a, T b) { return a < b ? a : b; }, T, T>;
  if (base == "max") return Lanes<T, [](T a, T b) { return (a > b) ? a : b; }, T, T>;
  if (base == "neg") return Lanes<T, [](T a) { return static_cast<T>(U<T>{0} - U<T>(a)); }, T>;
  if (base == "abs") {
    return Lanes<T, [](T a) { return a < 0 ? static_cast<T>(U<T>{0} - U<T>(a)) : a; }, T>;
  }
  return nullptr;
}

template <typename T>
Handler SelectWide(const Opcode& o) {
  using W = typename Wider<T>::type;
  if (o.base == "mul") {
    return Lanes<W, [](T a, T b) { return static_cast<W>(static_cast<W>(a) * static_cast<W>(b)); }, T, T>;
  }
  return Lanes<
      W, [](T a, T b, W c) { return static_cast<W>(U<W>(static_cast<W>(a) * static_cast<W>(b)) + U<W>(c)); },
      T, T, W>;
}

Handler SelectSaturating(const Opcode& o) {
  if (o.base == "add") {
    return Lanes<int32_t, [](int32_t a, int32_t b) { return Saturate32(int64_t{a} + b); }, int32_t, int32_t>;
  }
  if (o.base == "sub") {
    return Lanes<int32_t, [](int32_t a, int32_t b) { return Saturate32(int64_t{a} - b); }, int32_t, int32_t>;
  }
  return Lanes<int32_t, [](int32_t a, int32_t b, int32_t c) { return Saturate32(int64_t{High(a, b)} + c); },
               int32_t, int32_t, int32_t>;
}

Handler SelectRelu(const Opcode& o) {
  if (o.base == "min") {
    return Lanes<int32_t,
                 [](int32_t a, int32_t b) {
                   const int32_t m = a < b ? a : b;
                   return m < 0 ? 0 : m;
                 },
                 int32_t, int32_t>;
  }
  return Lanes<int32_t,
               [](int32_t a, int32_t b) {
                 const int32_t m = (a > b) ? a : b;
                 return m < 0 ? 0 : m;
               },
               int32_t, int32_t>;
}

}  // namespace

Handler SelectInteger(const Opcode& o) {
  if (o.Has("sat")) return SelectSaturating(o);
  if (o.Has("relu")) return SelectRelu(o);
  if (o.Has("wide")) {
    switch (o.type()) {
      case Type::kU16:
        return SelectWide<uint16_t>(o);
      case Type::kS16:
        return SelectWide<int16_t>(o);
      case Type::kU32:
        return SelectWide<uint32_t>(o);
      default:
        return SelectWide<int32_t>(o);
    }
  }
  switch (o.type()) {
    case Type::kU16:
      return SelectTyped<uint16_t>(o);
    case Type::kS16:
      return SelectTyped<int16_t>(o);
    case Type::kU32:
      return SelectTyped<uint32_t>(o);
    case Type::kS32:
      return SelectTyped<int32_t>(o);
    case Type::kU64:
      return SelectTyped<uint64_t>(o);
    case Type::kS64:
      return SelectTyped<int64_t>(o);
    default:
      return nullptr;
  }
}

}  // namespace vqllm::ptx
