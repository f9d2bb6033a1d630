#include <cmath>
#include <limits>

#include "runtime/ptx/convert.h"
#include "runtime/ptx/exec.h"
#include "runtime/ptx/half_math.h"
#include "runtime/ptx/tensor.h"

/// mma.sync: the fragments of the PTX ISA, section "Matrix fragments for mma". The products are exact in
/// double, their sum is rounded to the type of the accumulator once at the end; tensor cores truncate in
/// between, so only data whose sums are exact compares bit for bit with a GPU.
namespace vqllm::ptx {
namespace {

// Bits of an element of A and B, as a double.
template <Type kType>
double Value(uint32_t bits) {
  if constexpr (kType == Type::kF16) return HalfKind::Load(static_cast<uint16_t>(bits));
  if constexpr (kType == Type::kBf16) return BFloat16Kind::Load(static_cast<uint16_t>(bits));
  if constexpr (kType == Type::kTf32) return std::bit_cast<float>(bits & 0xffffe000u);
  if constexpr (kType == Type::kS8) return static_cast<int8_t>(bits);
  if constexpr (kType == Type::kU8) return static_cast<uint8_t>(bits);
  if constexpr (kType == Type::kE5m2) return HalfBitsToFloat(static_cast<uint16_t>((bits & 0xff) << 8));
  if constexpr (kType == Type::kE4m3) {
    const int magnitude = static_cast<int>(bits & 0x7f);
    if (magnitude == 0x7f) return std::numeric_limits<double>::quiet_NaN();
    const double value =
        magnitude < 8 ? std::ldexp(magnitude, -9) : std::ldexp(8 + (magnitude & 7), (magnitude >> 3) - 10);
    return (bits & 0x80) ? -value : value;
  }
  return 0;
}

// In every shape a 32-bit register holds 32 / bits neighbours along k. With W of them in a register, lane l
// of A has row l / 4 (+ 8) and columns W (l % 4) .. of the first 4 W columns, then the same of the next 4 W.
template <Type kA, Type kB, int kM, int kK, bool kHalfAccumulator, bool kInteger>
void Mma(Warp& warp, const Instruction& instruction) {
  if (!RequireWholeWarp(warp)) return;
  constexpr int kWidth = kA == Type::kTf32 ? 1 : kA == Type::kF16 || kA == Type::kBf16 ? 2 : 4;
  constexpr int kBits = 32 / kWidth;
  constexpr int kRows = kM / 8;
  constexpr int kParts = kK / (4 * kWidth);  // registers of B; A has kRows of each
  constexpr int kAccumulators = kHalfAccumulator ? kRows : 2 * kRows;
  const Place* const d = instruction.list;
  const Place* const a = d + kAccumulators;
  const Place* const b = a + kRows * kParts;
  const Place* const c = b + kParts;
  alignas(64) double matrix_a[kM][kK];
  alignas(64) double matrix_b[kK][8];
  alignas(64) double sum[kM][8];
  constexpr uint32_t kElement = kBits == 32 ? ~0u : (1u << (kBits % 32)) - 1;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const int group = lane / 4;
    const int in_group = lane % 4;
    for (int part = 0; part < kParts; ++part) {
      const int k = part * 4 * kWidth + in_group * kWidth;
      for (int r = 0; r < kRows; ++r) {
        const uint32_t bits = warp.Read<uint32_t>(a[part * kRows + r])[lane];
        for (int e = 0; e < kWidth; ++e) {
          matrix_a[group + 8 * r][k + e] = Value<kA>(bits >> (kBits * e % 32) & kElement);
        }
      }
      const uint32_t bits = warp.Read<uint32_t>(b[part])[lane];
      for (int e = 0; e < kWidth; ++e)
        matrix_b[k + e][group] = Value<kB>(bits >> (kBits * e % 32) & kElement);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int e = 0; e < 2; ++e) {
        double& out = sum[group + 8 * r][2 * in_group + e];
        if constexpr (kHalfAccumulator) {
          out = HalfKind::Load(static_cast<uint16_t>(warp.Read<uint32_t>(c[r])[lane] >> (16 * e)));
        } else if constexpr (kInteger) {
          out = warp.Read<int32_t>(c[2 * r + e])[lane];
        } else {
          out = warp.Read<float>(c[2 * r + e])[lane];
        }
      }
    }
  }
  for (int row = 0; row < kM; ++row) {
    for (int k = 0; k < kK; ++k) {
      for (int n = 0; n < 8; ++n) sum[row][n] += matrix_a[row][k] * matrix_b[k][n];
    }
  }
  const bool saturate = instruction.immediate & 1;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int r = 0; r < kRows; ++r) {
      const double* value = &sum[lane / 4 + 8 * r][2 * (lane % 4)];
      if constexpr (kHalfAccumulator) {
        const FloatFormat half = FormatOf(Type::kF16);
        uint32_t bits[2];
        for (int e = 0; e < 2; ++e) {
          bits[e] = value[e] != value[e]
                        ? 0x7fffu
                        : static_cast<uint32_t>(RoundToFormat(value[e], half, Rounding::kNearest, false));
        }
        warp.Write<uint32_t>(d[r])[lane] = bits[1] << 16 | bits[0];
      } else if constexpr (kInteger) {
        for (int e = 0; e < 2; ++e) {
          // Below 2^53, so exact; without .satfinite the sum wraps.
          const int64_t whole = static_cast<int64_t>(value[e]);
          const int64_t limited = whole > INT32_MAX ? INT32_MAX : whole < INT32_MIN ? INT32_MIN : whole;
          warp.Write<uint32_t>(d[2 * r + e])[lane] = static_cast<uint32_t>(saturate ? limited : whole);
        }
      } else {
        for (int e = 0; e < 2; ++e) {
          const float result = static_cast<float>(value[e]);
          warp.Write<uint32_t>(d[2 * r + e])[lane] =
              result != result ? 0x7fffffffu : std::bit_cast<uint32_t>(result);
        }
      }
    }
  }
  if (warp.block->count) {
    ++warp.block->counters[Counter::kTensorInstructions];
    warp.block->counters[Counter::kTensorFlops] += 2 * kM * 8 * kK;
  }
}

Handler SelectInteger8(const Opcode& o) {
  const bool a = o.types[1] == Type::kS8;
  const bool b = o.types[2] == Type::kS8;
  const auto pick = [&]<int kM, int kK>() -> Handler {
    if (a) {
      return b ? Mma<Type::kS8, Type::kS8, kM, kK, false, true>
               : Mma<Type::kS8, Type::kU8, kM, kK, false, true>;
    }
    return b ? Mma<Type::kU8, Type::kS8, kM, kK, false, true>
             : Mma<Type::kU8, Type::kU8, kM, kK, false, true>;
  };
  if (o.Has("m8n8k16")) return pick.operator()<8, 16>();
  if (o.Has("m16n8k16")) return pick.operator()<16, 16>();
  return pick.operator()<16, 32>();
}

Handler SelectFloat8(const Opcode& o) {
  const bool a = o.types[1] == Type::kE4m3;
  const bool b = o.types[2] == Type::kE4m3;
  constexpr Type kFour = Type::kE4m3;
  constexpr Type kFive = Type::kE5m2;
  if (a) return b ? Mma<kFour, kFour, 16, 32, false, false> : Mma<kFour, kFive, 16, 32, false, false>;
  return b ? Mma<kFive, kFour, 16, 32, false, false> : Mma<kFive, kFive, 16, 32, false, false>;
}

}  // namespace

Handler SelectMma(const Opcode& o) {
  const bool k8 = o.Has("m16n8k8");
  switch (o.types[1]) {
    case Type::kS8:
    case Type::kU8:
      return SelectInteger8(o);
    case Type::kE4m3:
    case Type::kE5m2:
      return SelectFloat8(o);
    case Type::kTf32:
      return k8 ? Mma<Type::kTf32, Type::kTf32, 16, 8, false, false>
                : Mma<Type::kTf32, Type::kTf32, 16, 4, false, false>;
    case Type::kBf16:
      return k8 ? Mma<Type::kBf16, Type::kBf16, 16, 8, false, false>
                : Mma<Type::kBf16, Type::kBf16, 16, 16, false, false>;
    default:
      break;
  }
  if (o.type() == Type::kF16) {
    return k8 ? Mma<Type::kF16, Type::kF16, 16, 8, true, false>
              : Mma<Type::kF16, Type::kF16, 16, 16, true, false>;
  }
  return k8 ? Mma<Type::kF16, Type::kF16, 16, 8, false, false>
            : Mma<Type::kF16, Type::kF16, 16, 16, false, false>;
}

}  // namespace vqllm::ptx
