#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ptx/instruction.h"

namespace vqllm::ptx {

/// Basic blocks of one function, whose code begins at instruction `base` of the program.
struct FlowGraph {
  uint32_t base = 0;
  uint32_t size = 0;               ///< instructions
  std::vector<uint32_t> begin;     ///< first instruction of each block, relative; one more: `size`
  std::vector<uint32_t> block_of;  ///< of each instruction
  std::vector<std::vector<uint32_t>> successors;    ///< the block number `blocks()` is the exit
  std::vector<std::vector<uint32_t>> predecessors;  ///< of each block and of the exit

  uint32_t blocks() const { return static_cast<uint32_t>(begin.size()) - 1; }
};

FlowGraph BuildFlowGraph(std::span<const Instruction> code, uint32_t base,
                         const std::vector<std::vector<uint32_t>>& branch_lists);

/// The immediate post-dominator of every block; blocks() stands for the exit, also where none is reached.
std::vector<uint32_t> PostDominators(const FlowGraph& graph);

}  // namespace vqllm::ptx
