#include "runtime/ptx/access.h"
#include "runtime/ptx/exec.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace vqllm::ptx {
namespace {

// What a lane gets from an access that was refused: a value that is easy to recognise.
constexpr uint64_t kPoison = 0xbadbadbadbadbadbull;

inline uint64_t LoadBits(const uint8_t* from, int bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, static_cast<size_t>(bytes));
  return bits;
}

// Sixteen bytes a lane into four registers: a transposition.
void LoadQuads(const Warp& warp, const Instruction& instruction, uint8_t* const* host) {
  uint32_t* const dest[4] = {
      warp.Write<uint32_t>(instruction.list[0]), warp.Write<uint32_t>(instruction.list[1]),
      warp.Write<uint32_t>(instruction.list[2]), warp.Write<uint32_t>(instruction.list[3])};
#if defined(__SSE2__)
  for (int i = 0; i < kWarpSize; i += 4) {
    const auto row = [&](int j) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(host[i + j])); };
    const __m128i low01 = _mm_unpacklo_epi32(row(0), row(1));
    const __m128i low23 = _mm_unpacklo_epi32(row(2), row(3));
    const __m128i high01 = _mm_unpackhi_epi32(row(0), row(1));
    const __m128i high23 = _mm_unpackhi_epi32(row(2), row(3));
    const auto store = [&](int e, __m128i value) {
      _mm_store_si128(reinterpret_cast<__m128i*>(dest[e] + i), value);
    };
    store(0, _mm_unpacklo_epi64(low01, low23));
    store(1, _mm_unpackhi_epi64(low01, low23));
    store(2, _mm_unpacklo_epi64(high01, high23));
    store(3, _mm_unpackhi_epi64(high01, high23));
  }
#else
  for (int i = 0; i < kWarpSize; ++i) {
    for (int e = 0; e < 4; ++e) std::memcpy(dest[e] + i, host[i] + 4 * e, 4);
  }
#endif
}

// One element a lane: M in memory, R the register.
template <typename M, typename R>
void LoadScalars(const Warp& warp, const Instruction& instruction, uint8_t* const* host, uint32_t mask) {
  R* const dest = warp.Write<R>(instruction.list[0]);
  const auto load = [&](int i) {
    M value;
    std::memcpy(&value, host[i], sizeof(M));
    dest[i] = static_cast<R>(value);
  };
  if (mask == kAllLanes) {
    for (int i = 0; i < kWarpSize; ++i) load(i);
  } else {
    ForLanes(mask, load);
  }
}

// Plain loads of several 32-bit elements.
template <int kElements>
void LoadWords(const Warp& warp, const Instruction& instruction, uint8_t* const* host, uint32_t mask) {
  for (int e = 0; e < kElements; ++e) {
    uint32_t* dest = warp.Write<uint32_t>(instruction.list[e]);
    ForLanes(mask, [&](int i) { std::memcpy(dest + i, host[i] + 4 * e, 4); });
  }
}

// The loads that make up nearly all of the traffic; false for another one.
bool LoadFast(const Warp& warp, const Instruction& instruction, uint8_t* const* host, uint32_t mask) {
  const int memory = instruction.element_bytes;
  const int reg = instruction.dest_bytes;
  if (memory == 4 && reg == 4) {
    if (instruction.elements == 1)
      return LoadScalars<uint32_t, uint32_t>(warp, instruction, host, mask), true;
    if (instruction.elements == 2) return LoadWords<2>(warp, instruction, host, mask), true;
    if (instruction.elements != 4) return false;
    if (mask == kAllLanes) return LoadQuads(warp, instruction, host), true;
    return LoadWords<4>(warp, instruction, host, mask), true;
  }
  if (instruction.elements != 1 || instruction.is_signed) return false;
  if (memory == 2 && reg == 2) return LoadScalars<uint16_t, uint16_t>(warp, instruction, host, mask), true;
  if (memory == 2 && reg == 4) return LoadScalars<uint16_t, uint32_t>(warp, instruction, host, mask), true;
  if (memory == 1 && reg == 2) return LoadScalars<uint8_t, uint16_t>(warp, instruction, host, mask), true;
  if (memory == 1 && reg == 4) return LoadScalars<uint8_t, uint32_t>(warp, instruction, host, mask), true;
  if (memory == 8 && reg == 8) return LoadScalars<uint64_t, uint64_t>(warp, instruction, host, mask), true;
  return false;
}

void LoadLanes(const Warp& warp, const Instruction& instruction, uint8_t* const* host, uint32_t mask) {
  if (LoadFast(warp, instruction, host, mask)) return;
  const int bytes = instruction.element_bytes;
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
