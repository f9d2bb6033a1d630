#pragma once

#include <cstdint>

#include "runtime/ptx/types.h"

namespace vqllm::ptx {

/// Passes over the 32 banks of four bytes that one shared-memory request of a warp takes. Up to four bytes a
/// lane: as many as the most distinct words that fall into one bank (lanes with one word share it). With 8
/// or 16 bytes a lane the halves or quarters of the warp go one after another. `address` has 32 entries.
struct Wavefronts {
  uint32_t actual = 0;
  uint32_t ideal = 0;
};
Wavefronts CountWavefronts(const uint32_t* address, uint32_t mask, uint32_t bytes);

/// Atomics on shared memory: lanes with the same word go one after another.
uint32_t CountAtomicWavefronts(const uint32_t* address, uint32_t mask, uint32_t bytes);

/// The distinct 32-byte sectors of one request, and which of its eight words the request touches.
struct SectorList {
  uint32_t count = 0;
  uint64_t sector[kWarpSize];  ///< address / 32
  uint8_t words[kWarpSize];
};
/// `bytes` a lane: a power of two up to 32, the addresses aligned to it.
void ListSectors(const uint64_t* address, uint32_t mask, uint32_t bytes, SectorList& list);

}  // namespace vqllm::ptx
