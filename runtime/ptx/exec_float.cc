#include <cmath>

#include "runtime/ptx/exec.h"

namespace vqllm::ptx {
namespace {

// The NaN that f32 arithmetic gives; payloads are not kept.
constexpr uint32_t kNan = 0x7fffffffu;

inline float Canonical(float value) { return value != value ? std::bit_cast<float>(kNan) : value; }

// .ftz: a subnormal becomes zero of its sign.
template <bool kFtz>
inline float Flush(float value) {
  if constexpr (!kFtz) return value;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits);
}
// .sat: to [0, 1], NaN to zero.
template <bool kSat>
inline float Clamp(float value) {
  if constexpr (!kSat) return Canonical(value);
  const float low = value > 0.0f ? value : 0.0f;
  return low < 1.0f ? low : 1.0f;
}

template <bool kFtz, bool kSat>
struct F32 {
  static float Finish(float value) { return Clamp<kSat>(Flush<kFtz>(value)); }
  static Handler Select(const Opcode& o) {
    using F = float;

    if (o.base == "add")
      return Lanes<F, [](F a, F b) { return Finish(Flush<kFtz>(a) + Flush<kFtz>(b)); }, F, F>;
    if (o.base == "sub")
      return Lanes<F, [](F a, F b) { return Finish(Flush<kFtz>(a) - Flush<kFtz>(b)); }, F, F>;
    if (o.base == "mul")
      return Lanes<F, [](F a, F b) { return Finish(Flush<kFtz>(a) * Flush<kFtz>(b)); }, F, F>;
    if (o.base == "div")
      return Lanes<F, [](F a, F b) { return Finish(Flush<kFtz>(a) / Flush<kFtz>(b)); }, F, F>;
    if (o.base == "rcp") return Lanes<F, [](F a) { return Finish(1.0f / Flush<kFtz>(a)); }, F>;
    if (o.base == "sqrt") return Lanes<F, [](F a) { return Finish(std::sqrt(Flush<kFtz>(a))); }, F>;
    return Lanes<F,
                 [](F a, F b, F c) {
                   return Finish(__builtin_fmaf(Flush<kFtz>(a), Flush<kFtz>(b), Flush<kFtz>(c)));
                 },
                 F, F, F>;
  }
};

Handler SelectF32Arithmetic(const Opcode& o) {
  if (o.Has("ftz")) return o.Has("sat") ? F32<true, true>::Select(o) : F32<true, false>::Select(o);
  return o.Has("sat") ? F32<false, true>::Select(o) : F32<false, false>::Select(o);
}

// A NaN loses against a number, unless .NaN; -0 counts as less than +0.
template <bool kMax, bool kNanWins>
inline float Extreme(float a, float b) {
  const bool a_first =
      kMax ? (a > b || (a == b && !std::signbit(a))) : (a < b || (a == b && std::signbit(a)));
  float result = a_first ? a : b;
  result = a != a ? b : result;
  result = b != b ? a : result;
  if (kNanWins) result = (a != a || b != b) ? std::bit_cast<float>(kNan) : result;
  return Canonical(result);
}

template <bool kMax, bool kFtz, bool kNanWins>
Handler SelectExtreme(const Opcode& o, bool three) {
  using F = float;
  const bool absolute = o.Has("abs");
  if (o.Has("xorsign")) {
    // The magnitude is that of the extreme of |a| and |b|, the sign the product of the signs.
    return Lanes<F,
                 [](F a, F b) {
                   a = Flush<kFtz>(a);
                   b = Flush<kFtz>(b);
                   const uint32_t sign =
                       (std::bit_cast<uint32_t>(a) ^ std::bit_cast<uint32_t>(b)) & 0x80000000u;
                   const float m = Extreme<kMax, kNanWins>(std::fabs(a), std::fabs(b));
                   return m != m ? m : std::bit_cast<float>(std::bit_cast<uint32_t>(m) | sign);
                 },
                 F, F>;
  }
  if (absolute) {
    if (three) {
      return Lanes<F,
                   [](F a, F b, F c) {
                     return Extreme<kMax, kNanWins>(
                         Extreme<kMax, kNanWins>(std::fabs(Flush<kFtz>(a)), std::fabs(Flush<kFtz>(b))),
                         std::fabs(Flush<kFtz>(c)));
                   },
                   F, F, F>;
    }
    return Lanes<F,
                 [](F a, F b) {
                   return Extreme<kMax, kNanWins>(std::fabs(Flush<kFtz>(a)), std::fabs(Flush<kFtz>(b)));
                 },
                 F, F>;
  }
  if (three) {
    return Lanes<F,
                 [](F a, F b, F c) {
                   return Extreme<kMax, kNanWins>(Extreme<kMax, kNanWins>(Flush<kFtz>(a), Flush<kFtz>(b)),
                                                  Flush<kFtz>(c));
                 },
                 F, F, F>;
  }
  return Lanes<F, [](F a, F b) { return Extreme<kMax, kNanWins>(Flush<kFtz>(a), Flush<kFtz>(b)); }, F, F>;
}

Handler SelectF32Extreme(const Opcode& o, bool three) {
  const bool nan = o.Has("NaN");
  if (o.base == "max") {
    if (o.Has("ftz"))
      return nan ? SelectExtreme<true, true, true>(o, three) : SelectExtreme<true, true, false>(o, three);
    return nan ? SelectExtreme<true, false, true>(o, three) : SelectExtreme<true, false, false>(o, three);
  }
  if (o.Has("ftz"))
    return nan ? SelectExtreme<false, true, true>(o, three) : SelectExtreme<false, true, false>(o, three);
  return nan ? SelectExtreme<false, false, true>(o, three) : SelectExtreme<false, false, false>(o, three);
}

double ExtremeDouble(double a, double b, bool max) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return std::signbit(a) == max ? b : a;
  return (a > b) == max ? a : b;
}

Handler SelectF64(const Opcode& o) {
  using D = double;
  using U = uint64_t;
  if (o.base == "add") return Lanes<D, [](D a, D b) { return a + b; }, D, D>;
  if (o.base == "sub") return Lanes<D, [](D a, D b) { return a - b; }, D, D>;
  if (o.base == "mul") return Lanes<D, [](D a, D b) { return a * b; }, D, D>;
  if (o.base == "div") return Lanes<D, [](D a, D b) { return a / b; }, D, D>;
  if (o.base == "fma" || o.base == "mad") {
    return Lanes<D, [](D a, D b, D c) { return __builtin_fma(a, b, c); }, D, D, D>;
  }
  if (o.base == "rcp") return Lanes<D, [](D a) { return 1.0 / a; }, D>;
  if (o.base == "sqrt") return Lanes<D, [](D a) { return std::sqrt(a); }, D>;
  if (o.base == "min") return Lanes<D, [](D a, D b) { return ExtremeDouble(a, b, false); }, D, D>;
  if (o.base == "max") return Lanes<D, [](D a, D b) { return ExtremeDouble(a, b, true); }, D, D>;
  if (o.base == "abs") return Lanes<U, [](U a) { return a & 0x7fffffffffffffffull; }, U>;
  if (o.base == "neg") return Lanes<U, [](U a) { return a ^ 0x8000000000000000ull; }, U>;
  if (o.base == "copysign") {
    return Lanes<U, [](U a, U b) { return (b & 0x7fffffffffffffffull) | (a & 0x8000000000000000ull); }, U, U>;
  }
  return nullptr;
}

// f32x2: two floats in a 64-bit register. Lane by lane, each half as the scalar instruction.
template <bool kFtz, auto F>
void PairLanes(Warp& warp, const Instruction& instruction) {
  alignas(64) uint64_t values[kWarpSize];
  const uint64_t* a = warp.Read<uint64_t>(instruction.source[0]);
  const uint64_t* b = warp.Read<uint64_t>(instruction.source[1]);
  const uint64_t* c = warp.Read<uint64_t>(instruction.source[2]);
  for (int i = 0; i < kWarpSize; ++i) {
    uint64_t packed = 0;
    for (int half = 0; half < 2; ++half) {
      const auto part = [&](uint64_t bits) {
        return Flush<kFtz>(std::bit_cast<float>(static_cast<uint32_t>(bits >> (32 * half))));
      };
      const float result = Canonical(Flush<kFtz>(F(part(a[i]), part(b[i]), part(c[i]))));
      packed |= static_cast<uint64_t>(std::bit_cast<uint32_t>(result)) << (32 * half);
    }
    values[i] = packed;
  }
  StoreLanes(warp.Write<uint64_t>(instruction.dest[0]), values, warp.mask);
}

template <bool kFtz>
Handler SelectPair(const Opcode& o) {
  if (o.base == "add") return PairLanes<kFtz, [](float a, float b, float) { return a + b; }>;
  if (o.base == "sub") return PairLanes<kFtz, [](float a, float b, float) { return a - b; }>;
  if (o.base == "mul") return PairLanes<kFtz, [](float a, float b, float) { return a * b; }>;
  return PairLanes<kFtz, [](float a, float b, float c) { return __builtin_fmaf(a, b, c); }>;
}

}  // namespace

Handler SelectFloat(const Opcode& o) {
  using U = uint32_t;
  if (o.Has("f32x2")) return o.Has("ftz") ? SelectPair<true>(o) : SelectPair<false>(o);
  if (o.type() == Type::kF64) return SelectF64(o);
  if (o.base == "min" || o.base == "max") return SelectF32Extreme(o, false);
  // Sign operations act on the bits, so a NaN passes through.
  if (o.base == "neg") {
    if (o.Has("ftz")) {
      return Lanes<
          U, [](U a) { return std::bit_cast<U>(Flush<true>(std::bit_cast<float>(a))) ^ 0x80000000u; }, U>;
    }
    return Lanes<U, [](U a) { return a ^ 0x80000000u; }, U>;
  }
  if (o.base == "abs") {
    if (o.Has("ftz")) {
      return Lanes<
          U, [](U a) { return std::bit_cast<U>(Flush<true>(std::bit_cast<float>(a))) & 0x7fffffffu; }, U>;
    }
    return Lanes<U, [](U a) { return a & 0x7fffffffu; }, U>;
  }
  if (o.base == "copysign") {
    return Lanes<U, [](U a, U b) { return (b & 0x7fffffffu) | (a & 0x80000000u); }, U, U>;
  }
  return SelectF32Arithmetic(o);
}

Handler SelectFloatExtreme3(const Opcode& o) { return SelectF32Extreme(o, true); }

}  // namespace vqllm::ptx
