#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/runtime/ptx/support.h"
#include "tests/runtime/ptx/support/rows.h"

/// Integer instructions on rows of operands against whole numbers of 128 bits.
namespace vqllm::ptx::test {

__extension__ typedef __int128 Whole;
__extension__ typedef unsigned __int128 Bits;

/// A type by its name in opcodes; what it makes of the low bits of an operand.
struct IntType {
  std::string name;
  int bits;
  bool is_signed;
  char kind() const { return bits == 16 ? 'h' : bits == 32 ? 'r' : 'l'; }
  Whole Read(uint64_t value) const {
    const int unused = 64 - bits;
    return is_signed ? static_cast<Whole>(static_cast<int64_t>(value << unused) >> unused)
                     : static_cast<Whole>(value << unused >> unused);
  }
  Whole Least() const { return is_signed ? -(Whole{1} << (bits - 1)) : 0; }
  Whole Most() const { return (Whole{1} << (is_signed ? bits - 1 : bits)) - 1; }
};
inline const std::vector<IntType> kTypes = {{"u16", 16, false}, {"s16", 16, true},  {"u32", 32, false},
                                            {"s32", 32, true},  {"u64", 64, false}, {"s64", 64, true}};

inline std::vector<uint64_t> Edges(int bits) {
  const uint64_t top = uint64_t{1} << (bits - 1);
  return {0, 1, 2, 3, 7, top - 1, top, top + 1, ~uint64_t{0}, ~uint64_t{0} - 1, 0x5555555555555555u, 100};
}

inline uint64_t Low(Bits value, int bits) {
  return bits == 64 ? static_cast<uint64_t>(value)
                    : static_cast<uint64_t>(value) & ((uint64_t{1} << bits) - 1);
}

/// The exact result; its low bits count.
using Oracle = std::function<Bits(Whole a, Whole b, Whole c)>;
struct Case {
  RowInstruction instruction;
  int result_bits;
  Oracle expected;
};

// Runs the cases on the edges of `type`; operands beyond those of the type are read as wide as they are.
inline void Check(const IntType& type, const std::vector<Case>& cases, const IntType& third,
                  const std::function<bool(const Row&)>& skip = {}) {
  const std::vector<Row> rows = EdgeRows(Edges(type.bits), 300, static_cast<uint64_t>(type.bits));
  std::vector<RowInstruction> instructions;
  for (const Case& c : cases) instructions.push_back(c.instruction);
  const auto results = RunRows(instructions, rows);
  for (size_t k = 0; k < cases.size(); ++k) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (skip && skip(rows[i])) continue;
      const Bits expected =
          cases[k].expected(type.Read(rows[i][0]), type.Read(rows[i][1]), third.Read(rows[i][2]));
      ASSERT_EQ(results[k][i], Low(expected, cases[k].result_bits))
          << cases[k].instruction.text << " of " << rows[i][0] << ", " << rows[i][1] << ", " << rows[i][2];
    }
  }
}
inline void Check(const IntType& type, const std::vector<Case>& cases) { Check(type, cases, type); }

inline Bits Of(Whole value) { return static_cast<Bits>(value); }
inline Whole Clamp(Whole value, const IntType& type) {
  return value < type.Least() ? type.Least() : value > type.Most() ? type.Most() : value;
}

}  // namespace vqllm::ptx::test
