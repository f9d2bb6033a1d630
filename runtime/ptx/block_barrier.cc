#include <bit>

#include "runtime/ptx/barrier_operation.h"
#include "runtime/ptx/block_runner.h"
#include "runtime/ptx/exec.h"

namespace vqllm::ptx {

void BlockRunner::ArriveAtBarrier(Warp& warp, const Instruction& instruction, uint32_t active,
                                  uint32_t taken) {
  if (block_.count) ++block_.counters[Counter::kBarriers];
  if (taken == 0) return;
  const BarrierOperation operation = BarrierOperation::Unpack(instruction.immediate);
  if (block_.check) {
    if (taken != active) {
      block_.Report(HazardKind::kDivergentBarrier, warp, FirstLane(active & ~taken), 0,
                    "the guard is false in some lanes");
    } else if (active != warp.live) {
      block_.Report(HazardKind::kDivergentBarrier, warp, FirstLane(warp.live & ~active), 0,
                    "some lanes of the warp are elsewhere");
    }
  }
  const int first = FirstLane(taken);
  const uint32_t id = warp.Read<uint32_t>(instruction.source[0])[first];
  if (id >= barriers_.size()) {
    GiveUp(HazardKind::kDeadlock, warp, "barrier numbers are 0 to 15");
    return;
  }
  Barrier& barrier = barriers_[id];
  if (operation.has_count) {
    const uint32_t count = warp.Read<uint32_t>(instruction.source[1])[first];
    if (count == 0 || count % kWarpSize != 0 || (barrier.expected != 0 && barrier.expected != count)) {
      GiveUp(HazardKind::kDeadlock, warp,
             "the number of threads is no multiple of 32, or two warps disagree");
      return;
    }
    barrier.expected = count;
  }
  barrier.arrived += kWarpSize;  // a warp counts whole, also one with fewer threads
  if (operation.kind == BarrierOperation::Kind::kArrive) return;
  if (operation.kind != BarrierOperation::Kind::kSync) {
    const int last = operation.has_count ? 2 : 1;
    uint32_t predicate = warp.Predicate(instruction.source[last]);
    if (instruction.negate >> last & 1) predicate = ~predicate;
    barrier.votes += static_cast<uint32_t>(std::popcount(predicate & taken));
    barrier.voters += static_cast<uint32_t>(std::popcount(taken));
  }
  warp.mask = taken;
  warp.waits = true;
  warp.barrier = id;
  barrier.waiting.push_back(&warp);
}

void BlockRunner::FinishBarrier(uint32_t id) {
  Barrier& barrier = barriers_[id];
  for (Warp* warp : barrier.waiting) {
    warp->waits = false;
    const Instruction& instruction = launch_.program->code[warp->pc];
    const BarrierOperation operation = BarrierOperation::Unpack(instruction.immediate);
    switch (operation.kind) {
      case BarrierOperation::Kind::kPopc: {
        uint32_t* out = warp->Write<uint32_t>(instruction.dest[0]);
        ForLanes(warp->mask, [&](int i) { out[i] = barrier.votes; });
        break;
      }
      case BarrierOperation::Kind::kAnd:
        warp->SetPredicate(instruction.dest[0], barrier.votes == barrier.voters ? kAllLanes : 0);
        break;
      case BarrierOperation::Kind::kOr:
        warp->SetPredicate(instruction.dest[0], barrier.votes != 0 ? kAllLanes : 0);
        break;
      default:
        break;
    }
  }
  barrier = {};
  // A barrier of a part of the block orders only that part; the model takes it for all of it, which may hide
  // a race but never invents one.
  if (block_.check) block_.shadow.Barrier();
}

// True where a barrier was complete. A warp that has exited is not waited for.
bool BlockRunner::ReleaseBarriers() {
  uint32_t alive = 0;
  for (const Warp& warp : block_.warps) alive += warp.done ? 0 : kWarpSize;
  bool released = false;
  for (uint32_t id = 0; id < barriers_.size(); ++id) {
    const Barrier& barrier = barriers_[id];
    if (barrier.waiting.empty()) continue;
    const uint32_t needed = barrier.expected != 0 ? barrier.expected : alive;
    if (barrier.arrived < needed) continue;
    FinishBarrier(id);
    released = true;
  }
  return released;
}

}  // namespace vqllm::ptx
