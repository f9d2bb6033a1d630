#include "runtime/ptx/control_flow.h"

#include <algorithm>

namespace vqllm::ptx {
namespace {

bool EndsBlock(const Instruction& instruction) {
  switch (instruction.flow) {
    case Flow::kBranch:
    case Flow::kBranchIndexed:
    case Flow::kReturn:
    case Flow::kExit:
    case Flow::kTrap:
      return true;
    default:
      return false;
  }
}

// Blocks in the order in which a walk from the exit against the edges leaves them (reverse post-order).
std::vector<uint32_t> ReverseOrder(const FlowGraph& graph) {
  const uint32_t exit = graph.blocks();
  std::vector<uint32_t> order;
  std::vector<uint8_t> seen(exit + 1, 0);
  std::vector<std::pair<uint32_t, size_t>> stack = {{exit, 0}};
  seen[exit] = 1;
  while (!stack.empty()) {
    auto& [block, next] = stack.back();
    const auto& before = graph.predecessors[block];
    if (next == before.size()) {
      order.push_back(block);
      stack.pop_back();
    } else {
      const uint32_t other = before[next++];
      if (!seen[other]) {
        seen[other] = 1;
        stack.emplace_back(other, 0);
      }
    }
  }
  std::ranges::reverse(order);
  return order;
}

}  // namespace

FlowGraph BuildFlowGraph(std::span<const Instruction> code, uint32_t base,
                         const std::vector<std::vector<uint32_t>>& branch_lists) {
  FlowGraph graph;
  graph.base = base;
  graph.size = static_cast<uint32_t>(code.size());
  std::vector<uint8_t> leader(code.size() + 1, 0);
  leader[0] = 1;
  for (size_t i = 0; i < code.size(); ++i) {
    if (!EndsBlock(code[i])) continue;
    leader[i + 1] = 1;
    if (code[i].flow == Flow::kBranch) leader[code[i].target - base] = 1;
    if (code[i].flow == Flow::kBranchIndexed) {
      for (const uint32_t target : branch_lists[code[i].index]) leader[target - base] = 1;
    }
  }
  graph.block_of.resize(code.size());
  for (uint32_t i = 0; i < graph.size; ++i) {
    if (leader[i]) graph.begin.push_back(i);
    graph.block_of[i] = static_cast<uint32_t>(graph.begin.size()) - 1;
  }
  graph.begin.push_back(graph.size);
  const uint32_t exit = graph.blocks();
  graph.successors.resize(exit);
  graph.predecessors.resize(exit + 1);
  for (uint32_t b = 0; b < exit; ++b) {
    const Instruction& last = code[graph.begin[b + 1] - 1];
    std::vector<uint32_t>& next = graph.successors[b];
    const bool falls_through = !EndsBlock(last) || last.guard != 0;
    if (last.flow == Flow::kBranch) next.push_back(graph.block_of[last.target - base]);
    if (last.flow == Flow::kBranchIndexed) {
      for (const uint32_t target : branch_lists[last.index]) next.push_back(graph.block_of[target - base]);
    }
    if (last.flow == Flow::kReturn || last.flow == Flow::kExit || last.flow == Flow::kTrap) {
      next.push_back(exit);
    }
    if (falls_through) next.push_back(b + 1);  // the last instruction is an unguarded return
    std::ranges::sort(next);
    next.erase(std::unique(next.begin(), next.end()), next.end());
    for (const uint32_t other : next) graph.predecessors[other].push_back(b);
  }
  return graph;
}

// Cooper, Harvey, Kennedy, "A Simple, Fast Dominance Algorithm", on the reversed graph.
std::vector<uint32_t> PostDominators(const FlowGraph& graph) {
  const uint32_t exit = graph.blocks();
  constexpr uint32_t kUnknown = 0xffffffffu;
  const std::vector<uint32_t> order = ReverseOrder(graph);
  std::vector<uint32_t> rank(exit + 1, kUnknown);
  for (uint32_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  std::vector<uint32_t> idom(exit + 1, kUnknown);
  idom[exit] = exit;
  const auto intersect = [&](uint32_t a, uint32_t b) {
    while (a != b) {
      while (rank[a] > rank[b]) a = idom[a];
      while (rank[b] > rank[a]) b = idom[b];
    }
    return a;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const uint32_t block : order) {
      if (block == exit) continue;
      uint32_t merged = kUnknown;
      for (const uint32_t next : graph.successors[block]) {
        if (idom[next] == kUnknown) continue;
        merged = merged == kUnknown ? next : intersect(next, merged);
      }
      if (merged != idom[block]) {
        idom[block] = merged;
        changed = true;
      }
    }
  }
  // A loop that never ends has no post-dominator: its lanes meet again only at the exit.
  for (uint32_t& block : idom) {
    if (block == kUnknown) block = exit;
  }
  idom.resize(exit);
  return idom;
}

}  // namespace vqllm::ptx
