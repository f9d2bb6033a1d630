#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ptx/counters.h"
#include "runtime/ptx/types.h"

namespace vqllm::ptx {

struct Warp;
struct Instruction;
/// Executes an instruction for the lanes of Warp::mask.
using Handler = void (*)(Warp&, const Instruction&);

/// What the warp loop itself does with an instruction.
enum class Flow : uint8_t {
  kNone,  ///< the handler does it all
  kBranch,
  kBranchIndexed,
  kCall,
  kReturn,
  kExit,
  kBarrier,
  kTrap,
};

/// How operands are laid out beyond what the signature says.
enum class Shape : uint8_t { kPlain, kMove, kMemory, kBranch, kBranchIndexed, kCall, kBarrier };

/// An opcode cut at its dots: "ld.global.v4.u32".
struct Opcode {
  explicit Opcode(std::string_view text);

  std::string_view text;
  std::string_view base;                ///< before the first dot
  std::vector<std::string_view> parts;  ///< after it
  std::vector<Type> types;              ///< the parts that are types, in order

  bool Has(std::string_view part) const;
  /// The first of these parts that is there; its position, -1 without.
  int Find(std::span<const std::string_view> choices) const;
  Type type() const { return types.empty() ? Type::kNone : types.front(); }
  Type last_type() const { return types.empty() ? Type::kNone : types.back(); }
};

/// One row of the table of instructions: what may be written, which operands it takes, who executes it.
///
/// `pattern`: parts between dots; {a|b} is one of, [a|b] at most one of, @name stands for a set of
/// kPartSets.
/// `operands`: one letter each, destinations before the colon, optional ones after "?":
///   T first type of the opcode   S last type    W twice as wide as T     h u l  16, 32, 64 bits
///   P predicate                  Q predicate with an optional |second    D 32 bits with an optional
///   |predicate I integer literal            V scalar or vector of T by .v2 .v4 .v8  M address in brackets
///   1..9 vector of as many 32-bit registers
/// `select`: the handler of the opcode; null is a fault of the table (a test decodes every form).
struct OpcodeForm {
  std::string_view pattern;
  std::string_view operands;
  InstructionClass cls;
  Handler (*select)(const Opcode&) = nullptr;
  Flow flow = Flow::kNone;
  Shape shape = Shape::kPlain;
};

std::span<const OpcodeForm> OpcodeForms();

/// True where `pattern` admits the opcode.
bool Matches(std::string_view pattern, const Opcode& opcode);

/// The spellings that a pattern admits: all of them up to a few thousand, else enough that every choice of
/// every part occurs.
std::vector<std::string> Spellings(std::string_view pattern);

/// The forms whose pattern admits the opcode; several differ in their operands.
std::vector<const OpcodeForm*> FindForms(const Opcode& opcode);

}  // namespace vqllm::ptx
