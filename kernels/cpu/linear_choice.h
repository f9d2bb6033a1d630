#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/linear_kernel.h"

// Which kernel serves a matrix. The limits are data; first estimates: no quiet machine has measured the
// crossovers yet.
namespace vqllm::cpu {

inline constexpr int64_t kEveryM = int64_t{1} << 40;

// The largest m that the fused kernel serves; above it tiles are dequantised and multiplied by gemm.h.
inline constexpr int64_t kDenseFusedMaxM = 8;
inline constexpr int64_t kIntExactFusedMaxM = 8;
inline constexpr int64_t kInt8FusedMaxM = kEveryM;
inline constexpr int64_t kTableFusedMaxM = 8;
inline constexpr int64_t kTables8FusedMaxM = kEveryM;

// Padding that a layout may add to the codes before the next kernel in the table of candidates is taken.
inline constexpr double kMaxPadding = 1.25;

/// Prepares the stored matrix W' of a tensor, its rotation, permutation and affine left aside, with the first
/// kernel of the table of candidates that serves it on this machine.
std::unique_ptr<StoredLinear> PrepareStored(const Tensor& weights, std::vector<float> bias,
                                            const LinearOptions& options);

}  // namespace vqllm::cpu
