#include "runtime/ptx/register_allocation.h"

#include <algorithm>
#include <array>
#include <bit>

namespace vqllm::ptx {
namespace {

// Above this many bits of liveness every register gets a place of its own.
constexpr uint64_t kMaxLivenessBits = uint64_t{1} << 28;

class Bits {
 public:
  explicit Bits(size_t size) : words_((size + 63) / 64, 0) {}
  bool Test(uint32_t i) const { return words_[i >> 6] >> (i & 63) & 1; }
  void Set(uint32_t i) { words_[i >> 6] |= uint64_t{1} << (i & 63); }
  void Clear(uint32_t i) { words_[i >> 6] &= ~(uint64_t{1} << (i & 63)); }
  std::vector<uint64_t>& words() { return words_; }
  const std::vector<uint64_t>& words() const { return words_; }

 private:
  std::vector<uint64_t> words_;
};

struct Interval {
  uint32_t begin = 0xffffffffu;
  uint32_t end = 0;
  void Cover(uint32_t from, uint32_t to) {
    begin = std::min(begin, from);
    end = std::max(end, to);
  }
};

// The live range of each register as one interval of instruction positions: its hull over all blocks where
// it is live. Position 2 i is before instruction i, 2 i + 1 after its reads.
std::vector<Interval> LiveIntervals(const FlowGraph& graph, std::span<const Accesses> accesses,
                                    size_t registers) {
  const uint32_t blocks = graph.blocks();
  std::vector<Bits> live_in(blocks, Bits(registers));
  std::vector<Bits> use(blocks, Bits(registers));
  std::vector<Bits> define(blocks, Bits(registers));
  for (uint32_t b = 0; b < blocks; ++b) {
    for (uint32_t i = graph.begin[b]; i < graph.begin[b + 1]; ++i) {
      for (const uint32_t r : accesses[i].reads) {
        if (!define[b].Test(r)) use[b].Set(r);
      }
      for (const uint32_t r : accesses[i].writes) {
        if (accesses[i].guarded) {
          if (!define[b].Test(r)) use[b].Set(r);
        } else if (!use[b].Test(r)) {
          define[b].Set(r);
        }
      }
    }
  }
  std::vector<Bits> live_out(blocks, Bits(registers));
  std::vector<uint32_t> work;
  std::vector<uint8_t> queued(blocks, 1);
  for (uint32_t b = 0; b < blocks; ++b) work.push_back(b);
  while (!work.empty()) {
    const uint32_t b = work.back();
    work.pop_back();
    queued[b] = 0;
    Bits& out = live_out[b];
    for (const uint32_t next : graph.successors[b]) {
      if (next == blocks) continue;
      for (size_t w = 0; w < out.words().size(); ++w) out.words()[w] |= live_in[next].words()[w];
    }
    bool changed = false;
    for (size_t w = 0; w < out.words().size(); ++w) {
      const uint64_t in = use[b].words()[w] | (out.words()[w] & ~define[b].words()[w]);
      changed |= in != live_in[b].words()[w];
      live_in[b].words()[w] = in;
    }
    if (!changed) continue;
    for (const uint32_t before : graph.predecessors[b]) {
      if (!queued[before]) {
        queued[before] = 1;
        work.push_back(before);
      }
    }
  }
  std::vector<Interval> intervals(registers);
  const auto for_each = [](const Bits& bits, auto&& body) {
    for (size_t w = 0; w < bits.words().size(); ++w) {
      for (uint64_t word = bits.words()[w]; word != 0; word &= word - 1) {
        body(static_cast<uint32_t>(w * 64 + static_cast<size_t>(std::countr_zero(word))));
      }
    }
  };
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint32_t first = 2 * graph.begin[b];
    const uint32_t last = 2 * graph.begin[b + 1];
    for_each(live_in[b], [&](uint32_t r) { intervals[r].Cover(first, first); });
    for_each(live_out[b], [&](uint32_t r) { intervals[r].Cover(last, last); });
  }
  for (uint32_t i = 0; i < graph.size; ++i) {
    for (const uint32_t r : accesses[i].reads) intervals[r].Cover(2 * i, 2 * i);
    // Handlers with several destinations may write one before they read the last source.
    const uint32_t written = accesses[i].writes.size() > 1 ? 2 * i : 2 * i + 1;
    for (const uint32_t r : accesses[i].writes) intervals[r].Cover(written, 2 * i + 1);
  }
  return intervals;
}

}  // namespace

Allocation AllocateRegisters(const FlowGraph& graph, std::span<const Accesses> accesses,
                             std::span<const uint8_t> bytes, const std::vector<uint8_t>& pinned) {
  const size_t registers = bytes.size();
  Allocation allocation;
  allocation.offset.assign(registers, 0);
  std::vector<Interval> intervals;
  if (uint64_t{graph.blocks()} * registers <= kMaxLivenessBits) {
    intervals = LiveIntervals(graph, accesses, registers);
  } else {
    intervals.assign(registers, Interval{0, 2 * graph.size});
  }
  for (size_t r = 0; r < registers; ++r) {
    if (pinned[r]) intervals[r] = {0, 2 * graph.size + 1};
  }
  std::vector<uint32_t> order;
  for (uint32_t r = 0; r < registers; ++r) {
    if (intervals[r].begin <= intervals[r].end) order.push_back(r);  // the others are never touched
  }
  std::ranges::stable_sort(order, {}, [&](uint32_t r) { return intervals[r].begin; });
  // Linear scan; each size has its own places, so a place never holds lanes of two widths.
  struct Busy {
    uint32_t end;
    uint32_t slot;
  };
  const auto later = [](const Busy& a, const Busy& b) { return a.end > b.end; };
  std::array<std::vector<Busy>, 9> busy;
  std::array<std::vector<uint32_t>, 9> free;
  std::array<uint32_t, 9> slots = {};
  for (const uint32_t r : order) {
    const uint8_t size = bytes[r];
    auto& heap = busy[size];
    while (!heap.empty() && heap.front().end < intervals[r].begin) {
      std::ranges::pop_heap(heap, later);
      free[size].push_back(heap.back().slot);
      heap.pop_back();
    }
    uint32_t slot = slots[size];
    if (free[size].empty()) {
      ++slots[size];
    } else {
      slot = free[size].back();
      free[size].pop_back();
    }
    allocation.offset[r] = slot;
    heap.push_back({intervals[r].end, slot});
    std::ranges::push_heap(heap, later);
  }
  std::array<uint32_t, 9> base = {};
  for (const uint8_t size : {uint8_t{8}, uint8_t{4}, uint8_t{2}, uint8_t{0}}) {
    base[size] = allocation.bytes;
    allocation.bytes += slots[size] * WarpBytes(size);
  }
  allocation.bytes = (allocation.bytes + 63) / 64 * 64;
  for (uint32_t r = 0; r < registers; ++r) {
    allocation.offset[r] = base[bytes[r]] + allocation.offset[r] * WarpBytes(bytes[r]);
  }
  return allocation;
}

}  // namespace vqllm::ptx
