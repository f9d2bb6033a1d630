#pragma once

#include <cstdint>

#include "runtime/ptx/instruction.h"
#include "runtime/ptx/traffic.h"
#include "runtime/ptx/warp.h"

/// Addresses of a warp's lanes, checked and turned into pointers. Shared by loads, stores, atomics, copies
/// and matrix moves. Internal.
namespace vqllm::ptx {

/// What a memory request does, for counters and shadows.
enum class AccessKind : uint8_t { kLoad, kStore, kAtomic, kCopy };

/// The addresses of the lanes of one request and where the bytes lie in the host's memory.
struct Lanes32 {
  alignas(64) uint64_t address[kWarpSize];
  uint8_t* host[kWarpSize];
};

/// Register (or constant) plus offset for all lanes.
void LaneAddresses(const Warp& warp, Place place, bool wide, int64_t offset, uint64_t* address);

/// Each returns the lanes whose access is in bounds and aligned, fills `lanes.host` for them, reports the
/// others. `bytes` is a power of two. Shared and local addresses are offsets into their space.
uint32_t ResolveGlobal(Warp& warp, Lanes32& lanes, uint32_t mask, uint32_t bytes, int* segment);
uint32_t ResolveShared(Warp& warp, Lanes32& lanes, uint32_t mask, uint32_t bytes);
uint32_t ResolveLocal(Warp& warp, Lanes32& lanes, uint32_t mask, uint32_t bytes);
uint32_t ResolveConst(Warp& warp, Lanes32& lanes, uint32_t mask, uint32_t bytes, bool parameters);

/// Counts a request and tells the shadows, for lanes that were resolved. `segment` is what ResolveGlobal
/// found, -1 where the lanes fall into several.
void NoteGlobal(Warp& warp, const Lanes32& lanes, uint32_t mask, uint32_t bytes, int segment,
                AccessKind kind);
void NoteShared(Warp& warp, const Lanes32& lanes, uint32_t mask, uint32_t bytes, AccessKind kind);

/// Splits generic addresses by window: the masks of the lanes of each space. Window addresses become offsets.
struct SpaceMasks {
  uint32_t global = 0;
  uint32_t shared = 0;
  uint32_t local = 0;
  uint32_t constant = 0;
  uint32_t parameter = 0;
};
SpaceMasks SplitGeneric(Lanes32& lanes, uint32_t mask);

}  // namespace vqllm::ptx
