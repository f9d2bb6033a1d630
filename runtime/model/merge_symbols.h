#pragma once

#include <cstdint>
#include <queue>
#include <string_view>
#include <vector>

namespace vqllm {

/// A piece of a word on its way to becoming a token. Symbols of a word are a list in one array: a merge keeps
/// the left one and leaves the right one with size 0.
struct Symbol {
  int32_t id;  ///< -1: no token of the vocabulary
  uint32_t begin;
  uint32_t size;  ///< bytes
  int32_t previous;
  int32_t next;
};

/// What two neighbours may become. Lower priorities go first, then the leftmost.
struct Merge {
  double priority;
  int32_t id;  ///< -1: they do not merge
};

/// Joins neighbouring symbols in the order of their priorities until none merges any more: O(n log n) in the
/// number of symbols. `find(left, right)` says what two neighbours become.
template <typename Find>
void MergeSymbols(std::vector<Symbol>& symbols, Find find) {
  struct Candidate {
    double priority;
    int32_t left;
    int32_t right;
    int32_t id;
    uint32_t size;  // of both together: tells a candidate whose symbols have changed
    bool operator<(const Candidate& other) const {
      return priority != other.priority ? priority > other.priority : left > other.left;
    }
  };
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const Symbol& a = symbols[static_cast<size_t>(left)];
    const Symbol& b = symbols[static_cast<size_t>(right)];
    const Merge merge = find(a, b);
    if (merge.id >= 0) queue.push({merge.priority, left, right, merge.id, a.size + b.size});
  };
  for (size_t i = 1; i < symbols.size(); ++i) consider(static_cast<int32_t>(i - 1), static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(top.left)];
    Symbol& right = symbols[static_cast<size_t>(top.right)];
    if (left.size == 0 || right.size == 0 || left.next != top.right || left.size + right.size != top.size)
      continue;
    left.id = top.id;
    left.size = top.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.left;
    consider(left.previous, top.left);
    consider(top.left, left.next);
  }
}

}  // namespace vqllm
