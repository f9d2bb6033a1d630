#pragma once

#include <cstdint>
#include <vector>

#include "codegen/layout.h"
#include "codegen/plan.h"
#include "vq/tensor.h"

namespace vqllm {

/// A tensor of the format with random codes, entries, scales and zero points: every code below `entries`
/// occurs with equal probability, stages shrink as residuals do. Deterministic by seed.
Tensor RandomTensor(const Format& format, int64_t rows, int64_t cols, uint64_t seed);

/// Seeded data for one run of a plan's kernels, the exact answer, and how far a correct kernel may be from
/// it.
struct ProofCase {
  Tensor tensor;
  DeviceWeights weights;          ///< repacked for plan.layout
  std::vector<uint16_t> x;        ///< [m, k] of plan.activation
  std::vector<uint16_t> bias;     ///< [n], empty where the plan has none
  std::vector<double> expected;   ///< [m, n]; dequant: [n, k]
  std::vector<double> tolerance;  ///< as expected
};

/// Activations of a proof.
enum class ProofInputs : uint8_t {
  kNormal,      ///< normally distributed
  kCancelling,  ///< +10^4 and -10^4 in turn and small noise: sums far below their terms
};

/// The tolerance follows from the arithmetic of the plan: fp16 sums of stages, fp16 scaling before an mma,
/// the length of the fp32 chains, the rounding of the output; each times the sum of magnitudes that it acts
/// on.
ProofCase MakeProofCase(const Plan& plan, uint64_t seed, ProofInputs inputs = ProofInputs::kNormal);
/// The same for a tensor of the caller's.
ProofCase MakeProofCase(const Plan& plan, Tensor tensor, uint64_t seed,
                        ProofInputs inputs = ProofInputs::kNormal);

/// How a result compares: `out` as the kernel wrote it, of plan.activation.
struct ProofResult {
  double max_relative_error = 0;  ///< max |out - expected| over the largest |expected|
  double tolerance = 0;           ///< max tolerance over the same
  double worst_share = 0;         ///< max |out - expected| / tolerance; a correct kernel has at most 1
  int64_t worst_index = 0;
  bool passed = false;
};
ProofResult CheckProof(const Plan& plan, const ProofCase& proof, const std::vector<uint16_t>& out);

}  // namespace vqllm
