#include "runtime/ptx/exec.h"

namespace vqllm::ptx {
namespace {

template <typename T>
constexpr Handler kCopy = Lanes<T, [](T a) { return a; }, T>;

// mov d, {a, b[, c, d]}: the first element lies in the low bits. The registers of 8-bit elements have 16.
void Pack(Warp& warp, const Instruction& instruction) {
  const int bytes = instruction.element_bytes;
  const int width = bytes < 2 ? 2 : bytes;
  const uint64_t low = bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1;
  ForLanes(warp.mask, [&](int lane) {
    uint64_t bits = 0;
    for (int e = 0; e < instruction.elements; ++e) {
      bits |= (LaneBits(warp, instruction.list[e], width, lane) & low) << (8 * bytes * e);
    }
    SetLaneBits(warp, instruction.dest[0], instruction.dest_bytes, lane, bits);
  });
}

void PackHalves(Warp& warp, const Instruction& instruction) {
  if (instruction.elements != 2 || instruction.element_bytes != 2) return Pack(warp, instruction);
  const uint16_t* low = warp.Read<uint16_t>(instruction.list[0]);
  const uint16_t* high = warp.Read<uint16_t>(instruction.list[1]);
  alignas(64) uint32_t values[kWarpSize];
  for (int i = 0; i < kWarpSize; ++i) values[i] = low[i] | static_cast<uint32_t>(high[i]) << 16;
  StoreLanes(warp.Write<uint32_t>(instruction.dest[0]), values, warp.mask);
}

void Unpack(Warp& warp, const Instruction& instruction) {
  const int bytes = instruction.element_bytes;
  const int width = bytes < 2 ? 2 : bytes;
  const uint64_t low = bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1;
  ForLanes(warp.mask, [&](int lane) {
    const uint64_t bits = LaneBits(warp, instruction.source[0], instruction.source_bytes, lane);
    for (int e = 0; e < instruction.elements; ++e) {
      if (instruction.list[e] == kNowhere) continue;
      SetLaneBits(warp, instruction.list[e], width, lane, bits >> (8 * bytes * e) & low);
    }
  });
}

void UnpackHalves(Warp& warp, const Instruction& instruction) {
  if (instruction.elements != 2 || instruction.element_bytes != 2) return Unpack(warp, instruction);
  const uint32_t* bits = warp.Read<uint32_t>(instruction.source[0]);
  for (int e = 0; e < 2; ++e) {
    if (instruction.list[e] == kNowhere) continue;
    uint16_t* const dest = warp.Write<uint16_t>(instruction.list[e]);
    alignas(64) uint16_t values[kWarpSize];
    for (int i = 0; i < kWarpSize; ++i) values[i] = static_cast<uint16_t>(bits[i] >> (16 * e));
    StoreLanes(dest, values, warp.mask);
  }
}

// The clock of the model is the number of warp instructions of the block so far.
void ReadClock(Warp& warp, const Instruction& instruction) {
  const uint64_t now = warp.block->executed;
  ForLanes(warp.mask,
           [&](int lane) { SetLaneBits(warp, instruction.dest[0], instruction.dest_bytes, lane, now); });
}

template <uint64_t kWindow>
constexpr Handler kToGeneric = Lanes<uint64_t, [](uint64_t a) { return a + kWindow; }, uint64_t>;
template <uint64_t kWindow>
constexpr Handler kFromGeneric = Lanes<uint64_t, [](uint64_t a) { return a - kWindow; }, uint64_t>;

template <uint64_t kWindow>
void IsInWindow(Warp& warp, const Instruction& instruction) {
  const uint64_t* a = warp.Read<uint64_t>(instruction.source[0]);
  uint32_t mask = 0;
  for (int i = 0; i < kWarpSize; ++i) {
    const bool inside = kWindow == 0 ? a[i] >= kGlobalBase : a[i] - kWindow < kWindowBytes;
    mask |= inside ? 1u << i : 0u;
  }
  warp.SetPredicate(instruction.dest[0], mask);
}

template <uint64_t kWindow>
Handler SelectWindow(const Opcode& o) {
  if (o.base == "isspacep") return IsInWindow<kWindow>;
  return o.Has("to") ? kFromGeneric<kWindow> : kToGeneric<kWindow>;
}

void Nothing(Warp&, const Instruction&) {}

}  // namespace

Handler SelectMove(const Opcode& o) {
  if (o.base == "cvta" || o.base == "isspacep") {
    if (o.Has("shared") || o.Has("shared::cta")) return SelectWindow<kSharedWindow>(o);
    if (o.Has("local")) return SelectWindow<kLocalWindow>(o);
    if (o.Has("const")) return SelectWindow<kConstWindow>(o);
    if (o.Has("param")) return SelectWindow<kParamWindow>(o);
    return SelectWindow<0>(o);
  }
  switch (TypeSize(o.type())) {
    case 2:
      return kCopy<uint16_t>;
    case 4:
      return kCopy<uint32_t>;
    default:
      return kCopy<uint64_t>;
  }
}

Handler SelectPack(const Opcode&) { return PackHalves; }
Handler SelectUnpack(const Opcode&) { return UnpackHalves; }
Handler SelectClock(const Opcode&) { return ReadClock; }
Handler SelectNothing(const Opcode&) { return Nothing; }

}  // namespace vqllm::ptx
