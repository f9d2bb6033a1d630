#pragma once

#include <cstdint>
#include <vector>

namespace vqllm {

/// The orthonormal rotation Q of size n that QuIP#, QuaRot and others build from Hadamard matrices. With n =
/// 2^a m, m odd: Q is a Hadamard matrix where one of order 4m, 8m, ... that divides n can be made by Paley's
/// constructions (12, 20, 24, 28, ...; not 172), times Sylvester's matrix for the remaining power of two;
/// else it is block-diagonal with m Sylvester blocks of order 2^a. So every n has one, down to the identity
/// for odd n without a Paley order.
class Hadamard {
 public:
  explicit Hadamard(int64_t n);

  /// x := Q x, x [n].
  void Apply(float* x) const;
  /// x := Q^T x.
  void ApplyTransposed(float* x) const;

  int64_t size() const { return n_; }
  /// Order of the Paley factor; 1 where there is none.
  int64_t paley() const { return paley_; }
  /// Order of the Sylvester factor; n = paley * power * blocks, element i being (i / power, i % power).
  int64_t power() const { return power_; }
  /// Diagonal blocks; 1 where Q mixes all n.
  int64_t blocks() const { return blocks_; }
  /// The Paley factor [paley, paley], entries +1 and -1, row-major; empty where its order is 1.
  const std::vector<float>& paley_matrix() const { return matrix_; }

 private:
  void Run(float* x, bool transposed) const;

  int64_t n_;
  int64_t paley_ = 1;
  int64_t power_ = 1;  // order of the Sylvester factor
  int64_t blocks_ = 1;
  std::vector<float> matrix_;  // [paley, paley], entries +1 and -1
};

}  // namespace vqllm
