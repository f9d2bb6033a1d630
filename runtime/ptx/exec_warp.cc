#include <algorithm>
#include <cmath>

#include "runtime/ptx/exec.h"

namespace vqllm::ptx {
namespace {

// Every lane that the member mask names must be here, and every lane that is here must be named.
void CheckMembers(Warp& warp, uint32_t members) {
  if (!warp.block->check) return;
  if (const uint32_t missing = members & warp.live & ~warp.mask; missing != 0) {
    warp.block->Report(HazardKind::kInactiveLane, warp, FirstLane(missing), members,
                       "the member mask names a lane that is not here");
  }
  if (const uint32_t extra = warp.mask & ~members; extra != 0) {
    warp.block->Report(HazardKind::kInactiveLane, warp, FirstLane(extra), members,
                       "a lane that executes is not in the member mask");
  }
}

// Lanes may come with different member masks (tiles of a warp): each set of lanes with one mask is an
// instruction of its own. `kSource` is where the mask is.
template <Handler kHandler, int kSource>
void ByMembers(Warp& warp, const Instruction& instruction) {
  const uint32_t all = warp.mask;
  uint32_t members[kWarpSize];
  std::copy_n(warp.Read<uint32_t>(instruction.source[kSource]), kWarpSize, members);
  for (uint32_t left = all; left != 0;) {
    const uint32_t first = members[FirstLane(left)];
    uint32_t same = 0;
    ForLanes(left, [&](int i) { same |= members[i] == first ? 1u << i : 0u; });
    left &= ~same;
    warp.mask = same;
    kHandler(warp, instruction);
  }
  warp.mask = all;
}

uint32_t Members(const Warp& warp, Place place) { return warp.Read<uint32_t>(place)[FirstLane(warp.mask)]; }

enum class Shuffle : uint8_t { kUp, kDown, kBfly, kIdx };

template <Shuffle kMode>
void ShuffleLanes(Warp& warp, const Instruction& instruction) {
  const uint32_t* a = warp.Read<uint32_t>(instruction.source[0]);
  const uint32_t* b = warp.Read<uint32_t>(instruction.source[1]);
  const uint32_t* c = warp.Read<uint32_t>(instruction.source[2]);
  CheckMembers(warp, Members(warp, instruction.source[3]));
  alignas(64) uint32_t values[kWarpSize];
  alignas(64) uint32_t from[kWarpSize];
  uint32_t in_range = 0;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const uint32_t offset = b[lane] & 31;
    const uint32_t clamp = c[lane] & 31;
    const uint32_t segment = c[lane] >> 8 & 31;
    const uint32_t last = (lane & segment) | (clamp & ~segment);
    const uint32_t first = lane & segment;
    uint32_t j;
    bool valid;
    if constexpr (kMode == Shuffle::kUp) {
      j = lane - offset;
      valid = static_cast<int32_t>(j) >= static_cast<int32_t>(last);
    } else if constexpr (kMode == Shuffle::kDown) {
      j = lane + offset;
      valid = j <= last;
    } else if constexpr (kMode == Shuffle::kBfly) {
      j = lane ^ offset;
      valid = j <= last;
    } else {
      j = first | (offset & ~segment);
      valid = j <= last;
    }
    j = (valid ? j : lane) & 31;
    from[lane] = j;
    in_range |= valid ? 1u << lane : 0u;
    values[lane] = a[j];
  }
  if (warp.block->check && warp.mask != kAllLanes) {
    ForLanes(warp.mask, [&](int lane) {
      if (warp.mask >> from[lane] & 1) return;
      warp.block->Report(HazardKind::kInactiveLane, warp, lane, from[lane],
                         "the value of a lane that is not here");
    });
  }
  StoreLanes(warp.Write<uint32_t>(instruction.dest[0]), values, warp.mask);
  if (instruction.dest[1] != kNowhere) warp.SetPredicate(instruction.dest[1], in_range);
}

void StoreUniform(const Warp& warp, Place place, uint32_t value) {
  uint32_t* out = warp.Write<uint32_t>(place);
  ForLanes(warp.mask, [&](int i) { out[i] = value; });
}

enum class Vote : uint8_t { kBallot, kAny, kAll, kUni };

template <Vote kVote>
void VoteLanes(Warp& warp, const Instruction& instruction) {
  uint32_t predicate = warp.Predicate(instruction.source[0]);
  if (instruction.negate & 1) predicate = ~predicate;
  const uint32_t members = Members(warp, instruction.source[1]);
  CheckMembers(warp, members);
  const uint32_t here = warp.mask & members;
  predicate &= here;
  if constexpr (kVote == Vote::kBallot) {
    StoreUniform(warp, instruction.dest[0], predicate);
  } else {
    const bool value = kVote == Vote::kAny   ? predicate != 0
                       : kVote == Vote::kAll ? predicate == here
                                             : predicate == 0 || predicate == here;
    warp.SetPredicate(instruction.dest[0], value ? kAllLanes : 0);
  }
}

template <typename T, bool kAll>
void Match(Warp& warp, const Instruction& instruction) {
  const T* a = warp.Read<T>(instruction.source[0]);
  CheckMembers(warp, Members(warp, instruction.source[1]));
  alignas(64) T copy[kWarpSize];
  std::copy_n(a, kWarpSize, copy);
  uint32_t* out = warp.Write<uint32_t>(instruction.dest[0]);
  if constexpr (kAll) {
    const T first = copy[FirstLane(warp.mask)];
    bool same = true;
    ForLanes(warp.mask, [&](int i) { same &= copy[i] == first; });
    ForLanes(warp.mask, [&](int i) { out[i] = same ? warp.mask : 0; });
    if (instruction.dest[1] != kNowhere) warp.SetPredicate(instruction.dest[1], same ? kAllLanes : 0);
  } else {
    ForLanes(warp.mask, [&](int i) {
      uint32_t same = 0;
      ForLanes(warp.mask, [&](int j) { same |= copy[i] == copy[j] ? 1u << j : 0u; });
      out[i] = same;
    });
  }
}

template <typename T, auto F>
void ReduceLanes(Warp& warp, const Instruction& instruction) {
  const T* a = warp.Read<T>(instruction.source[0]);
  CheckMembers(warp, Members(warp, instruction.source[1]));
  T value = a[FirstLane(warp.mask)];
  ForLanes(warp.mask & (warp.mask - 1), [&](int i) { value = F(value, a[i]); });
  StoreUniform(warp, instruction.dest[0], std::bit_cast<uint32_t>(value));
}

template <typename T, auto F>
constexpr Handler Reduce = ByMembers<ReduceLanes<T, F>, 1>;

template <bool kMax, bool kAbs, bool kNan>
float ReduceFloat(float a, float b) {
  if (kAbs) {
    a = std::fabs(a);
    b = std::fabs(b);
  }
  if (a != a || b != b) {
    if (kNan || (a != a && b != b)) return std::bit_cast<float>(0x7fffffffu);
    return a != a ? b : a;
  }
  if (a == b) return std::signbit(a) == kMax ? b : a;
  return (a > b) == kMax ? a : b;
}

template <bool kMax>
Handler SelectReduceFloat(const Opcode& o) {
  if (o.Has("abs")) {
    return o.Has("NaN") ? Handler{Reduce<float, ReduceFloat<kMax, true, true>>}
                        : Handler{Reduce<float, ReduceFloat<kMax, true, false>>};
  }
  return o.Has("NaN") ? Handler{Reduce<float, ReduceFloat<kMax, false, true>>}
                      : Handler{Reduce<float, ReduceFloat<kMax, false, false>>};
}

Handler SelectReduce(const Opcode& o) {
  using U = uint32_t;
  if (o.type() == Type::kF32) return o.Has("max") ? SelectReduceFloat<true>(o) : SelectReduceFloat<false>(o);
  if (o.Has("add")) return Reduce<U, [](U a, U b) { return a + b; }>;
  if (o.Has("and")) return Reduce<U, [](U a, U b) { return a & b; }>;
  if (o.Has("or")) return Reduce<U, [](U a, U b) { return a | b; }>;
  if (o.Has("xor")) return Reduce<U, [](U a, U b) { return a ^ b; }>;
  if (o.type() == Type::kS32) {
    return o.Has("min") ? Handler{Reduce<int32_t, [](int32_t a, int32_t b) { return std::min(a, b); }>}
                        : Handler{Reduce<int32_t, [](int32_t a, int32_t b) { return std::max(a, b); }>};
  }
  return o.Has("min") ? Handler{Reduce<U, [](U a, U b) { return std::min(a, b); }>}
                      : Handler{Reduce<U, [](U a, U b) { return std::max(a, b); }>};
}

void ActiveMask(Warp& warp, const Instruction& instruction) {
  StoreUniform(warp, instruction.dest[0], warp.mask);
}

void Elect(Warp& warp, const Instruction& instruction) {
  const uint32_t members = Members(warp, instruction.source[0]);
  CheckMembers(warp, members);
  const int leader = FirstLane(members);
  StoreUniform(warp, instruction.dest[0], static_cast<uint32_t>(leader));
  if (instruction.dest[1] != kNowhere) warp.SetPredicate(instruction.dest[1], 1u << leader);
}

void SyncWarp(Warp& warp, const Instruction& instruction) {
  CheckMembers(warp, Members(warp, instruction.source[0]));
  ++warp.sync_step;
}

}  // namespace

Handler SelectShuffle(const Opcode& o) {
  if (o.Has("up")) return ByMembers<ShuffleLanes<Shuffle::kUp>, 3>;
  if (o.Has("down")) return ByMembers<ShuffleLanes<Shuffle::kDown>, 3>;
  if (o.Has("bfly")) return ByMembers<ShuffleLanes<Shuffle::kBfly>, 3>;
  return ByMembers<ShuffleLanes<Shuffle::kIdx>, 3>;
}

Handler SelectVote(const Opcode& o) {
  if (o.base == "bar") return ByMembers<SyncWarp, 0>;
  if (o.base == "activemask") return ActiveMask;
  if (o.base == "elect") return ByMembers<Elect, 0>;
  if (o.base == "redux") return SelectReduce(o);
  if (o.base == "match") {
    const bool wide = TypeSize(o.type()) == 8;
    if (o.Has("all")) {
      return wide ? ByMembers<Match<uint64_t, true>, 1> : ByMembers<Match<uint32_t, true>, 1>;
    }
    return wide ? ByMembers<Match<uint64_t, false>, 1> : ByMembers<Match<uint32_t, false>, 1>;
  }
  if (o.Has("ballot")) return ByMembers<VoteLanes<Vote::kBallot>, 1>;
  if (o.Has("any")) return ByMembers<VoteLanes<Vote::kAny>, 1>;
  if (o.Has("all")) return ByMembers<VoteLanes<Vote::kAll>, 1>;
  return ByMembers<VoteLanes<Vote::kUni>, 1>;
}

}  // namespace vqllm::ptx
