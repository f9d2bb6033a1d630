#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ptx/lexer.h"
#include "runtime/ptx/syntax.h"

namespace vqllm::ptx {

/// Bounds on what a text may ask for; beyond them it is refused, so that no text can exhaust memory.
inline constexpr size_t kMaxTextBytes = size_t{1} << 28;
inline constexpr size_t kMaxRegisters = size_t{1} << 18;   ///< of one function
inline constexpr size_t kMaxStatements = size_t{1} << 20;  ///< of a module
inline constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxInitialBytes = uint64_t{1} << 26;  ///< of one initial value

/// Parses PTX text. Throws Error "<name>:<line>: ..." at the first thing that is not well formed.
ModuleSyntax ParsePtx(std::string_view source, std::string_view name);

/// The recursive descent behind ParsePtx, in two files: declarations and bodies.
class Parser {
 public:
  Parser(std::string_view source, std::string_view name);
  ModuleSyntax Run();

 private:
  struct RegisterRange {
    int first = 0;
    int count = 0;  ///< 0: a single register named without a number
  };
  struct Scope {
    int id = 0;
    std::map<std::string_view, RegisterRange> registers;
    std::map<std::string_view, int> variables;
  };
  using Place = std::array<int, 3>;  ///< of a .loc: file, line, column
  struct Inlined {
    int outer_file = 0;  ///< of the function that all was inlined into
    SourceLine line;     ///< the innermost in that file
  };

  // Tokens.
  const Token& Peek(size_t ahead = 0) const;
  Token Next();
  bool Accept(std::string_view text);
  void Expect(std::string_view text);
  [[noreturn]] void Refuse(const Token& token, std::string_view problem) const;
  uint64_t Unsigned(uint64_t limit);
  int64_t SignedOffset();
  Operand Number();

  // Declarations (parser.cc).
  void SkipLine();
  void FileDirective();
  void SkipSection();
  void Function(bool is_kernel, bool is_extern);
  void ParameterList(FunctionSyntax& function, std::vector<int>& list);
  void FunctionDirectives(FunctionSyntax& function);
  int FindFunction(std::string_view name) const;  ///< -1 where there is none
  Variable Declaration(Space space);
  void InitialValue(Variable& variable, Type type);
  void AppendInitial(Variable& variable, Type type);
  void DeclareGlobal(Space space);
  void DeclareLocal(Space space);

  // Bodies (parser_body.cc).
  void Body();
  void BodyItem();
  void Registers();
  void Loc();
  void LabelItem();
  void Instruction();
  Operand ParseOperand();
  Operand VectorOperand();
  Operand AddressOperand();
  Operand ListOperand();
  Operand NameOperand();
  int FindRegister(std::string_view name) const;

  std::string_view source_;
  std::string name_;
  std::vector<Token> tokens_;
  size_t position_ = 0;
  ModuleSyntax module_;
  std::map<std::string_view, int> global_names_;
  std::map<std::string_view, int> function_names_;
  FunctionSyntax* function_ = nullptr;
  std::vector<Scope> scopes_;
  SourceLine loc_;
  std::map<Place, Inlined> inlined_;
  size_t statements_ = 0;
};

}  // namespace vqllm::ptx
