#include "runtime/ptx/exec.h"
#include "runtime/ptx/half_math.h"

namespace vqllm::ptx {
namespace {

enum class Operation : uint8_t { kAdd, kSub, kMul, kFma };
enum class Finish : uint8_t { kNone, kSat, kRelu };

template <typename Kind>
inline float FlushHalf(float value) {
  // Only f16 has .ftz; its subnormals are below 2^-14.
  return std::fabs(value) < 0x1p-14f ? std::copysign(0.0f, value) : value;
}

template <Finish kFinish>
inline float Limit(float value) {
  if constexpr (kFinish == Finish::kSat) {
    const float low = value > 0.0f ? value : 0.0f;  // NaN to zero
    return low < 1.0f ? low : 1.0f;
  } else if constexpr (kFinish == Finish::kRelu) {
    return value != value ? value : value > 0.0f ? value : 0.0f;  // NaN stays
  }
  return value;
}

template <typename Kind, Operation kOperation, Finish kFinish, bool kFtz, int kHalves>
void Arithmetic(Warp& warp, const Instruction& instruction) {
  constexpr int kCount = kHalves * kWarpSize;
  alignas(64) float a[kCount];
  alignas(64) float b[kCount];
  alignas(64) float c[kCount];
  alignas(64) uint16_t values[kCount];
  LoadHalves<Kind, kCount>(warp.Read<uint16_t>(instruction.source[0]), a);
  LoadHalves<Kind, kCount>(warp.Read<uint16_t>(instruction.source[1]), b);
  if constexpr (kOperation == Operation::kFma) {
    LoadHalves<Kind, kCount>(warp.Read<uint16_t>(instruction.source[2]), c);
  }
  for (int i = 0; i < kCount; ++i) {
    float x = a[i];
    float y = b[i];
    if constexpr (kFtz) {
      x = FlushHalf<Kind>(x);
      y = FlushHalf<Kind>(y);
    }
    if constexpr (kOperation == Operation::kAdd) {
      x = x + y;
    } else if constexpr (kOperation == Operation::kSub) {
      x = x - y;
    } else if constexpr (kOperation == Operation::kMul) {
      x = x * y;
    } else {
      x = FmaOdd(x, y, kFtz ? FlushHalf<Kind>(c[i]) : c[i]);
    }
    a[i] = Limit<kFinish>(x);
  }
  RoundHalves<Kind, kCount>(a, values);
  if constexpr (kFtz) {
    for (int i = 0; i < kCount; ++i) values[i] = (values[i] & 0x7c00) == 0 ? values[i] & 0x8000 : values[i];
  }
  if constexpr (kHalves == 2) {
    StoreLanes(warp.Write<uint32_t>(instruction.dest[0]), reinterpret_cast<const uint32_t*>(values),
               warp.mask);
  } else {
    StoreLanes(warp.Write<uint16_t>(instruction.dest[0]), values, warp.mask);
  }
}

template <typename Kind, Operation kOperation, int kHalves>
Handler SelectFinish(const Opcode& o) {
  if constexpr (std::is_same_v<Kind, HalfKind>) {
    if (o.Has("ftz")) {
      if (o.Has("sat")) return Arithmetic<Kind, kOperation, Finish::kSat, true, kHalves>;
      if (o.Has("relu")) return Arithmetic<Kind, kOperation, Finish::kRelu, true, kHalves>;
      return Arithmetic<Kind, kOperation, Finish::kNone, true, kHalves>;
    }
    if (o.Has("sat")) return Arithmetic<Kind, kOperation, Finish::kSat, false, kHalves>;
  }
  if (o.Has("relu")) return Arithmetic<Kind, kOperation, Finish::kRelu, false, kHalves>;
  return Arithmetic<Kind, kOperation, Finish::kNone, false, kHalves>;
}

// min and max work on the bits: sign and magnitude order like integers.
struct ExtremeOptions {
  bool max;
  bool nan;
  bool xorsign;
  bool absolute;
  bool ftz;
};

template <typename Kind>
uint16_t Extreme(uint16_t a, uint16_t b, const ExtremeOptions& options) {
  if (options.ftz) {
    if ((a & Kind::kInfinity) == 0) a &= 0x8000;
    if ((b & Kind::kInfinity) == 0) b &= 0x8000;
  }
  const uint16_t sign = (a ^ b) & 0x8000;
  if (options.xorsign || options.absolute) {
    a &= 0x7fff;
    b &= 0x7fff;
  }
  const bool a_nan = (a & 0x7fff) > Kind::kInfinity;
  const bool b_nan = (b & 0x7fff) > Kind::kInfinity;
  if ((a_nan && b_nan) || (options.nan && (a_nan || b_nan))) return Kind::kNan;
  uint16_t result;
  if (a_nan) {
    result = b;
  } else if (b_nan) {
    result = a;
  } else {
    const auto order = [](uint16_t bits) {
      return (bits & 0x8000) ? -1 - int{static_cast<uint16_t>(bits & 0x7fff)} : int{bits};
    };
    result = (order(a) > order(b)) == options.max ? a : b;
  }
  return options.xorsign ? static_cast<uint16_t>(result | sign) : result;
}

template <typename Kind, int kHalves, int kOptions>
void ExtremeLanes(Warp& warp, const Instruction& instruction) {
  constexpr int kCount = kHalves * kWarpSize;
  constexpr ExtremeOptions options = {(kOptions & 1) != 0, (kOptions & 2) != 0, (kOptions & 4) != 0,
                                      (kOptions & 8) != 0, (kOptions & 16) != 0};
  const uint16_t* a = warp.Read<uint16_t>(instruction.source[0]);
  const uint16_t* b = warp.Read<uint16_t>(instruction.source[1]);
  alignas(64) uint16_t values[kCount];
  for (int i = 0; i < kCount; ++i) values[i] = Extreme<Kind>(a[i], b[i], options);
  if constexpr (kHalves == 2) {
    StoreLanes(warp.Write<uint32_t>(instruction.dest[0]), reinterpret_cast<const uint32_t*>(values),
               warp.mask);
  } else {
    StoreLanes(warp.Write<uint16_t>(instruction.dest[0]), values, warp.mask);
  }
}

template <typename Kind, int kHalves, int kOptions = 0>
Handler SelectExtreme(int options) {
  if constexpr (kOptions < 32) {
    if (options != kOptions) return SelectExtreme<Kind, kHalves, kOptions + 1>(options);
    return ExtremeLanes<Kind, kHalves, kOptions>;
  }
  return nullptr;
}

template <typename T, int kHalves>
T FlushBits(T bits) {
  T out = bits;
  for (int h = 0; h < kHalves; ++h) {
    const T exponent = static_cast<T>(T{0x7c00} << (16 * h));
    const T magnitude = static_cast<T>(T{0x7fff} << (16 * h));
    if ((bits & exponent) == 0) out = static_cast<T>(out & ~magnitude);
  }
  return out;
}

template <typename Kind, int kHalves>
Handler SelectKind(const Opcode& o) {
  using T = std::conditional_t<kHalves == 2, uint32_t, uint16_t>;
  constexpr T kSigns = static_cast<T>(kHalves == 2 ? 0x80008000u : 0x8000u);
  if (o.base == "add") return SelectFinish<Kind, Operation::kAdd, kHalves>(o);
  if (o.base == "sub") return SelectFinish<Kind, Operation::kSub, kHalves>(o);
  if (o.base == "mul") return SelectFinish<Kind, Operation::kMul, kHalves>(o);
  if (o.base == "fma") return SelectFinish<Kind, Operation::kFma, kHalves>(o);
  if (o.base == "min" || o.base == "max") {
    return SelectExtreme<Kind, kHalves>((o.base == "max" ? 1 : 0) | (o.Has("NaN") ? 2 : 0) |
                                        (o.Has("xorsign") ? 4 : 0) | (o.Has("abs") ? 8 : 0) |
                                        (o.Has("ftz") ? 16 : 0));
  }
  if (o.base == "neg") {
    if (o.Has("ftz"))
      return Lanes<T, [](T a) { return static_cast<T>(FlushBits<T, kHalves>(a) ^ kSigns); }, T>;
    return Lanes<T, [](T a) { return static_cast<T>(a ^ kSigns); }, T>;
  }
  if (o.Has("ftz"))
    return Lanes<T, [](T a) { return static_cast<T>(FlushBits<T, kHalves>(a) & ~kSigns); }, T>;
  return Lanes<T, [](T a) { return static_cast<T>(a & ~kSigns); }, T>;
}

}  // namespace

Handler SelectHalf(const Opcode& o) {
  switch (o.type()) {
    case Type::kF16:
      return SelectKind<HalfKind, 1>(o);
    case Type::kF16x2:
      return SelectKind<HalfKind, 2>(o);
    case Type::kBf16:
      return SelectKind<BFloat16Kind, 1>(o);
    default:
      return SelectKind<BFloat16Kind, 2>(o);
  }
}

}  // namespace vqllm::ptx
