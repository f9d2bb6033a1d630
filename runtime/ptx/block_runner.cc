#include "runtime/ptx/block_runner.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/ptx/exec.h"

namespace vqllm::ptx {
namespace {

constexpr size_t kAlign = 64;
constexpr uint32_t kSharedPadding = 64;  // reads of a masked-off lane never fault

uint8_t* Aligned(std::vector<uint8_t>& buffer) {
  const uintptr_t raw = reinterpret_cast<uintptr_t>(buffer.data());
  return buffer.data() + ((raw + kAlign - 1) / kAlign * kAlign - raw);
}

}  // namespace

BlockRunner::BlockRunner(const LaunchContext& launch)
    : launch_(launch), global_(*launch.shadow, *launch.memory, launch.blocks()), barriers_(16) {
  const ProgramFunction& kernel = *launch.kernel;
  const size_t instructions = launch.program->code.size();
  block_.program = launch.program;
  block_.kernel = &kernel;
  block_.memory = launch.memory;
  block_.options = launch.options;
  block_.count = launch.options->counters;
  block_.check = launch.options->hazards;
  block_.check_global = launch.options->hazards && launch.options->uninitialised_global;
  block_.arguments = launch.arguments.data();
  block_.argument_bytes = kernel.parameter_bytes;
  block_.const_bank = &launch.instance->const_bank;
  block_.shared_bytes = launch.shared_bytes;
  block_.dynamic_shared = launch.dynamic_shared;
  block_.local_bytes = kernel.thread_local_bytes;
  block_.global = &global_;
  block_.segment_cache.assign(instructions, -1);
  block_.stored.assign(launch.memory->segments().size(), 0);
  if (block_.count && launch.options->lines) block_.traffic.resize(instructions);
  shared_.resize(launch.shared_bytes + kSharedPadding + kAlign);
  block_.shared = Aligned(shared_);
  if (block_.check) block_.shadow.Resize(launch.shared_bytes);
  const uint32_t warps = (launch.threads_per_block() + kWarpSize - 1) / kWarpSize;
  const size_t register_bytes = (kernel.warp_registers + kAlign - 1) / kAlign * kAlign;
  const size_t local_bytes = size_t{block_.local_bytes} * kWarpSize;
  registers_.resize(register_bytes * warps + kAlign);
  local_.resize(local_bytes * warps + kAlign);
  block_.warps.resize(warps);
  for (uint32_t w = 0; w < warps; ++w) {
    Warp& warp = block_.warps[w];
    warp.bases[0] = reinterpret_cast<char*>(Aligned(registers_)) + register_bytes * w;
    warp.bases[1] = launch.constants_begin - 1;
    warp.local = Aligned(local_) + local_bytes * w;
    warp.block = &block_;
    warp.id = w;
  }
  warp_counts_.assign(instructions, 0);
  thread_counts_.assign(instructions, 0);
}

void BlockRunner::SetSpecials(Warp& warp, uint64_t index) {
  const Dim3& n = launch_.threads;
  const Dim3& grid = launch_.grid;
  for (const int f : launch_.kernel->reachable) {
    for (const auto& [special, place] : launch_.program->functions[static_cast<size_t>(f)].specials) {
      uint32_t* out = warp.Write<uint32_t>(place);
      for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
        const uint32_t thread = warp.id * kWarpSize + lane;
        uint32_t value = 0;
        switch (special) {
          case Special::kTidX:
            value = thread % n.x;
            break;
          case Special::kTidY:
            value = thread / n.x % n.y;
            break;
          case Special::kTidZ:
            value = thread / n.x / n.y;
            break;
          case Special::kNtidX:
            value = n.x;
            break;
          case Special::kNtidY:
            value = n.y;
            break;
          case Special::kNtidZ:
            value = n.z;
            break;
          case Special::kCtaidX:
            value = static_cast<uint32_t>(index % grid.x);
            break;
          case Special::kCtaidY:
            value = static_cast<uint32_t>(index / grid.x % grid.y);
            break;
          case Special::kCtaidZ:
            value = static_cast<uint32_t>(index / grid.x / grid.y);
            break;
          case Special::kNctaidX:
            value = grid.x;
            break;
          case Special::kNctaidY:
            value = grid.y;
            break;
          case Special::kNctaidZ:
            value = grid.z;
            break;
          case Special::kLaneid:
            value = lane;
            break;
          case Special::kWarpid:
            value = warp.id;
            break;
          case Special::kNwarpid:
            value = static_cast<uint32_t>(block_.warps.size());
            break;
          case Special::kNsmid:
            value = 1;
            break;
          case Special::kLanemaskEq:
            value = 1u << lane;
            break;
          case Special::kLanemaskLt:
            value = (1u << lane) - 1;
            break;
          case Special::kLanemaskLe:
            value = (2u << lane) - 1;
            break;
          case Special::kLanemaskGt:
            value = ~((2u << lane) - 1);
            break;
          case Special::kLanemaskGe:
            value = ~((1u << lane) - 1);
            break;
          case Special::kDynamicSmemSize:
            value = launch_.dynamic_shared;
            break;
          case Special::kTotalSmemSize:
            value = launch_.shared_bytes;
            break;
          case Special::kClusterOne:
            value = 1;
            break;
          default:
            break;  // SM 0, grid 0, cluster of one block
        }
        out[lane] = value;
      }
    }
  }
}

void BlockRunner::Begin(uint64_t index) {
  const uint32_t threads = launch_.threads_per_block();
  block_.index = index;
  block_.executed = 0;
  block_.failed = false;
  global_.BeginBlock(index);
  // Shared and local memory start as NaN so that what was never written shows, and every run is the same.
  std::memset(block_.shared, 0xff, launch_.shared_bytes);
  std::ranges::fill(local_, uint8_t{0xff});
  if (block_.check) block_.shadow.BeginBlock();
  for (Barrier& barrier : barriers_) barrier = {};
  for (Warp& warp : block_.warps) {
    const uint32_t left = threads - warp.id * kWarpSize;
    warp.live = left >= kWarpSize ? kAllLanes : (1u << left) - 1;
    warp.stack.assign(1, {launch_.kernel->begin, launch_.kernel->end, warp.live, 0});
    warp.calls.clear();
    warp.copies.clear();
    std::ranges::fill(warp.copy_group, 0u);
    warp.carry = 0;
    warp.sync_step = 1;
    warp.done = warp.waits = false;
    SetSpecials(warp, index);
  }
}

void BlockRunner::GiveUp(HazardKind kind, Warp& warp, std::string_view detail) {
  block_.Report(kind, warp, FirstLane(warp.live), 0, detail);
  block_.failed = true;
}

bool BlockRunner::RunBranch(Warp& warp, const Instruction& instruction, uint32_t active, uint32_t taken) {
  if (block_.count) ++block_.counters[Counter::kBranches];
  StackEntry& top = warp.stack.back();
  const uint32_t stays = active & ~taken;
  if (stays == 0 || taken == 0) {
    top.pc = taken != 0 ? instruction.target : warp.pc + 1;
    return true;
  }
  if (block_.count) ++block_.counters[Counter::kDivergentBranches];
  const uint32_t meet = instruction.reconverge;
  const uint32_t depth = top.depth;
  top.pc = meet;
  if (meet == top.reconverge) warp.stack.pop_back();
  if (warp.pc + 1 != meet) warp.stack.push_back({warp.pc + 1, meet, stays, depth});
  if (instruction.target != meet) warp.stack.push_back({instruction.target, meet, taken, depth});
  return false;
}

void BlockRunner::RunBranchIndexed(Warp& warp, const Instruction& instruction, uint32_t active,
                                   uint32_t taken) {
  if (block_.count) ++block_.counters[Counter::kBranches];
  const std::vector<uint32_t>& targets = launch_.program->branch_lists[instruction.index];
  const uint32_t* index = warp.Read<uint32_t>(instruction.source[0]);
  const uint32_t meet = instruction.reconverge;
  const uint32_t depth = warp.stack.back().depth;
  warp.stack.back().pc = meet;
  if (meet == warp.stack.back().reconverge) warp.stack.pop_back();
  uint32_t groups = 0;
  if (const uint32_t stays = active & ~taken; stays != 0) {
    warp.stack.push_back({warp.pc + 1, meet, stays, depth});
    ++groups;
  }
  while (taken != 0) {
    const int first = std::countr_zero(taken);
    uint32_t same = 0;
    ForLanes(taken, [&](int i) { same |= index[i] == index[first] ? 1u << i : 0u; });
    taken &= ~same;
    if (index[first] >= targets.size()) {
      block_.Report(HazardKind::kBadBranch, warp, first, index[first], "");
      block_.failed = true;
      return;
    }
    ++groups;
    if (targets[index[first]] != meet) warp.stack.push_back({targets[index[first]], meet, same, depth});
  }
  if (groups > 1 && block_.count) ++block_.counters[Counter::kDivergentBranches];
}

void BlockRunner::RunCall(Warp& warp, const Instruction& instruction, uint32_t taken) {
  StackEntry& top = warp.stack.back();
  const uint32_t depth = top.depth + 1;
  top.pc = warp.pc + 1;
  if (taken == 0) return;
  const CallSite& site = launch_.program->calls[instruction.index];
  const size_t stride = block_.local_bytes;
  for (const CallCopy& copy : site.arguments) {
    ForLanes(taken, [&](int i) {
      uint8_t* mine = warp.local + static_cast<size_t>(i) * stride;
      std::memcpy(mine + copy.to, mine + copy.from, copy.bytes);
    });
  }
  const ProgramFunction& callee = launch_.program->functions[static_cast<size_t>(site.callee)];
  warp.calls.resize(depth - 1);
  warp.calls.push_back(static_cast<int>(instruction.index));
  warp.stack.push_back({callee.begin, callee.end, taken, depth});
}

void BlockRunner::RunReturn(Warp& warp, const Instruction& instruction, uint32_t taken) {
  const uint32_t depth = warp.stack.back().depth;
  if (depth == 0) {  // of the kernel
    warp.stack.back().pc = warp.pc + 1;
    RunExit(warp, taken);
    return;
  }
  const CallSite& site = launch_.program->calls[static_cast<size_t>(warp.calls[depth - 1])];
  const size_t stride = block_.local_bytes;
  for (const CallCopy& copy : site.results) {
    ForLanes(taken, [&](int i) {
      uint8_t* mine = warp.local + static_cast<size_t>(i) * stride;
      std::memcpy(mine + copy.to, mine + copy.from, copy.bytes);
    });
  }
  warp.stack.back().pc = warp.pc + 1;
  // The lanes leave every path of this call and wait below for those that are still in it.
  for (StackEntry& entry : warp.stack) {
    if (entry.depth == depth) entry.mask &= ~taken;
  }
  (void)instruction;
}

void BlockRunner::RunExit(Warp& warp, uint32_t lanes) {
  warp.live &= ~lanes;
  for (StackEntry& entry : warp.stack) entry.mask &= ~lanes;
}

template <bool kCount>
void BlockRunner::RunWarp(Warp& warp) {
  const Instruction* const code = launch_.program->code.data();
  uint64_t* const warp_counts = warp_counts_.data();
  uint64_t* const thread_counts = thread_counts_.data();
  const uint64_t budget = launch_.options->instruction_budget;
  while (!block_.failed) {
    while (!warp.stack.empty() &&
           (warp.stack.back().mask == 0 || warp.stack.back().pc == warp.stack.back().reconverge)) {
      warp.stack.pop_back();
    }
    if (warp.stack.empty()) {
      warp.done = true;
      return;
    }
    const uint32_t active = warp.stack.back().mask;
    const uint32_t meet = warp.stack.back().reconverge;
    uint32_t pc = warp.stack.back().pc;
    bool straight = true;
    while (straight) {
      if (pc == meet) {
        warp.stack.back().pc = pc;
        break;
      }
      const Instruction& instruction = code[pc];
      uint32_t taken = active;
      if (instruction.guard != 0) taken &= warp.Predicate(instruction.guard) ^ instruction.guard_xor;
      if constexpr (kCount) {
        ++warp_counts[pc];
        thread_counts[pc] += static_cast<uint64_t>(std::popcount(taken));
      }
      ++block_.executed;
      warp.pc = pc;
      if (instruction.flow == Flow::kNone) [[likely]] {
        if (taken != 0) {
          warp.mask = taken;
          instruction.handler(warp, instruction);
        }
        ++pc;
        continue;
      }
      warp.stack.back().pc = pc;
      straight = false;
      switch (instruction.flow) {
        case Flow::kBranch:
          straight = RunBranch(warp, instruction, active, taken);
          if (straight) pc = warp.stack.back().pc;
          if (block_.executed > budget) {
            GiveUp(HazardKind::kEndlessLoop, warp, "the instruction budget of the block is used up");
            return;
          }
          break;
        case Flow::kBranchIndexed:
          RunBranchIndexed(warp, instruction, active, taken);
          if (block_.executed > budget)
            GiveUp(HazardKind::kEndlessLoop, warp, "the instruction budget is used up");
          break;
        case Flow::kCall:
          RunCall(warp, instruction, taken);
          break;
        case Flow::kReturn:
          RunReturn(warp, instruction, taken);
          break;
        case Flow::kExit:
          warp.stack.back().pc = pc + 1;
          RunExit(warp, taken);
          break;
        case Flow::kTrap:
          warp.stack.back().pc = pc + 1;
          if (taken != 0) GiveUp(HazardKind::kTrap, warp, "");
          break;
        case Flow::kBarrier:
          warp.stack.back().pc = pc + 1;
          ArriveAtBarrier(warp, instruction, active, taken);
          if (warp.waits) return;
          break;
        case Flow::kNone:
          break;
      }
    }
  }
}

void BlockRunner::Run(uint64_t index) {
  Begin(index);
  const size_t n = block_.warps.size();
  while (!block_.failed) {
    for (size_t i = 0; i < n && !block_.failed; ++i) {
      Warp& warp = block_.warps[launch_.options->reverse_warps ? n - 1 - i : i];
      if (warp.done || warp.waits) continue;
      if (block_.count) {
        RunWarp<true>(warp);
      } else {
        RunWarp<false>(warp);
      }
    }
    if (block_.failed) break;
    if (std::ranges::all_of(block_.warps, &Warp::done)) break;
    if (!ReleaseBarriers()) {
      const auto waiting = std::ranges::find_if(block_.warps, &Warp::waits);
      if (waiting != block_.warps.end()) {
        GiveUp(HazardKind::kDeadlock, *waiting, "warps wait at barriers that nobody completes");
      }
    }
  }
  executed_ += block_.executed;
  if (block_.count) ++block_.counters[Counter::kBlocks];
}

}  // namespace vqllm::ptx
