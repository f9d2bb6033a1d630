#include "codegen/traffic.h"

#include <algorithm>
#include <bit>

#include "vq/base/check.h"

namespace vqllm {
namespace {

constexpr std::string_view kNames[] = {
    "global load requests",
    "global load sectors",
    "global store requests",
    "global store sectors",
    "global load sectors, first touch per block",
    "global store sectors, first touch per block",
    "global load sectors, first touch per launch",
    "global store sectors, first touch per launch",
    "shared load requests",
    "shared load wavefronts",
    "shared load wavefronts, ideal",
    "shared store requests",
    "shared store wavefronts",
    "shared store wavefronts, ideal",
    "ldmatrix requests",
    "ldmatrix wavefronts",
    "ldmatrix wavefronts, ideal",
    "cp.async requests",
    "cp.async sectors",
    "cp.async wavefronts",
    "barriers",
    "tensor instructions",
    "tensor operations",
    "blocks",
};
static_assert(std::size(kNames) == static_cast<size_t>(Metric::kCount));

constexpr int kLineBytes = 128;
/// How often the base of a request lies at each offset within a line: all that sectors and lines depend on.
struct Phases {
  std::array<uint8_t, kLineBytes> at;  // `count` of them
  std::array<int64_t, kLineBytes> times;
  size_t count = 0;
};

Phases PhasesOf(std::initializer_list<Loop> loops) {
  Phases phases;
  int64_t whole = 1;  // turns of loops that go by whole lines
  bool even = true;
  for (const Loop& loop : loops) {
    if (loop.stride % kLineBytes == 0 || loop.count == 1) {
      whole *= loop.count;
    } else {
      even = false;
    }
  }
  phases.at[0] = 0;
  phases.times[0] = whole;
  phases.count = 1;
  if (even) return phases;
  for (const Loop& loop : loops) {
    const int64_t step = (loop.stride % kLineBytes + kLineBytes) % kLineBytes;
    if (step == 0 || loop.count == 1) continue;
    // Strides come back to the start after `period` turns.
    const int64_t period = kLineBytes / (step & -step);
    std::array<int64_t, kLineBytes> shifted{};
    for (int64_t turn = 0; turn < std::min(period, loop.count); ++turn) {
      const int64_t turns = (loop.count - turn + period - 1) / period;
      for (size_t i = 0; i < phases.count; ++i)
        shifted[(phases.at[i] + static_cast<size_t>(turn * step)) % kLineBytes] += turns * phases.times[i];
    }
    phases.count = 0;
    for (size_t phase = 0; phase < shifted.size(); ++phase) {
      if (shifted[phase] == 0) continue;
      phases.at[phases.count] = static_cast<uint8_t>(phase);
      phases.times[phases.count++] = shifted[phase];
    }
  }
  return phases;
}

/// Distinct blocks of 2^shift bytes among the accesses, `bytes` a lane and aligned to it.
int Distinct(const WarpAccess& access, int64_t base, int shift) {
  std::array<int64_t, 32> blocks;
  size_t count = 0;
  bool ascending = true;
  for (uint32_t mask = access.mask; mask != 0; mask &= mask - 1) {
    const int64_t block = (base + access.at[static_cast<size_t>(std::countr_zero(mask))]) >> shift;
    if (count > 0 && blocks[count - 1] == block) continue;
    ascending &= count == 0 || blocks[count - 1] < block;
    blocks[count++] = block;
  }
  if (ascending) return static_cast<int>(count);
  std::sort(blocks.begin(), blocks.begin() + static_cast<int64_t>(count));
  return static_cast<int>(std::unique(blocks.begin(), blocks.begin() + static_cast<int64_t>(count)) -
                          blocks.begin());
}

/// The most distinct words of `1 << shift` bytes that fall into one of `banks` banks.
int MostInOneBank(const WarpAccess& access, uint32_t mask, int shift, int banks) {
  std::array<std::array<int64_t, 32>, 32> words;
  std::array<int, 32> load{};
  int most = 0;
  for (; mask != 0; mask &= mask - 1) {
    const int64_t word = access.at[static_cast<size_t>(std::countr_zero(mask))] >> shift;
    const size_t bank = static_cast<size_t>(word & (banks - 1));
    int& count = load[bank];
    bool known = false;
    for (int i = 0; i < count; ++i) known |= words[bank][static_cast<size_t>(i)] == word;
    if (known) continue;
    words[bank][static_cast<size_t>(count)] = word;
    most = std::max(most, ++count);
  }
  return most;
}

}  // namespace

std::string_view NameOf(Metric metric) { return kNames[static_cast<size_t>(metric)]; }

int64_t TurnsOf(std::initializer_list<Loop> loops) {
  int64_t turns = 1;
  for (const Loop& loop : loops) turns *= loop.count;
  return turns;
}

BankPasses PassesOf(const WarpAccess& access, int bytes) {
  BankPasses passes;
  if (access.mask == 0) return passes;
  if (bytes <= 4) return {MostInOneBank(access, access.mask, 2, 32), 1};
  const int lanes = kLineBytes / bytes;
  const uint32_t part_mask = (1u << lanes) - 1;
  for (int first = 0; first < 32; first += lanes) {
    const uint32_t part = access.mask & part_mask << first;
    if (part == 0) continue;
    ++passes.ideal;
    passes.actual += MostInOneBank(access, part, std::countr_zero(static_cast<unsigned>(bytes)), lanes);
  }
  return passes;
}

void Traffic::Global(Metric requests, Metric sectors, const WarpAccess& access, int bytes,
                     std::initializer_list<Loop> loops) {
  VQLLM_CHECK(std::has_single_bit(static_cast<unsigned>(bytes)) && bytes <= 16, "{}", bytes);
  if (access.mask == 0) return;
  const Phases phases = PhasesOf(loops);
  for (size_t i = 0; i < phases.count; ++i) {
    const double times = static_cast<double>(phases.times[i]);
    (*this)[requests] += times;
    (*this)[sectors] += times * Distinct(access, phases.at[i], 5);
    global_lines += times * Distinct(access, phases.at[i], 7);
  }
}

void Traffic::GlobalLoad(const WarpAccess& access, int bytes, std::initializer_list<Loop> loops) {
  Global(Metric::kGlobalLoadRequests, Metric::kGlobalLoadSectors, access, bytes, loops);
}
void Traffic::GlobalStore(const WarpAccess& access, int bytes, std::initializer_list<Loop> loops) {
  Global(Metric::kGlobalStoreRequests, Metric::kGlobalStoreSectors, access, bytes, loops);
}

void Traffic::Shared(Metric requests, const WarpAccess& access, int bytes, double times) {
  if (access.mask == 0) return;
  const BankPasses passes = PassesOf(access, bytes);
  const size_t first = static_cast<size_t>(requests);  // then wavefronts, then the ideal
  values_[first] += times;
  values_[first + 1] += times * passes.actual;
  values_[first + 2] += times * passes.ideal;
}
void Traffic::SharedLoad(const WarpAccess& access, int bytes, double times) {
  Shared(Metric::kSharedLoadRequests, access, bytes, times);
}
void Traffic::SharedStore(const WarpAccess& access, int bytes, double times) {
  Shared(Metric::kSharedStoreRequests, access, bytes, times);
}

void Traffic::MatrixLoad(const WarpAccess& access, int matrices, double times) {
  WarpAccess rows = access;
  if (matrices < 4) rows.mask &= (1u << (8 * matrices)) - 1;
  Shared(Metric::kMatrixLoadRequests, rows, 16, times);
}

void Traffic::AsyncCopy(const WarpAccess& from, int bytes, std::initializer_list<Loop> loops) {
  if (from.mask != 0) {
    Global(Metric::kAsyncCopyRequests, Metric::kAsyncCopySectors, from, bytes, loops);
  } else {
    (*this)[Metric::kAsyncCopyRequests] += static_cast<double>(TurnsOf(loops));
  }
}
void Traffic::AsyncWrite(const WarpAccess& to, int bytes, double times) {
  (*this)[Metric::kAsyncCopyWavefronts] += times * PassesOf(to, bytes).actual;
}

void Traffic::Touch(Metric metric, std::span<const ByteRange> ranges, std::initializer_list<Loop> loops) {
  const Phases phases = PhasesOf(loops);
  for (size_t i = 0; i < phases.count; ++i) {
    const int64_t phase = phases.at[i] % kSectorBytes;
    int64_t sectors = 0;
    int64_t last = -1;  // sector counted last
    for (const ByteRange& range : ranges) {
      if (range.bytes <= 0) continue;
      const int64_t begin = (phase + range.at) / kSectorBytes;
      const int64_t end = (phase + range.at + range.bytes - 1) / kSectorBytes;
      sectors += end - std::max(begin, last + 1) + 1;
      last = std::max(last, end);
    }
    (*this)[metric] += static_cast<double>(sectors * phases.times[i]);
  }
}

Traffic& Traffic::operator+=(const Traffic& other) {
  AddTimes(other, 1);
  return *this;
}

void Traffic::AddTimes(const Traffic& other, double times) {
  for (size_t i = 0; i < values_.size(); ++i) values_[i] += times * other.values_[i];
  global_lines += times * other.global_lines;
}

}  // namespace vqllm
