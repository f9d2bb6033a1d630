#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace vqllm::ptx {

/// What an instruction keeps busy.
enum class InstructionClass : uint8_t {
  kInteger,
  kFloat32,
  kHalf,
  kFloat64,
  kSpecialFunction,
  kConvert,
  kMove,
  kCompare,
  kLoadGlobal,
  kStoreGlobal,
  kLoadShared,
  kStoreShared,
  kLoadLocal,
  kStoreLocal,
  kLoadParam,
  kAtomic,
  kShuffle,
  kVote,
  kTensor,
  kMatrixLoad,
  kAsyncCopy,
  kBarrier,
  kBranch,
  kOther,
  kCount,
};
std::string_view ClassName(InstructionClass cls);

/// Everything a launch counts. The table in counters.cc says what each is and what Nsight Compute calls it.
enum class Counter : uint8_t {
  kWarpInstructions,
  kThreadInstructions,
  kGlobalLoadRequests,
  kGlobalLoadBytes,
  kGlobalLoadSectors,
  kGlobalStoreRequests,
  kGlobalStoreBytes,
  kGlobalStoreSectors,
  kGlobalLoadSectorsPerBlock,
  kGlobalStoreSectorsPerBlock,
  kGlobalLoadSectorsPerLaunch,
  kGlobalStoreSectorsPerLaunch,
  kGlobalAtomicRequests,
  kGlobalAtomicSectors,
  kLocalLoadRequests,
  kLocalStoreRequests,
  kSharedLoadRequests,
  kSharedLoadBytes,
  kSharedLoadWavefronts,
  kSharedLoadWavefrontsIdeal,
  kSharedStoreRequests,
  kSharedStoreBytes,
  kSharedStoreWavefronts,
  kSharedStoreWavefrontsIdeal,
  kSharedAtomicRequests,
  kSharedAtomicWavefronts,
  kMatrixLoadRequests,
  kMatrixLoadWavefronts,
  kMatrixLoadWavefrontsIdeal,
  kAsyncCopyRequests,
  kAsyncCopyBytes,
  kAsyncCopySectors,
  kAsyncCopyWavefronts,
  kBranches,
  kDivergentBranches,
  kBarriers,
  kTensorInstructions,
  kTensorFlops,
  kBlocks,
  kSharedBytesPerBlock,  ///< not a sum: of one block
  kCount,
};

struct CounterInfo {
  Counter counter;
  std::string_view name;     ///< ours, in words
  std::string_view nsight;   ///< metric of Nsight Compute, empty where it has none
  std::string_view meaning;  ///< one line
};
const CounterInfo& Describe(Counter counter);

/// The counts of a launch, or of a part of one.
class Counters {
 public:
  uint64_t& operator[](Counter counter) { return values_[static_cast<size_t>(counter)]; }
  uint64_t operator[](Counter counter) const { return values_[static_cast<size_t>(counter)]; }
  /// Warp instructions of a class.
  uint64_t& Warp(InstructionClass cls) { return warp_[static_cast<size_t>(cls)]; }
  uint64_t Warp(InstructionClass cls) const { return warp_[static_cast<size_t>(cls)]; }
  /// Thread instructions (active lanes) of a class.
  uint64_t& Thread(InstructionClass cls) { return thread_[static_cast<size_t>(cls)]; }
  uint64_t Thread(InstructionClass cls) const { return thread_[static_cast<size_t>(cls)]; }

  Counters& operator+=(const Counters& other);
  bool operator==(const Counters&) const = default;

 private:
  std::array<uint64_t, static_cast<size_t>(Counter::kCount)> values_ = {};
  std::array<uint64_t, static_cast<size_t>(InstructionClass::kCount)> warp_ = {};
  std::array<uint64_t, static_cast<size_t>(InstructionClass::kCount)> thread_ = {};
};

}  // namespace vqllm::ptx
