#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace vqllm {

/// What a run of a plan's kernels asks of the memory system, as a profiler counts it. Names and meanings are
/// those of the interpreter's counters (runtime/ptx/counters.cc), so that counted and predicted values stand
/// side by side; a test compares them.
enum class Metric : uint8_t {
  kGlobalLoadRequests,
  kGlobalLoadSectors,
  kGlobalStoreRequests,
  kGlobalStoreSectors,
  kLoadSectorsPerBlock,
  kStoreSectorsPerBlock,
  kLoadSectorsPerLaunch,
  kStoreSectorsPerLaunch,
  kSharedLoadRequests,
  kSharedLoadWavefronts,
  kSharedLoadWavefrontsIdeal,
  kSharedStoreRequests,
  kSharedStoreWavefronts,
  kSharedStoreWavefrontsIdeal,
  kMatrixLoadRequests,
  kMatrixLoadWavefronts,
  kMatrixLoadWavefrontsIdeal,
  kAsyncCopyRequests,
  kAsyncCopySectors,
  kAsyncCopyWavefronts,
  kBarriers,
  kTensorInstructions,
  kTensorFlops,
  kBlocks,
  kCount,
};
/// As the interpreter's report calls it.
std::string_view NameOf(Metric metric);

constexpr int kSectorBytes = 32;

/// The addresses of one warp request: a byte offset for every lane that takes part.
struct WarpAccess {
  std::array<int64_t, 32> at{};
  uint32_t mask = 0;

  /// `at_lane(lane)`: the lane's offset, negative where it takes no part.
  template <typename AtLane>
  static WarpAccess Of(AtLane&& at_lane) {
    WarpAccess access;
    for (int lane = 0; lane < 32; ++lane) {
      const int64_t at = at_lane(lane);
      if (at < 0) continue;
      access.at[static_cast<size_t>(lane)] = at;
      access.mask |= 1u << lane;
    }
    return access;
  }
};

/// A loop round a request: `count` turns, all lanes `stride` bytes further at each.
struct Loop {
  int64_t count = 1;
  int64_t stride = 0;
};

/// Bytes [at, at + bytes).
struct ByteRange {
  int64_t at = 0;
  int64_t bytes = 0;
};

/// Passes over the 32 banks: up to four bytes a lane as many as the most distinct words in one bank; with 8
/// or 16 bytes the halves or quarters of a warp go one after another.
struct BankPasses {
  int actual = 0;
  int ideal = 0;
};
BankPasses PassesOf(const WarpAccess& access, int bytes);

/// Predicted counts. Values are expectations: whole numbers but where random codes decide.
class Traffic {
 public:
  double& operator[](Metric metric) { return values_[static_cast<size_t>(metric)]; }
  double operator[](Metric metric) const { return values_[static_cast<size_t>(metric)]; }
  /// 128-byte lines that global requests touch: passes through the tags of L1. No profiler counter of ours.
  double global_lines = 0;

  /// A request of `bytes` a lane inside `loops`, the offsets relative to an allocation (256-byte aligned).
  /// Nothing where no lane takes part.
  void GlobalLoad(const WarpAccess& access, int bytes, std::initializer_list<Loop> loops);
  void GlobalStore(const WarpAccess& access, int bytes, std::initializer_list<Loop> loops);
  /// A request to shared memory, `times` times. A shift of all lanes by whole accesses changes nothing.
  void SharedLoad(const WarpAccess& access, int bytes, double times);
  void SharedStore(const WarpAccess& access, int bytes, double times);
  /// ldmatrix of `matrices` 8x8 matrices: lane i gives the address of row i % 8 of matrix i / 8.
  void MatrixLoad(const WarpAccess& access, int matrices, double times);
  /// cp.async: the lanes of `from` read global memory, the others of the warp write zeros.
  void AsyncCopy(const WarpAccess& from, int bytes, std::initializer_list<Loop> loops);
  /// And what the same instructions write to shared memory.
  void AsyncWrite(const WarpAccess& to, int bytes, double times);

  /// Adds the distinct sectors of the ranges (ascending) to `metric`, for each of the blocks that `loops`
  /// count and shift.
  void Touch(Metric metric, std::span<const ByteRange> ranges, std::initializer_list<Loop> loops);

  Traffic& operator+=(const Traffic& other);
  /// As `times` of the other.
  void AddTimes(const Traffic& other, double times);

 private:
  void Global(Metric requests, Metric sectors, const WarpAccess& access, int bytes,
              std::initializer_list<Loop> loops);
  void Shared(Metric requests, const WarpAccess& access, int bytes, double times);

  std::array<double, static_cast<size_t>(Metric::kCount)> values_{};
};

/// Turns of all loops together.
int64_t TurnsOf(std::initializer_list<Loop> loops);

}  // namespace vqllm
