#include <cmath>

#include "runtime/ptx/exec.h"
#include "runtime/ptx/half_math.h"

namespace vqllm::ptx {
namespace {

template <typename Kind, auto F, int kHalves>
void MapHalves(Warp& warp, const Instruction& instruction) {
  constexpr int kCount = kHalves * kWarpSize;
  const uint16_t* a = warp.Read<uint16_t>(instruction.source[0]);
  alignas(64) uint16_t values[kCount];
  for (int i = 0; i < kCount; ++i) values[i] = Kind::Round(F(Kind::Load(a[i])));
  if constexpr (kHalves == 2) {
    StoreLanes(warp.Write<uint32_t>(instruction.dest[0]), reinterpret_cast<const uint32_t*>(values),
               warp.mask);
  } else {
    StoreLanes(warp.Write<uint16_t>(instruction.dest[0]), values, warp.mask);
  }
}

template <typename Kind, int kHalves>
Handler SelectMap(const Opcode& o) {
  if (o.base == "tanh") return MapHalves<Kind, [](float a) { return std::tanh(a); }, kHalves>;
  return MapHalves<Kind, [](float a) { return std::exp2(a); }, kHalves>;
}

// Comparisons of halves. The relation is data: these are rare.
// `relation`: the position in kRelationNames of exec_compare.cc, which CompareImmediate packs.
bool Holds(int relation, float a, float b) {
  const bool unordered = a != a || b != b;
  if (relation == 12) return !unordered;
  if (relation == 13) return unordered;
  if (unordered) return relation >= 6;
  switch (relation % 6) {
    case 0:
      return a == b;
    case 1:
      return a != b;
    case 2:
      return a < b;
    case 3:
      return a <= b;
    case 4:
      return a > b;
    default:
      return a >= b;
  }
}

uint32_t Combine(const Warp& warp, const Instruction& instruction, uint32_t value) {
  const uint32_t combine = instruction.immediate & 3;  // as CompareImmediate packs it
  if (combine == 0) return value;
  uint32_t other = warp.Predicate(instruction.source[2]);
  if (instruction.negate & 4) other = ~other;
  return combine == 1 ? value & other : combine == 2 ? value | other : value ^ other;
}

template <typename Kind, bool kFtz>
float LoadFlushed(uint16_t bits) {
  return Kind::Load(kFtz && (bits & 0x7c00) == 0 ? static_cast<uint16_t>(bits & 0x8000) : bits);
}

template <typename Kind, int kHalves, bool kFtz>
void CompareMasks(const Warp& warp, const Instruction& instruction, uint32_t* masks) {
  const uint16_t* a = warp.Read<uint16_t>(instruction.source[0]);
  const uint16_t* b = warp.Read<uint16_t>(instruction.source[1]);
  const int relation = static_cast<int>(instruction.immediate >> 8);
  for (int h = 0; h < kHalves; ++h) {
    masks[h] = 0;
    for (int i = 0; i < kWarpSize; ++i) {
      const int at = i * kHalves + h;
      masks[h] |=
          Holds(relation, LoadFlushed<Kind, kFtz>(a[at]), LoadFlushed<Kind, kFtz>(b[at])) ? 1u << i : 0u;
    }
  }
}

template <typename Kind, int kHalves, bool kFtz>
void SetPredicates(Warp& warp, const Instruction& instruction) {
  uint32_t masks[2];
  CompareMasks<Kind, kHalves, kFtz>(warp, instruction, masks);
  const uint32_t second = kHalves == 2 ? masks[1] : ~masks[0];
  const uint32_t combined = Combine(warp, instruction, second);
  warp.SetPredicate(instruction.dest[0], Combine(warp, instruction, masks[0]));
  if (instruction.dest[1] != kNowhere) warp.SetPredicate(instruction.dest[1], combined);
}

// The result: of the width and value of its type. Bits of `true` per half, or of the whole.
template <typename Kind, int kHalves, bool kFtz>
void SetValues(Warp& warp, const Instruction& instruction) {
  uint32_t masks[2];
  CompareMasks<Kind, kHalves, kFtz>(warp, instruction, masks);
  for (int h = 0; h < kHalves; ++h) masks[h] = Combine(warp, instruction, masks[h]);
  const bool one = instruction.immediate & 4;  // a float type
  const uint32_t half_true = one ? Kind::kOne : 0xffffu;
  ForLanes(warp.mask, [&](int i) {
    uint64_t bits;
    if (kHalves == 2) {
      bits = ((masks[0] >> i & 1) ? half_true : 0u) | ((masks[1] >> i & 1) ? half_true << 16 : 0u);
    } else {
      bits = (masks[0] >> i & 1) ? (one ? uint64_t{Kind::kOne} : ~uint64_t{0}) : 0;
    }
    SetLaneBits(warp, instruction.dest[0], instruction.dest_bytes, i, bits);
  });
}

template <typename Kind, int kHalves, bool kFtz = false>
Handler SelectComparison(bool predicate) {
  return predicate ? Handler{SetPredicates<Kind, kHalves, kFtz>} : Handler{SetValues<Kind, kHalves, kFtz>};
}

}  // namespace

Handler SelectHalfMath(const Opcode& o) {
  switch (o.type()) {
    case Type::kF16:
      return SelectMap<HalfKind, 1>(o);
    case Type::kF16x2:
      return SelectMap<HalfKind, 2>(o);
    case Type::kBf16:
      return SelectMap<BFloat16Kind, 1>(o);
    default:
      return SelectMap<BFloat16Kind, 2>(o);
  }
}

Handler SelectHalfCompare(const Opcode& o) {
  const bool predicate = o.base == "setp";
  switch (o.last_type()) {
    case Type::kF16:
      return o.Has("ftz") ? SelectComparison<HalfKind, 1, true>(predicate)
                          : SelectComparison<HalfKind, 1>(predicate);
    case Type::kF16x2:
      return o.Has("ftz") ? SelectComparison<HalfKind, 2, true>(predicate)
                          : SelectComparison<HalfKind, 2>(predicate);
    case Type::kBf16:
      return SelectComparison<BFloat16Kind, 1>(predicate);
    default:
      return SelectComparison<BFloat16Kind, 2>(predicate);
  }
}

}  // namespace vqllm::ptx
