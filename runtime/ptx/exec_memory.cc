#include "runtime/ptx/access.h"
#include "runtime/ptx/exec.h"

namespace vqllm::ptx {
namespace {

// What a lane gets from an access that was refused: a value that is easy to recognise.
constexpr uint64_t kPoison = 0xbadbadbadbadbadbull;

inline uint64_t LoadBits(const uint8_t* from, int bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, static_cast<size_t>(bytes));
  return bits;
}

// Plain loads of 32-bit elements into 32-bit registers: nearly all of the traffic.
template <int kElements>
void LoadWords(const Warp& warp, const Instruction& instruction, uint8_t* const* host, uint32_t mask) {
  if (mask == kAllLanes) {
    alignas(64) uint32_t values[kElements][kWarpSize];
    for (int i = 0; i < kWarpSize; ++i) {
      uint32_t element[kElements];
      std::memcpy(element, host[i], sizeof(element));
      for (int e = 0; e < kElements; ++e) values[e][i] = element[e];
    }
    for (int e = 0; e < kElements; ++e) {
      std::memcpy(warp.Write<uint32_t>(instruction.list[e]), values[e], sizeof(values[e]));
    }
    return;
  }
  for (int e = 0; e < kElements; ++e) {
    uint32_t* dest = warp.Write<uint32_t>(instruction.list[e]);
    ForLanes(mask, [&](int i) { std::memcpy(dest + i, host[i] + 4 * e, 4); });
  }
}

void LoadLanes(const Warp& warp, const Instruction& instruction, uint8_t* const* host, uint32_t mask) {
  const int bytes = instruction.element_bytes;
  if (bytes == 4 && instruction.dest_bytes == 4) {
    switch (instruction.elements) {
      case 1:
        return LoadWords<1>(warp, instruction, host, mask);
      case 2:
        return LoadWords<2>(warp, instruction, host, mask);
      case 4:
        return LoadWords<4>(warp, instruction, host, mask);
      default:
        break;
    }
  }
  for (int e = 0; e < instruction.elements; ++e) {
    ForLanes(mask, [&](int i) {
      uint64_t bits = LoadBits(host[i] + bytes * e, bytes);
      if (instruction.is_signed) bits = SignExtend(bits, bytes);
      SetLaneBits(warp, instruction.list[e], instruction.dest_bytes, i, bits);
    });
  }
}

void StoreLanesTo(const Warp& warp, const Instruction& instruction, uint8_t* const* host, uint32_t mask) {
  const size_t bytes = instruction.element_bytes;
  for (int e = 0; e < instruction.elements; ++e) {
    ForLanes(mask, [&](int i) {
      const uint64_t bits = LaneBits(warp, instruction.list[e], instruction.source_bytes, i);
      std::memcpy(host[i] + bytes * static_cast<size_t>(e), &bits, bytes);
    });
  }
}

void PoisonLanes(const Warp& warp, const Instruction& instruction, uint32_t mask) {
  for (int e = 0; e < instruction.elements; ++e) {
    ForLanes(mask,
             [&](int i) { SetLaneBits(warp, instruction.list[e], instruction.dest_bytes, i, kPoison); });
  }
}

template <bool kStore>
void AccessGlobal(Warp& warp, const Instruction& instruction, Lanes32& lanes, uint32_t mask) {
  const uint32_t bytes = uint32_t{instruction.element_bytes} * instruction.elements;
  int segment = -1;
  const uint32_t good = ResolveGlobal(warp, lanes, mask, bytes, &segment);
  // The shadows first: a load may overwrite the registers of its own address, not `lanes`.
  NoteGlobal(warp, lanes, good, bytes, segment, kStore ? AccessKind::kStore : AccessKind::kLoad);
  if constexpr (kStore) {
    StoreLanesTo(warp, instruction, lanes.host, good);
  } else {
    LoadLanes(warp, instruction, lanes.host, good);
    if (good != mask) PoisonLanes(warp, instruction, mask & ~good);
  }
}

template <bool kStore>
void AccessShared(Warp& warp, const Instruction& instruction, Lanes32& lanes, uint32_t mask) {
  const uint32_t bytes = uint32_t{instruction.element_bytes} * instruction.elements;
  const uint32_t good = ResolveShared(warp, lanes, mask, bytes);
  NoteShared(warp, lanes, good, bytes, kStore ? AccessKind::kStore : AccessKind::kLoad);
  if constexpr (kStore) {
    StoreLanesTo(warp, instruction, lanes.host, good);
  } else {
    LoadLanes(warp, instruction, lanes.host, good);
    if (good != mask) PoisonLanes(warp, instruction, mask & ~good);
  }
}

template <bool kStore>
void AccessLocal(Warp& warp, const Instruction& instruction, Lanes32& lanes, uint32_t mask) {
  const uint32_t bytes = uint32_t{instruction.element_bytes} * instruction.elements;
  const uint32_t good = ResolveLocal(warp, lanes, mask, bytes);
  if (warp.block->count && instruction.cls != InstructionClass::kLoadParam) {
    ++warp.block->counters[kStore ? Counter::kLocalStoreRequests : Counter::kLocalLoadRequests];
  }
  if constexpr (kStore) {
    StoreLanesTo(warp, instruction, lanes.host, good);
  } else {
    LoadLanes(warp, instruction, lanes.host, good);
    if (good != mask) PoisonLanes(warp, instruction, mask & ~good);
  }
}

template <bool kStore>
void AccessConst(Warp& warp, const Instruction& instruction, Lanes32& lanes, uint32_t mask, bool parameters) {
  if constexpr (kStore) {
    ForLanes(mask, [&](int i) {
      warp.block->Report(HazardKind::kOutOfBounds, warp, i, lanes.address[i], "store to read-only memory");
    });
  } else {
    const uint32_t bytes = uint32_t{instruction.element_bytes} * instruction.elements;
    const uint32_t good = ResolveConst(warp, lanes, mask, bytes, parameters);
    LoadLanes(warp, instruction, lanes.host, good);
    if (good != mask) PoisonLanes(warp, instruction, mask & ~good);
  }
}

template <bool kStore>
void Global(Warp& warp, const Instruction& instruction) {
  Lanes32 lanes;
  LaneAddresses(warp, instruction.source[0], instruction.wide_address, instruction.offset, lanes.address);
  AccessGlobal<kStore>(warp, instruction, lanes, warp.mask);
}

template <bool kStore>
void Shared(Warp& warp, const Instruction& instruction) {
  Lanes32 lanes;
  LaneAddresses(warp, instruction.source[0], instruction.wide_address, instruction.offset, lanes.address);
  AccessShared<kStore>(warp, instruction, lanes, warp.mask);
}

// All other spaces.
template <bool kStore>
void General(Warp& warp, const Instruction& instruction) {
  Lanes32 lanes;
  if (!instruction.has_address) {  // ld.param of a kernel's own parameter: in bounds, checked at load
    const uint8_t* from = warp.block->arguments + instruction.offset;
    ForLanes(warp.mask, [&](int i) { lanes.host[i] = const_cast<uint8_t*>(from); });
    LoadLanes(warp, instruction, lanes.host, warp.mask);
    return;
  }
  LaneAddresses(warp, instruction.source[0], instruction.wide_address, instruction.offset, lanes.address);
  switch (instruction.space) {
    case Space::kLocal:
      return AccessLocal<kStore>(warp, instruction, lanes, warp.mask);
    case Space::kConst:
    case Space::kParam:
      return AccessConst<kStore>(warp, instruction, lanes, warp.mask, instruction.space == Space::kParam);
    default:
      break;
  }
  const SpaceMasks masks = SplitGeneric(lanes, warp.mask);
  if (masks.global != 0) AccessGlobal<kStore>(warp, instruction, lanes, masks.global);
  if (masks.shared != 0) AccessShared<kStore>(warp, instruction, lanes, masks.shared);
  if (masks.local != 0) AccessLocal<kStore>(warp, instruction, lanes, masks.local);
  if (masks.constant != 0) AccessConst<kStore>(warp, instruction, lanes, masks.constant, false);
  if (masks.parameter != 0) AccessConst<kStore>(warp, instruction, lanes, masks.parameter, true);
}

template <bool kStore>
Handler SelectSpace(const Opcode& o) {
  if (o.Has("global") || o.base == "ldu") return Global<kStore>;
  if (o.Has("shared") || o.Has("shared::cta")) return Shared<kStore>;
  return General<kStore>;
}

}  // namespace

Handler SelectLoad(const Opcode& o) { return SelectSpace<false>(o); }
Handler SelectStore(const Opcode& o) { return SelectSpace<true>(o); }

}  // namespace vqllm::ptx
