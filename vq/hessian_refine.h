#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vq/subvector_matrix.h"

namespace vqllm::internal {

/// Codes of all stages of a matrix: [stages][code_rows, code_cols].
using StageCodes = std::vector<std::vector<uint16_t>>;

/// Chooses codes anew for the error of the outputs, tr((W - W') H (W - W')^T), codebooks and scales kept:
/// goes over the subvectors of all rows from left to right `sweeps` times and gives each the codes that are
/// best while all others stay. With target y = current + H_ss^-1 g_s, g = (W - W') H, and the Cholesky factor
/// of the diagonal block H_ss = L L^T, that is the nearest sum of entries in the metric of L, found by the
/// same beam search. `tensor` holds format, scales and codebooks; axis kIn. hessian [cols, cols]. Throws
/// Error where the damped Hessian is not positive definite.
void RefineCodes(const Tensor& tensor, const SubvectorMatrix& matrix, MatrixView<const float> weights,
                 std::span<const float> hessian, int beam, int sweeps, const std::string& what,
                 StageCodes& codes);

}  // namespace vqllm::internal
