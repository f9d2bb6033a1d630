#pragma once

#include <cstdint>

namespace vqllm::ptx {

/// What a barrier instruction does, packed into Instruction::immediate.
struct BarrierOperation {
  enum class Kind : uint8_t { kSync, kArrive, kPopc, kAnd, kOr };
  Kind kind = Kind::kSync;
  bool has_count = false;  ///< source 1 is the number of threads

  uint32_t Pack() const { return static_cast<uint32_t>(kind) | (has_count ? 16u : 0u); }
  static BarrierOperation Unpack(uint32_t packed) {
    return {static_cast<Kind>(packed & 15), (packed & 16) != 0};
  }
};

}  // namespace vqllm::ptx
