#include "runtime/ptx/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "runtime/ptx/exec.h"
#include "runtime/ptx/global_shadow.h"

namespace vqllm::ptx {
namespace {

// Drops lanes whose address is not a multiple of `bytes`.
uint32_t CheckAligned(Warp& warp, const uint64_t* address, uint32_t mask, uint32_t bytes) {
  uint64_t bits = 0;
  ForLanes(mask, [&](int lane) { bits |= address[lane]; });
  if ((bits & (bytes - 1)) == 0) return mask;
  ForLanes(mask, [&](int lane) {
    if ((address[lane] & (bytes - 1)) == 0) return;
    warp.block->Report(HazardKind::kMisaligned, warp, lane, address[lane],
                       fmt::format("allowed: a multiple of {}", bytes));
    mask &= ~(1u << lane);
  });
  return mask;
}

void ReportOutside(Warp& warp, int lane, uint64_t address, uint32_t bytes, int segment) {
  if (segment < 0) {
    warp.block->Report(HazardKind::kOutOfBounds, warp, lane, address, "below all allocations");
    return;
  }
  const Segment& s = *warp.block->memory->segments()[static_cast<size_t>(segment)];
  warp.block->Report(
      HazardKind::kOutOfBounds, warp, lane, address,
      fmt::format("{} bytes at offset {} of '{}', which has {}", bytes, address - s.base, s.name, s.size));
}

// Offsets into a plain buffer of `size` bytes.
template <typename HostOf>
uint32_t ResolveOffsets(Warp& warp, Lanes32& lanes, uint32_t mask, uint32_t bytes, uint64_t size,
                        std::string_view space, HostOf&& host) {
  mask = CheckAligned(warp, lanes.address, mask, bytes);
  uint64_t highest = 0;
  ForLanes(mask, [&](int lane) { highest = std::max(highest, lanes.address[lane]); });
  if (mask != 0 && (size < bytes || highest > size - bytes)) {
    ForLanes(mask, [&](int lane) {
      if (size >= bytes && lanes.address[lane] <= size - bytes) return;
      warp.block->Report(HazardKind::kOutOfBounds, warp, lane, lanes.address[lane],
                         fmt::format("{} memory has {} bytes", space, size));
      mask &= ~(1u << lane);
    });
  }
  ForLanes(mask, [&](int lane) { lanes.host[lane] = host(lane, lanes.address[lane]); });
  return mask;
}

void CheckInitialised(Warp& warp, const Segment& segment, const Lanes32& lanes, uint32_t mask,
                      uint32_t bytes) {
  const uint64_t ones = (uint64_t{1} << bytes) - 1;
  ForLanes(mask, [&](int lane) {
    const uint64_t offset = lanes.address[lane] - segment.base;
    // An aligned access of up to 32 bytes never crosses a word of 64 bits.
    const uint64_t word = __atomic_load_n(&segment.written[offset >> 6], __ATOMIC_RELAXED);
    if ((word >> (offset & 63) & ones) != ones) {
      warp.block->Report(HazardKind::kUninitialisedGlobal, warp, lane, lanes.address[lane],
                         fmt::format("offset {} of '{}'", offset, segment.name));
    }
  });
}

void MarkInitialised(Segment& segment, const Lanes32& lanes, uint32_t mask, uint32_t bytes) {
  const uint64_t ones = (uint64_t{1} << bytes) - 1;
  ForLanes(mask, [&](int lane) {
    const uint64_t offset = lanes.address[lane] - segment.base;
    uint64_t* word = &segment.written[offset >> 6];
    const uint64_t bits = ones << (offset & 63);
    if ((__atomic_load_n(word, __ATOMIC_RELAXED) & bits) != bits)
      __atomic_fetch_or(word, bits, __ATOMIC_RELAXED);
  });
}

void NoteSegment(Warp& warp, const Lanes32& lanes, uint32_t mask, uint32_t bytes, int index, AccessKind kind,
                 const SectorList& list) {
  Block& block = *warp.block;
  const GlobalShadow::Access access = kind == AccessKind::kStore    ? GlobalShadow::Access::kStore
                                      : kind == AccessKind::kAtomic ? GlobalShadow::Access::kAtomic
                                                                    : GlobalShadow::Access::kLoad;
  const uint32_t fresh = block.global->Touch(warp, index, {lanes, mask, bytes, access}, list);
  block.counters[kind == AccessKind::kStore || kind == AccessKind::kAtomic
                     ? Counter::kGlobalStoreSectorsPerBlock
                     : Counter::kGlobalLoadSectorsPerBlock] += fresh;
  if (!block.check_global) return;
  Segment& segment = *block.memory->segments()[static_cast<size_t>(index)];
  if (kind == AccessKind::kStore) {
    MarkInitialised(segment, lanes, mask, bytes);
  } else {
    CheckInitialised(warp, segment, lanes, mask, bytes);
  }
}

struct RequestCounters {
  Counter requests;
  Counter bytes;
  Counter first;   // sectors or wavefronts
  Counter second;  // wavefronts of the ideal
};
constexpr RequestCounters kGlobalCounters[] = {
    {Counter::kGlobalLoadRequests, Counter::kGlobalLoadBytes, Counter::kGlobalLoadSectors, Counter::kCount},
    {Counter::kGlobalStoreRequests, Counter::kGlobalStoreBytes, Counter::kGlobalStoreSectors,
     Counter::kCount},
    {Counter::kGlobalAtomicRequests, Counter::kCount, Counter::kGlobalAtomicSectors, Counter::kCount},
    {Counter::kAsyncCopyRequests, Counter::kAsyncCopyBytes, Counter::kAsyncCopySectors, Counter::kCount},
};
constexpr RequestCounters kSharedCounters[] = {
    {Counter::kSharedLoadRequests, Counter::kSharedLoadBytes, Counter::kSharedLoadWavefronts,
     Counter::kSharedLoadWavefrontsIdeal},
    {Counter::kSharedStoreRequests, Counter::kSharedStoreBytes, Counter::kSharedStoreWavefronts,
     Counter::kSharedStoreWavefrontsIdeal},
    {Counter::kSharedAtomicRequests, Counter::kCount, Counter::kSharedAtomicWavefronts, Counter::kCount},
    {Counter::kCount, Counter::kCount, Counter::kAsyncCopyWavefronts, Counter::kCount},
};

}  // namespace

void LaneAddresses(const Warp& warp, Place place, bool wide, int64_t offset, uint64_t* address) {
  const uint64_t add = static_cast<uint64_t>(offset);
  if (wide) {
    const uint64_t* base = warp.Read<uint64_t>(place);
    for (int i = 0; i < kWarpSize; ++i) address[i] = base[i] + add;
  } else {
    const uint32_t* base = warp.Read<uint32_t>(place);
    for (int i = 0; i < kWarpSize; ++i) address[i] = uint64_t{base[i]} + add;
  }
}

uint32_t ResolveGlobal(Warp& warp, Lanes32& lanes, uint32_t mask, uint32_t bytes, int* segment) {
  Block& block = *warp.block;
  uint64_t low = ~uint64_t{0};
  uint64_t high = 0;
  uint64_t bits = 0;
  if (mask == kAllLanes) {
    for (int i = 0; i < kWarpSize; ++i) {
      low = std::min(low, lanes.address[i]);
      high = std::max(high, lanes.address[i]);
      bits |= lanes.address[i];
    }
  } else {
    ForLanes(mask, [&](int i) {
      low = std::min(low, lanes.address[i]);
      high = std::max(high, lanes.address[i]);
      bits |= lanes.address[i];
    });
  }
  if ((bits & (bytes - 1)) != 0) mask = CheckAligned(warp, lanes.address, mask, bytes);
  const auto& segments = block.memory->segments();
  int& cached = block.segment_cache[warp.pc];
  const auto holds = [&](int index, uint64_t from, uint64_t to) {
    if (index < 0) return false;
    const Segment& s = *segments[static_cast<size_t>(index)];
    return from >= s.base && s.size >= bytes && to - s.base <= s.size - bytes && to >= from;
  };
  if (!holds(cached, low, high)) cached = block.memory->Find(low);
  if (holds(cached, low, high)) {
    *segment = cached;
    const Segment& s = *segments[static_cast<size_t>(cached)];
    ForLanes(mask, [&](int i) { lanes.host[i] = s.host + (lanes.address[i] - s.base); });
    return mask;
  }
  // Several segments, or lanes outside of them.
  *segment = -1;
  cached = -1;
  ForLanes(mask, [&](int i) {
    const int index = block.memory->Find(lanes.address[i]);
    if (!holds(index, lanes.address[i], lanes.address[i])) {
      ReportOutside(warp, i, lanes.address[i], bytes, index);
      mask &= ~(1u << i);
      return;
    }
    const Segment& s = *segments[static_cast<size_t>(index)];
    lanes.host[i] = s.host + (lanes.address[i] - s.base);
  });
  return mask;
}

uint32_t ResolveShared(Warp& warp, Lanes32& lanes, uint32_t mask, uint32_t bytes) {
  uint8_t* const shared = warp.block->shared;
  return ResolveOffsets(warp, lanes, mask, bytes, warp.block->shared_bytes, "shared",
                        [&](int, uint64_t offset) { return shared + offset; });
}

uint32_t ResolveLocal(Warp& warp, Lanes32& lanes, uint32_t mask, uint32_t bytes) {
  const uint64_t size = warp.block->local_bytes;
  return ResolveOffsets(warp, lanes, mask, bytes, size, "local", [&](int lane, uint64_t offset) {
    return warp.local + static_cast<uint64_t>(lane) * size + offset;
  });
}

uint32_t ResolveConst(Warp& warp, Lanes32& lanes, uint32_t mask, uint32_t bytes, bool parameters) {
  const Block& block = *warp.block;
  const uint8_t* data = parameters ? block.arguments : block.const_bank->data();
  const uint64_t size = parameters ? block.argument_bytes : block.const_bank->size();
  return ResolveOffsets(warp, lanes, mask, bytes, size, parameters ? "parameter" : "constant",
                        [&](int, uint64_t offset) { return const_cast<uint8_t*>(data) + offset; });
}

void NoteGlobal(Warp& warp, const Lanes32& lanes, uint32_t mask, uint32_t bytes, int segment,
                AccessKind kind) {
  Block& block = *warp.block;
  if (mask == 0) return;
  const bool stores = kind == AccessKind::kStore || kind == AccessKind::kAtomic;
  if (stores) {
    if (segment >= 0) {
      block.stored[static_cast<size_t>(segment)] = 1;
    } else {
      ForLanes(mask,
               [&](int i) { block.stored[static_cast<size_t>(block.memory->Find(lanes.address[i]))] = 1; });
    }
  }
  if (!block.count && !block.check) return;
  SectorList list;
  ListSectors(lanes.address, mask, bytes, list);
  if (block.count) {
    const RequestCounters& counters = kGlobalCounters[static_cast<size_t>(kind)];
    ++block.counters[counters.requests];
    if (counters.bytes != Counter::kCount) {
      block.counters[counters.bytes] += static_cast<uint64_t>(std::popcount(mask)) * bytes;
    }
    block.counters[counters.first] += list.count;
    if (!block.traffic.empty()) block.traffic[warp.pc].sectors += list.count;
  }
  if (segment >= 0) {
    NoteSegment(warp, lanes, mask, bytes, segment, kind, list);
    return;
  }
  while (mask != 0) {  // one segment after the other
    const int index = block.memory->Find(lanes.address[std::countr_zero(mask)]);
    uint32_t part = 0;
    ForLanes(mask, [&](int i) { part |= block.memory->Find(lanes.address[i]) == index ? 1u << i : 0u; });
    ListSectors(lanes.address, part, bytes, list);
    NoteSegment(warp, lanes, part, bytes, index, kind, list);
    mask &= ~part;
  }
}

void NoteShared(Warp& warp, const Lanes32& lanes, uint32_t mask, uint32_t bytes, AccessKind kind) {
  Block& block = *warp.block;
  if (mask == 0) return;
  if (block.count) {
    uint32_t address[kWarpSize];
    for (int i = 0; i < kWarpSize; ++i) address[i] = static_cast<uint32_t>(lanes.address[i]);
    const RequestCounters& counters = kSharedCounters[static_cast<size_t>(kind)];
    const Wavefronts wavefronts = kind == AccessKind::kAtomic
                                      ? Wavefronts{CountAtomicWavefronts(address, mask, bytes), 0}
                                      : CountWavefronts(address, mask, bytes);
    if (counters.requests != Counter::kCount) ++block.counters[counters.requests];
    if (counters.bytes != Counter::kCount) {
      block.counters[counters.bytes] += static_cast<uint64_t>(std::popcount(mask)) * bytes;
    }
    block.counters[counters.first] += wavefronts.actual;
    if (counters.second != Counter::kCount) block.counters[counters.second] += wavefronts.ideal;
    if (!block.traffic.empty()) block.traffic[warp.pc].wavefronts += wavefronts.actual;
  }
  if (!block.check) return;
  switch (kind) {
    case AccessKind::kLoad:
      ForLanes(mask,
               [&](int i) { block.shadow.Read(warp, i, static_cast<uint32_t>(lanes.address[i]), bytes); });
      return;
    case AccessKind::kStore:
      ForLanes(mask,
               [&](int i) { block.shadow.Write(warp, i, static_cast<uint32_t>(lanes.address[i]), bytes); });
      return;
    case AccessKind::kAtomic:
      ForLanes(mask,
               [&](int i) { block.shadow.Atomic(warp, i, static_cast<uint32_t>(lanes.address[i]), bytes); });
      return;
    case AccessKind::kCopy:
      ForLanes(mask, [&](int i) {
        block.shadow.BeginCopy(warp, i, static_cast<uint32_t>(lanes.address[i]), bytes);
      });
      return;
  }
}

SpaceMasks SplitGeneric(Lanes32& lanes, uint32_t mask) {
  SpaceMasks masks;
  ForLanes(mask, [&](int i) {
    uint64_t& a = lanes.address[i];
    const uint32_t bit = 1u << i;
    const auto take = [&](uint64_t window, uint32_t& into) {
      if (a - window >= kWindowBytes) return false;
      a -= window;
      into |= bit;
      return true;
    };
    if (take(kSharedWindow, masks.shared) || take(kLocalWindow, masks.local) ||
        take(kConstWindow, masks.constant) || take(kParamWindow, masks.parameter)) {
      return;
    }
    masks.global |= bit;
  });
  return masks;
}

}  // namespace vqllm::ptx
