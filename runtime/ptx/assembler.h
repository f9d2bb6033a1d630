#pragma once

#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "runtime/ptx/program.h"
#include "runtime/ptx/register_allocation.h"

namespace vqllm::ptx {

/// Most bytes that immediates and addresses of a module may take, once for all warps.
inline constexpr uint32_t kMaxConstantBytes = uint32_t{1} << 26;

/// Turns a parsed module into a Program: picks the form of every opcode, resolves operands, lays out
/// variables, finds the points of reconvergence and packs the registers. In three files: the module, one
/// function, the operands.
class Assembler {
 public:
  Assembler(const ModuleSyntax& module, Program& program) : module_(module), program_(program) {}
  void Run();

 private:
  // The module (assembler.cc).
  void LayOutVariables();
  void LayOutFunction(int index);
  std::vector<int> CallOrder() const;
  void PlaceFrames(const std::vector<int>& order);
  void SummariseKernels();
  [[noreturn]] void Refuse(int line, std::string_view text, std::string_view problem) const;

  // One function (assembler_function.cc).
  void Function(int index);
  void EncodeStatement(const Statement& statement);
  void EncodeForm(const Statement& statement, const Opcode& opcode, const OpcodeForm& form);
  void Branch(const Statement& statement);
  void BranchIndexed(const Statement& statement);
  void Call(const Statement& statement);
  void Move(const Statement& statement, const Opcode& opcode, const OpcodeForm& form);
  void Barrier(const Opcode& opcode);
  const Label& FindLabel(const Statement& statement, std::string_view name, bool is_list) const;
  void PackRegisters();

  // Operands (assembler_operands.cc).
  const OpcodeForm& PickForm(const Statement& statement, const Opcode& opcode) const;
  void Encode(const Statement& statement, const Opcode& opcode, const OpcodeForm& form);
  void EncodeOperand(const Operand& operand, char letter, bool is_dest);
  void EncodeVector(const Operand& operand, size_t count, int bytes, bool is_dest, bool wider);
  void EncodeAddress(const Operand& operand);
  Place Dest(const Operand& operand, int bytes, bool wider, uint8_t* actual);
  Place Source(const Operand& operand, int bytes, Type type, bool wider, uint8_t* actual);
  Place PredicateSource(const Operand& operand, int position);
  Place Register(int index, int bytes, bool wider, uint8_t* actual);
  Place SpecialRegister(const Operand& operand, int bytes);
  Place VariableAddress(const Operand& operand, int bytes);
  Place Constant(uint64_t bits, uint8_t bytes, int variable = -1);
  int LetterBytes(char letter, const Opcode& opcode) const;
  Type LetterType(char letter, const Opcode& opcode) const;
  void AddDest(Place place);
  void AddSource(Place place);
  [[noreturn]] void RefuseOperand(std::string_view problem) const;

  const ModuleSyntax& module_;
  Program& program_;
  std::map<std::tuple<uint64_t, uint8_t, int>, Place> constants_;
  std::vector<std::vector<uint32_t>> variable_offset_;  ///< by function: shared index or local offset

  // The function at hand. Registers of the draft are numbered: place 2 n is virtual register n, 0 nowhere.
  int function_index_ = -1;
  const FunctionSyntax* syntax_ = nullptr;
  std::vector<uint8_t> register_bytes_;
  std::vector<int> special_register_;
  std::vector<Accesses> accesses_;
  std::vector<Instruction> code_;
  std::map<std::tuple<int, std::string_view, bool>, const Label*> labels_;  ///< by scope, name, is_list

  // The instruction at hand.
  const Statement* statement_ = nullptr;
  const Opcode* opcode_ = nullptr;
  Instruction instruction_;
  Accesses access_;
  std::vector<Place> list_;
  int dests_ = 0;
  int sources_ = 0;
  bool has_list_ = false;
  int addresses_ = 0;
};

}  // namespace vqllm::ptx
