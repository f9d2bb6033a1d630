#include <cmath>

#include "runtime/ptx/exec.h"

namespace vqllm::ptx {
namespace {

enum class Relation : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan
};
enum class Combine : uint8_t { kNone, kAnd, kOr, kXor };

// In the order of Relation.
constexpr std::string_view kRelationNames[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                               "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

Relation RelationOf(const Opcode& o) {
  static constexpr std::string_view kUnsigned[] = {"lo", "ls", "hi", "hs"};
  static constexpr Relation kAlias[] = {Relation::kLt, Relation::kLe, Relation::kGt, Relation::kGe};
  if (const int alias = o.Find(kUnsigned); alias >= 0) return kAlias[alias];
  return static_cast<Relation>(o.Find(kRelationNames));
}

template <Relation kRelation, typename T>
inline bool Holds(T a, T b) {
  switch (kRelation) {
    case Relation::kEq:
      return a == b;
    case Relation::kNe:
      return (a < b) | (a > b);  // false for a NaN
    case Relation::kLt:
      return a < b;
    case Relation::kLe:
      return a <= b;
    case Relation::kGt:
      return a > b;
    case Relation::kGe:
      return a >= b;
    case Relation::kEqu:
      return !((a < b) | (a > b));
    case Relation::kNeu:
      return a != b;
    case Relation::kLtu:
      return !(a >= b);
    case Relation::kLeu:
      return !(a > b);
    case Relation::kGtu:
      return !(a <= b);
    case Relation::kGeu:
      return !(a < b);
    case Relation::kNum:
      return (a == a) & (b == b);
    case Relation::kNan:
      return (a != a) | (b != b);
  }
  return false;
}

template <bool kFtz, typename T>
inline T Flush(T value) {
  if constexpr (kFtz) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return std::bit_cast<float>((bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits);
  }
  return value;
}

template <typename T, Relation kRelation, bool kFtz>
inline uint32_t Compare(const Warp& warp, const Instruction& instruction) {
  const T* a = warp.Read<T>(instruction.source[0]);
  const T* b = warp.Read<T>(instruction.source[1]);
  alignas(64) uint32_t truth[kWarpSize];
  for (int i = 0; i < kWarpSize; ++i) {
    truth[i] = Holds<kRelation>(Flush<kFtz>(a[i]), Flush<kFtz>(b[i])) ? 1u << i : 0u;
  }
  uint32_t mask = 0;
  for (int i = 0; i < kWarpSize; ++i) mask |= truth[i];
  return mask;
}

inline uint32_t Combined(const Warp& warp, const Instruction& instruction, uint32_t value) {
  const Combine combine = static_cast<Combine>(instruction.immediate & 3);
  if (combine == Combine::kNone) return value;
  uint32_t other = warp.Predicate(instruction.source[2]);
  if (instruction.negate & 4) other = ~other;
  return combine == Combine::kAnd ? value & other : combine == Combine::kOr ? value | other : value ^ other;
}

template <typename T, Relation kRelation, bool kFtz>
void SetPredicate(Warp& warp, const Instruction& instruction) {
  const uint32_t mask = Compare<T, kRelation, kFtz>(warp, instruction);
  const uint32_t second = Combined(warp, instruction, ~mask);
  warp.SetPredicate(instruction.dest[0], Combined(warp, instruction, mask));
  if (instruction.dest[1] != kNowhere) warp.SetPredicate(instruction.dest[1], second);
}

// set: all ones, or 1.0f; the type of the result is in bit 2 of the immediate.
template <typename T, Relation kRelation, bool kFtz>
void SetValue(Warp& warp, const Instruction& instruction) {
  const uint32_t mask = Combined(warp, instruction, Compare<T, kRelation, kFtz>(warp, instruction));
  const uint32_t one = (instruction.immediate & 4) ? 0x3f800000u : ~0u;
  alignas(64) uint32_t values[kWarpSize];
  for (int i = 0; i < kWarpSize; ++i) values[i] = (mask >> i & 1) ? one : 0u;
  StoreLanes(warp.Write<uint32_t>(instruction.dest[0]), values, warp.mask);
}

template <typename T, bool kFtz, Relation kRelation>
Handler Pick(bool predicate) {
  return predicate ? Handler{SetPredicate<T, kRelation, kFtz>} : Handler{SetValue<T, kRelation, kFtz>};
}

template <typename T, bool kFtz = false>
Handler SelectRelation(Relation relation, bool predicate) {
  switch (relation) {
    case Relation::kEq:
      return Pick<T, kFtz, Relation::kEq>(predicate);
    case Relation::kNe:
      return Pick<T, kFtz, Relation::kNe>(predicate);
    case Relation::kLt:
      return Pick<T, kFtz, Relation::kLt>(predicate);
    case Relation::kLe:
      return Pick<T, kFtz, Relation::kLe>(predicate);
    case Relation::kGt:
      return Pick<T, kFtz, Relation::kGt>(predicate);
    case Relation::kGe:
      return Pick<T, kFtz, Relation::kGe>(predicate);
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    switch (relation) {
      case Relation::kEqu:
        return Pick<T, kFtz, Relation::kEqu>(predicate);
      case Relation::kNeu:
        return Pick<T, kFtz, Relation::kNeu>(predicate);
      case Relation::kLtu:
        return Pick<T, kFtz, Relation::kLtu>(predicate);
      case Relation::kLeu:
        return Pick<T, kFtz, Relation::kLeu>(predicate);
      case Relation::kGtu:
        return Pick<T, kFtz, Relation::kGtu>(predicate);
      case Relation::kGeu:
        return Pick<T, kFtz, Relation::kGeu>(predicate);
      case Relation::kNum:
        return Pick<T, kFtz, Relation::kNum>(predicate);
      case Relation::kNan:
        return Pick<T, kFtz, Relation::kNan>(predicate);
      default:
        break;
    }
  }
  return nullptr;
}

template <typename T>
void Select(Warp& warp, const Instruction& instruction) {
  const T* a = warp.Read<T>(instruction.source[0]);
  const T* b = warp.Read<T>(instruction.source[1]);
  uint32_t chosen = warp.Predicate(instruction.source[2]);
  if (instruction.negate & 4) chosen = ~chosen;
  alignas(64) T values[kWarpSize];
  for (int i = 0; i < kWarpSize; ++i) values[i] = (chosen >> i & 1) ? a[i] : b[i];
  StoreLanes(warp.Write<T>(instruction.dest[0]), values, warp.mask);
}

template <typename T>
Handler SelectSlct(const Opcode& o) {
  if (o.last_type() == Type::kS32)
    return Lanes<T, [](T a, T b, int32_t c) { return c >= 0 ? a : b; }, T, T, int32_t>;
  // -0 counts as zero, a NaN picks b; .ftz makes a negative subnormal pick a.
  if (o.Has("ftz")) {
    return Lanes<T, [](T a, T b, float c) { return Flush<true>(c) >= 0.0f ? a : b; }, T, T, float>;
  }
  return Lanes<T, [](T a, T b, float c) { return c >= 0.0f ? a : b; }, T, T, float>;
}

template <typename T>
bool TestProperty(T value, int property) {
  switch (property) {
    case 0:
      return std::isfinite(value);
    case 1:
      return std::isinf(value);
    case 2:
      return !std::isnan(value);
    case 3:
      return std::isnan(value);
    case 4:
      return std::isnormal(value);
    default:
      return std::fpclassify(value) == FP_SUBNORMAL;
  }
}

template <typename T, int kProperty>
void Test(Warp& warp, const Instruction& instruction) {
  const T* a = warp.Read<T>(instruction.source[0]);
  uint32_t mask = 0;
  for (int i = 0; i < kWarpSize; ++i) mask |= TestProperty(a[i], kProperty) ? 1u << i : 0u;
  warp.SetPredicate(instruction.dest[0], mask);
}

template <typename T>
Handler SelectTest(const Opcode& o) {
  static constexpr std::string_view kNames[] = {"finite",     "infinite", "number",
                                                "notanumber", "normal",   "subnormal"};
  static constexpr Handler kTests[] = {Test<T, 0>, Test<T, 1>, Test<T, 2>,
                                       Test<T, 3>, Test<T, 4>, Test<T, 5>};
  return kTests[o.Find(kNames)];
}

template <int kOperation>
void PredicateLogic(Warp& warp, const Instruction& instruction) {
  uint32_t a = warp.Predicate(instruction.source[0]);
  if (instruction.negate & 1) a = ~a;
  uint32_t b = 0;
  if constexpr (kOperation < 3) {
    b = warp.Predicate(instruction.source[1]);
    if (instruction.negate & 2) b = ~b;
  }
  const uint32_t value = kOperation == 0   ? a & b
                         : kOperation == 1 ? a | b
                         : kOperation == 2 ? a ^ b
                         : kOperation == 3 ? ~a
                                           : a;
  warp.SetPredicate(instruction.dest[0], value);
}

}  // namespace

Handler SelectPredicate(const Opcode& o) {
  if (o.base == "and") return PredicateLogic<0>;
  if (o.base == "or") return PredicateLogic<1>;
  if (o.base == "xor") return PredicateLogic<2>;
  if (o.base == "not") return PredicateLogic<3>;
  return PredicateLogic<4>;
}

uint32_t CompareImmediate(const Opcode& o) {
  const Combine combine = o.Has("and")   ? Combine::kAnd
                          : o.Has("or")  ? Combine::kOr
                          : o.Has("xor") ? Combine::kXor
                                         : Combine::kNone;
  const bool one =
      o.base == "set" && (IsFloat(o.type()) || o.type() == Type::kF16x2 || o.type() == Type::kBf16x2);
  return static_cast<uint32_t>(combine) | (one ? 4u : 0u) | static_cast<uint32_t>(RelationOf(o)) << 8;
}

Handler SelectCompare(const Opcode& o) {
  if (o.base == "selp" || o.base == "slct") {
    const bool slct = o.base == "slct";
    switch (TypeSize(o.type())) {
      case 2:
        return slct ? SelectSlct<uint16_t>(o) : Handler{Select<uint16_t>};
      case 4:
        return slct ? SelectSlct<uint32_t>(o) : Handler{Select<uint32_t>};
      default:
        return slct ? SelectSlct<uint64_t>(o) : Handler{Select<uint64_t>};
    }
  }
  if (o.base == "testp") return o.type() == Type::kF64 ? SelectTest<double>(o) : SelectTest<float>(o);
  const bool predicate = o.base == "setp";
  const Relation relation = RelationOf(o);
  switch (o.last_type()) {
    case Type::kU16:
    case Type::kB16:
      return SelectRelation<uint16_t>(relation, predicate);
    case Type::kS16:
      return SelectRelation<int16_t>(relation, predicate);
    case Type::kU32:
    case Type::kB32:
      return SelectRelation<uint32_t>(relation, predicate);
    case Type::kS32:
      return SelectRelation<int32_t>(relation, predicate);
    case Type::kU64:
    case Type::kB64:
      return SelectRelation<uint64_t>(relation, predicate);
    case Type::kS64:
      return SelectRelation<int64_t>(relation, predicate);
    case Type::kF64:
      return SelectRelation<double>(relation, predicate);
    default:
      return o.Has("ftz") ? SelectRelation<float, true>(relation, predicate)
                          : SelectRelation<float>(relation, predicate);
  }
}

}  // namespace vqllm::ptx
