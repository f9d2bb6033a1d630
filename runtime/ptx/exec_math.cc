#include <cfenv>
#include <cmath>

#include "runtime/ptx/exec.h"

/// Functions by libm, and the rounding modes other than to nearest. This file is compiled with
/// -frounding-math: the directed modes are those of the CPU, set round the loop over the lanes.
namespace vqllm::ptx {
namespace {

template <typename T>
T Flush(T value) {
  if constexpr (sizeof(T) == 4) return std::fabs(value) < 0x1p-126f ? std::copysign(T{0}, value) : value;
  return std::fabs(value) < 0x1p-1022 ? std::copysign(T{0}, value) : value;
}
template <typename T>
T Canonical(T value) {
  if constexpr (sizeof(T) == 4) return value != value ? std::bit_cast<float>(0x7fffffffu) : value;
  return value;
}

template <typename T, auto F, bool kFtz>
void Map(Warp& warp, const Instruction& instruction) {
  const T* a = warp.Read<T>(instruction.source[0]);
  alignas(64) T values[kWarpSize] = {};
  ForLanes(warp.mask, [&](int i) {
    const T value = F(kFtz ? Flush(a[i]) : a[i]);
    values[i] = Canonical(kFtz ? Flush(value) : value);
  });
  StoreLanes(warp.Write<T>(instruction.dest[0]), values, warp.mask);
}

template <bool kFtz>
Handler SelectFunction(const Opcode& o) {
  if (o.base == "ex2") return Map<float, [](float a) { return std::exp2(a); }, kFtz>;
  if (o.base == "lg2") return Map<float, [](float a) { return std::log2(a); }, kFtz>;
  if (o.base == "sin") return Map<float, [](float a) { return std::sin(a); }, kFtz>;
  if (o.base == "cos") return Map<float, [](float a) { return std::cos(a); }, kFtz>;
  if (o.base == "rcp") return Map<float, [](float a) { return 1.0f / a; }, kFtz>;
  if (o.base == "sqrt") return Map<float, [](float a) { return std::sqrt(a); }, kFtz>;
  if (o.base == "tanh") return Map<float, [](float a) { return std::tanh(a); }, kFtz>;
  // In double, so that the result is rounded once but for rare ties; rsqrt(-0) is -infinity.
  return Map<float, [](float a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); },
             kFtz>;
}

// The .f64 approximations keep the upper half of the value only (PTX ISA, rcp.approx.ftz.f64).
double UpperHalf(double value) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(value) & 0xffffffff00000000ull);
}

Handler SelectFunction64(const Opcode& o) {
  if (o.base == "rcp") return Map<double, [](double a) { return UpperHalf(1.0 / UpperHalf(a)); }, true>;
  if (o.Has("ftz"))
    return Map<double, [](double a) { return UpperHalf(1.0 / std::sqrt(UpperHalf(a))); }, true>;
  return Map<double, [](double a) { return 1.0 / std::sqrt(a); }, false>;
}

enum class Operation : uint8_t { kAdd, kSub, kMul, kFma, kDiv, kRcp, kSqrt };
constexpr int kModes[] = {FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

template <typename T, Operation kOperation>
T Apply(T a, T b, T c) {
  switch (kOperation) {
    case Operation::kAdd:
      return a + b;
    case Operation::kSub:
      return a - b;
    case Operation::kMul:
      return a * b;
    case Operation::kFma:
      return std::fma(a, b, c);
    case Operation::kDiv:
      return a / b;
    case Operation::kRcp:
      return T{1} / a;
    case Operation::kSqrt:
      return std::sqrt(a);
  }
  return a;
}

// The arithmetic between the two calls that set the mode; not inlined, so that nothing moves across them.
template <typename T, Operation kOperation>
__attribute__((noinline)) void ApplyAll(const T* a, const T* b, const T* c, T* values) {
  for (int i = 0; i < kWarpSize; ++i) values[i] = Apply<T, kOperation>(a[i], b[i], c[i]);
}

template <typename T, Operation kOperation, int kMode, bool kFtz, bool kSat>
void Directed(Warp& warp, const Instruction& instruction) {
  alignas(64) T operands[3][kWarpSize];
  alignas(64) T values[kWarpSize];
  constexpr int kSources = kOperation == Operation::kFma ? 3 : kOperation >= Operation::kRcp ? 1 : 2;
  for (int s = 0; s < 3; ++s) {
    const T* from = warp.Read<T>(instruction.source[s < kSources ? s : 0]);
    for (int i = 0; i < kWarpSize; ++i) operands[s][i] = kFtz ? Flush(from[i]) : from[i];
  }
  std::fesetround(kModes[kMode]);
  ApplyAll<T, kOperation>(operands[0], operands[1], operands[2], values);
  std::fesetround(FE_TONEAREST);
  for (int i = 0; i < kWarpSize; ++i) {
    T value = kFtz ? Flush(values[i]) : values[i];
    if (kSat) value = value > 0 ? (value < 1 ? value : T{1}) : T{0};
    values[i] = Canonical(value);
  }
  StoreLanes(warp.Write<T>(instruction.dest[0]), values, warp.mask);
}

template <typename T, Operation kOperation, int kMode>
Handler SelectVariant(const Opcode& o) {
  if constexpr (sizeof(T) == 4) {
    if (o.Has("ftz")) {
      return o.Has("sat") ? Directed<T, kOperation, kMode, true, true>
                          : Directed<T, kOperation, kMode, true, false>;
    }
    if (o.Has("sat")) return Directed<T, kOperation, kMode, false, true>;
  }
  return Directed<T, kOperation, kMode, false, false>;
}

template <typename T, Operation kOperation>
Handler SelectMode(const Opcode& o) {
  if (o.Has("rz")) return SelectVariant<T, kOperation, 0>(o);
  if (o.Has("rm")) return SelectVariant<T, kOperation, 1>(o);
  return SelectVariant<T, kOperation, 2>(o);
}

template <typename T>
Handler SelectOperation(const Opcode& o) {
  if (o.base == "add") return SelectMode<T, Operation::kAdd>(o);
  if (o.base == "sub") return SelectMode<T, Operation::kSub>(o);
  if (o.base == "mul") return SelectMode<T, Operation::kMul>(o);
  if (o.base == "div") return SelectMode<T, Operation::kDiv>(o);
  if (o.base == "rcp") return SelectMode<T, Operation::kRcp>(o);
  if (o.base == "sqrt") return SelectMode<T, Operation::kSqrt>(o);
  return SelectMode<T, Operation::kFma>(o);
}

}  // namespace

Handler SelectMath(const Opcode& o) {
  if (o.type() == Type::kF64) return SelectFunction64(o);
  return o.Has("ftz") ? SelectFunction<true>(o) : SelectFunction<false>(o);
}

Handler SelectDirected(const Opcode& o) {
  return o.type() == Type::kF64 ? SelectOperation<double>(o) : SelectOperation<float>(o);
}

}  // namespace vqllm::ptx
