#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/ptx/hazard_log.h"
#include "runtime/ptx/interpreter.h"
#include "runtime/ptx/program.h"
#include "runtime/ptx/shared_shadow.h"

/// The state that handlers work on. Internal.
namespace vqllm::ptx {

struct Block;
class GlobalShadow;

/// Lanes that run together until they meet the others at `reconverge`.
struct StackEntry {
  uint32_t pc = 0;
  uint32_t reconverge = 0;
  uint32_t mask = 0;
  uint32_t depth = 0;  ///< of calls
};

/// A cp.async that has not been waited for: its bytes move at the wait, so a missing wait shows in the values
/// too.
struct PendingCopy {
  int lane = 0;
  uint32_t dest = 0;  ///< in shared memory
  const uint8_t* source = nullptr;
  uint32_t bytes = 0;
  uint32_t source_bytes = 0;  ///< the rest is zero
  uint32_t group = 0;
};

struct Warp {
  char* bases[2] = {};  ///< registers; constants less one byte (see Place)
  uint32_t mask = 0;    ///< lanes that execute the instruction at hand
  uint32_t live = 0;    ///< lanes that have not exited
  uint32_t pc = 0;
  uint32_t id = 0;
  uint32_t sync_step = 1;  ///< counts the __syncwarp
  Block* block = nullptr;
  std::vector<StackEntry> stack;
  std::vector<int> calls;  ///< open calls: index of the CallSite
  std::vector<PendingCopy> copies;
  uint32_t copy_group[kWarpSize] = {};
  uint32_t carry = 0;        ///< the condition code of add.cc, one bit a lane
  uint8_t* local = nullptr;  ///< lane l has bytes [l n, (l + 1) n)
  bool done = false;
  bool waits = false;  ///< at a barrier
  uint32_t barrier = 0;

  template <typename T>
  const T* Read(Place place) const {
    return reinterpret_cast<const T*>(bases[place & 1] + place);
  }
  template <typename T>
  T* Write(Place place) const {
    return reinterpret_cast<T*>(bases[0] + place);
  }
  uint32_t Predicate(Place place) const { return *Read<uint32_t>(place); }
  void SetPredicate(Place place, uint32_t value) const {
    uint32_t* out = Write<uint32_t>(place);
    *out = (*out & ~mask) | (value & mask);
  }
};

/// Memory traffic of one instruction, for LaunchOptions::lines.
struct LineTraffic {
  uint64_t sectors = 0;
  uint64_t wavefronts = 0;
};

/// One worker: it runs block after block with the same buffers.
struct Block {
  const Program* program = nullptr;
  const ProgramFunction* kernel = nullptr;
  const Memory* memory = nullptr;
  const LaunchOptions* options = nullptr;
  bool count = false;
  bool check = false;
  bool check_global = false;  ///< uninitialised global reads
  const uint8_t* arguments = nullptr;
  uint32_t argument_bytes = 0;
  const std::vector<uint8_t>* const_bank = nullptr;
  uint32_t shared_bytes = 0;
  uint32_t dynamic_shared = 0;
  uint32_t local_bytes = 0;  ///< of a thread
  uint8_t* shared = nullptr;
  SharedShadow shadow;
  GlobalShadow* global = nullptr;
  std::vector<int> segment_cache;  ///< by instruction: the segment of its last access
  std::vector<uint8_t> stored;     ///< by segment: this worker wrote to it
  std::vector<LineTraffic> traffic;
  Counters counters;
  HazardLog hazards;
  uint64_t index = 0;     ///< linear block index
  uint64_t executed = 0;  ///< warp instructions of this block
  bool failed = false;
  std::vector<Warp> warps;

  __attribute__((cold, noinline)) void Report(HazardKind kind, const Warp& warp, int lane, uint64_t address,
                                              std::string_view detail, const AccessSite& other = {}) {
    hazards.Record(kind, warp.pc, index, warp.id, lane, address, detail, other);
  }
};

}  // namespace vqllm::ptx
