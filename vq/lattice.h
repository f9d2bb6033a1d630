#pragma once

#include <array>
#include <cstdint>

namespace vqllm {

/// E8P, the 2-bit codebook of QuIP# (arXiv 2402.04396, section 4.2): 65536 points of the lattice E8 + 1/4 in
/// 8 dimensions, made from 256 vectors of absolute values, 7 free sign bits and a shift of +-1/4. Code =
/// abs_index << 8 | signs. With p the parity of the 8 sign bits: bit 0 of the signs is flipped where p = 1,
/// value i is abs[i], negated where bit i is set, then + 1/4 where p = 0 and - 1/4 where p = 1.
namespace e8p {

using Vector = std::array<float, 8>;

/// The 256 vectors: the 227 of half-odd integers with squared norm <= 10 in lexicographic order, then 29 of
/// squared norm 12; the last value is negative where the sum of absolute values is odd, so that every even
/// flip of signs stays in the lattice.
const std::array<Vector, 256>& AbsTable();

/// The 8 values of a code.
Vector Decode(uint16_t code);

/// The code of the nearest point; of equally near ones that of the lowest (shift, abs_index).
uint16_t Encode(const float* x);

/// A code as QuIP# checkpoints store it, whose sign bit of value i is bit [0 4 1 5 2 6 3 7][i] (the order in
/// which its kernel unpacks), as ours, and back.
uint16_t FromQuipSharp(uint16_t code);
uint16_t ToQuipSharp(uint16_t code);

/// The standard deviation that a Gaussian source should have for the least mean squared error: weights are
/// divided by (their standard deviation * kScale) first.
inline constexpr float kScale = 1 / 1.03f;

}  // namespace e8p
}  // namespace vqllm
