#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ptx/control_flow.h"

namespace vqllm::ptx {

/// What one instruction reads and writes, as virtual registers.
struct Accesses {
  std::vector<uint32_t> reads;
  std::vector<uint32_t> writes;
  bool guarded = false;  ///< a lane whose guard is false keeps the old value
};

struct Allocation {
  std::vector<uint32_t>
      offset;  ///< of each virtual register: bytes from the start of the function's registers
  uint32_t bytes = 0;
};

/// Bytes that a register takes for a warp: a mask for a predicate (bytes 0), else one value for each lane.
constexpr uint32_t WarpBytes(uint8_t register_bytes) {
  return register_bytes == 0 ? 4 : uint32_t{register_bytes} * kWarpSize;
}

/// Packs virtual registers so that those that are never live together share a place. `bytes` gives the size
/// of each (0, 2, 4, 8); the first `pinned` keep a place of their own. Liveness is that of one lane: lanes
/// that went apart write disjoint parts of a shared place.
Allocation AllocateRegisters(const FlowGraph& graph, std::span<const Accesses> accesses,
                             std::span<const uint8_t> bytes, const std::vector<uint8_t>& pinned);

}  // namespace vqllm::ptx
