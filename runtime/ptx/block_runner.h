#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/ptx/global_shadow.h"
#include "runtime/ptx/warp.h"

namespace vqllm::ptx {

/// A launch as all workers see it.
struct LaunchContext {
  const Program* program = nullptr;
  const ProgramFunction* kernel = nullptr;
  const Memory* memory = nullptr;
  const Memory::Instance* instance = nullptr;
  const LaunchOptions* options = nullptr;
  Dim3 grid;
  Dim3 threads;
  uint32_t shared_bytes = 0;
  uint32_t dynamic_shared = 0;
  std::vector<uint8_t> arguments;
  std::vector<uint8_t> constants;  ///< the values of ProgramConstants, 64-byte aligned from `constants_begin`
  char* constants_begin = nullptr;
  LaunchShadow* shadow = nullptr;

  uint64_t blocks() const { return uint64_t{grid.x} * grid.y * grid.z; }
  uint32_t threads_per_block() const { return threads.x * threads.y * threads.z; }
};

/// Runs blocks, one at a time, with buffers that it keeps.
class BlockRunner {
 public:
  explicit BlockRunner(const LaunchContext& launch);
  void Run(uint64_t index);

  const Block& block() const { return block_; }
  const std::vector<uint64_t>& warp_counts() const { return warp_counts_; }      ///< by instruction
  const std::vector<uint64_t>& thread_counts() const { return thread_counts_; }  ///< by instruction
  uint64_t executed() const { return executed_; }

 private:
  void Begin(uint64_t index);
  void SetSpecials(Warp& warp, uint64_t index);
  template <bool kCount>
  void RunWarp(Warp& warp);
  bool RunBranch(Warp& warp, const Instruction& instruction, uint32_t active, uint32_t taken);
  void RunBranchIndexed(Warp& warp, const Instruction& instruction, uint32_t active, uint32_t taken);
  void RunCall(Warp& warp, const Instruction& instruction, uint32_t taken);
  void RunReturn(Warp& warp, const Instruction& instruction, uint32_t taken);
  void RunExit(Warp& warp, uint32_t lanes);
  void ArriveAtBarrier(Warp& warp, const Instruction& instruction, uint32_t active, uint32_t taken);
  bool ReleaseBarriers();
  void FinishBarrier(uint32_t id);
  void GiveUp(HazardKind kind, Warp& warp, std::string_view detail);

  struct Barrier {
    uint32_t arrived = 0;   ///< threads
    uint32_t expected = 0;  ///< threads; 0: all that live
    uint32_t votes = 0;     ///< threads whose predicate is true
    uint32_t voters = 0;
    std::vector<Warp*> waiting;
  };

  const LaunchContext& launch_;
  Block block_;
  GlobalShadow global_;
  std::vector<uint8_t> registers_;
  std::vector<uint8_t> shared_;
  std::vector<uint8_t> local_;
  std::vector<uint64_t> warp_counts_;
  std::vector<uint64_t> thread_counts_;
  std::vector<Barrier> barriers_;
  uint64_t executed_ = 0;
};

}  // namespace vqllm::ptx
