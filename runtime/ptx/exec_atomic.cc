#include <algorithm>

#include "runtime/ptx/access.h"
#include "runtime/ptx/exec.h"
#include "runtime/ptx/global_shadow.h"
#include "runtime/ptx/half_math.h"

namespace vqllm::ptx {
namespace {

// New value from the old one and the operands. Blocks with global atomics run one after another, and shared
// memory belongs to one block: plain arithmetic will do.
using Update = uint64_t (*)(uint64_t old, uint64_t b, uint64_t c);

template <typename T, auto F>
uint64_t As(uint64_t old, uint64_t b, uint64_t) {
  T x;
  T y;
  std::memcpy(&x, &old, sizeof(T));
  std::memcpy(&y, &b, sizeof(T));
  const T value = F(x, y);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <typename Kind, int kHalves>
uint64_t AddHalves(uint64_t old, uint64_t b, uint64_t) {
  uint64_t result = 0;
  for (int h = 0; h < kHalves; ++h) {
    const float sum =
        Kind::Load(static_cast<uint16_t>(old >> (16 * h))) + Kind::Load(static_cast<uint16_t>(b >> (16 * h)));
    result |= uint64_t{Kind::Round(sum)} << (16 * h);
  }
  return result;
}

template <Update kUpdate, bool kReturns>
void Atomic(Warp& warp, const Instruction& instruction) {
  Lanes32 lanes;
  LaneAddresses(warp, instruction.source[0], instruction.wide_address, instruction.offset, lanes.address);
  const uint32_t bytes = instruction.element_bytes;
  SpaceMasks masks;
  if (instruction.space == Space::kGlobal) {
    masks.global = warp.mask;
  } else if (instruction.space == Space::kShared) {
    masks.shared = warp.mask;
  } else {
    masks = SplitGeneric(lanes, warp.mask);
  }
  uint32_t good = 0;
  if (masks.global != 0) {
    int segment = -1;
    const uint32_t mask = ResolveGlobal(warp, lanes, masks.global, bytes, &segment);
    NoteGlobal(warp, lanes, mask, bytes, segment, AccessKind::kAtomic);
    if (warp.block->check) ForLanes(mask, [&](int i) { warp.block->global->Synchronise(lanes.address[i]); });
    good |= mask;
  }
  if (masks.shared != 0) {
    const uint32_t mask = ResolveShared(warp, lanes, masks.shared, bytes);
    NoteShared(warp, lanes, mask, bytes, AccessKind::kAtomic);
    good |= mask;
  }
  if (masks.local != 0) good |= ResolveLocal(warp, lanes, masks.local, bytes);
  ForLanes(masks.constant | masks.parameter, [&](int i) {
    warp.block->Report(HazardKind::kOutOfBounds, warp, i, lanes.address[i], "atomic on read-only memory");
  });
  const int width = std::max<int>(2, static_cast<int>(bytes));
  ForLanes(good, [&](int i) {
    const uint64_t b = LaneBits(warp, instruction.source[1], width, i);
    const uint64_t c =
        instruction.source[2] != kNowhere ? LaneBits(warp, instruction.source[2], width, i) : 0;
    uint64_t old = 0;
    std::memcpy(&old, lanes.host[i], bytes);
    const uint64_t value = kUpdate(old, b, c);
    std::memcpy(lanes.host[i], &value, bytes);
    if constexpr (kReturns) SetLaneBits(warp, instruction.dest[0], width, i, old);
  });
}

template <Update kUpdate>
Handler Pick(const Opcode& o) {
  return o.base == "atom" ? Handler{Atomic<kUpdate, true>} : Handler{Atomic<kUpdate, false>};
}

template <typename T>
T Add(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  return a + b;
}

template <typename T>
Handler SelectNumber(const Opcode& o) {
  if (o.Has("add")) return Pick<As<T, Add<T>>>(o);
  if constexpr (std::is_integral_v<T>) {
    if (o.Has("min")) return Pick<As<T, [](T a, T b) { return std::min(a, b); }>>(o);
    return Pick<As<T, [](T a, T b) { return std::max(a, b); }>>(o);
  }
  return nullptr;
}

uint64_t And(uint64_t old, uint64_t b, uint64_t) { return old & b; }
uint64_t Or(uint64_t old, uint64_t b, uint64_t) { return old | b; }
uint64_t Xor(uint64_t old, uint64_t b, uint64_t) { return old ^ b; }
uint64_t Exchange(uint64_t, uint64_t b, uint64_t) { return b; }
uint64_t CompareAndSwap(uint64_t old, uint64_t b, uint64_t c) { return old == b ? c : old; }
uint64_t Increment(uint64_t old, uint64_t b, uint64_t) { return old >= b ? 0 : old + 1; }
uint64_t Decrement(uint64_t old, uint64_t b, uint64_t) { return old == 0 || old > b ? b : old - 1; }

void Fence(Warp& warp, const Instruction&) { warp.block->global->Fence(); }

}  // namespace

Handler SelectFence(const Opcode&) { return Fence; }

Handler SelectAtomic(const Opcode& o) {
  if (o.Has("and")) return Pick<And>(o);
  if (o.Has("or")) return Pick<Or>(o);
  if (o.Has("xor")) return Pick<Xor>(o);
  if (o.Has("exch")) return Pick<Exchange>(o);
  if (o.Has("cas")) return Pick<CompareAndSwap>(o);
  if (o.Has("inc")) return Pick<Increment>(o);
  if (o.Has("dec")) return Pick<Decrement>(o);
  switch (o.type()) {
    case Type::kU32:
      return SelectNumber<uint32_t>(o);
    case Type::kS32:
      return SelectNumber<int32_t>(o);
    case Type::kU64:
      return SelectNumber<uint64_t>(o);
    case Type::kS64:
      return SelectNumber<int64_t>(o);
    case Type::kF32:
      return SelectNumber<float>(o);
    case Type::kF64:
      return SelectNumber<double>(o);
    case Type::kF16:
      return Pick<AddHalves<HalfKind, 1>>(o);
    case Type::kF16x2:
      return Pick<AddHalves<HalfKind, 2>>(o);
    case Type::kBf16:
      return Pick<AddHalves<BFloat16Kind, 1>>(o);
    default:
      return Pick<AddHalves<BFloat16Kind, 2>>(o);
  }
}

}  // namespace vqllm::ptx
