#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace vqllm::ptx::test {

/// An instruction to be run on many rows of operands: "add.rn.f32 $d, $a, $b;", with the kind of each
/// register: h, r and l for 16, 32 and 64 bits, p for a predicate (bit 0 of its operand).
struct RowInstruction {
  std::string text;
  char dest = 'r';
  std::string sources = "rr";  ///< of $a, $b, $c
};

/// The operands a, b and c of one execution, in the low bits.
using Row = std::array<uint64_t, 3>;

/// Runs every instruction on every row, a thread each; result [instruction][row], without sign extension, a
/// predicate as 0 or 1.
std::vector<std::vector<uint64_t>> RunRows(const std::vector<RowInstruction>& instructions,
                                           const std::vector<Row>& rows);

/// All pairs (a, b) of `values` with some c, and `more` triples of random bits and of random choices.
std::vector<Row> EdgeRows(const std::vector<uint64_t>& values, int more, uint64_t seed);

}  // namespace vqllm::ptx::test
