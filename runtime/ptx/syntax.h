#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ptx/types.h"

/// PTX as it stands in the text, names resolved: what the parser makes and the assembler takes. The views
/// point into the source text.
namespace vqllm::ptx {

/// Read-only registers that the launch fills in.
enum class Special : uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneid,
  kWarpid,
  kNwarpid,
  kSmid,
  kNsmid,
  kGridid,
  kLanemaskEq,
  kLanemaskLt,
  kLanemaskLe,
  kLanemaskGt,
  kLanemaskGe,
  kDynamicSmemSize,
  kTotalSmemSize,
  kClusterZero,
  kClusterOne,
  kClock,
  kClock64,
  kGlobaltimer,
  kCount,
};

struct Operand {
  enum class Kind : uint8_t {
    kRegister,
    kSpecial,
    kInteger,   ///< bits: two's complement
    kFloat,     ///< bits: of a double
    kFloat32,   ///< bits: of a float (0f...)
    kVariable,  ///< its address, plus offset
    kFunction,
    kLabel,  ///< or any other name
    kSink,   ///< _
    kVector,
    kAddress,  ///< [elements[0] + offset]
    kList,     ///< (a, b): the parameters of a call
  };
  Kind kind = Kind::kInteger;
  bool negated = false;  ///< !p
  int index = -1;        ///< register, variable, special
  int second = -1;       ///< the register after "|", -1 without, -2 for "_"
  bool global = false;   ///< kVariable: of the module, not of the function
  uint64_t bits = 0;
  int64_t offset = 0;
  std::string_view name;
  std::vector<Operand> elements;
};

/// A line of the CUDA source; of what was inlined from another file, the line that called it.
struct SourceLine {
  int file = 0;  ///< number of .file, 0 for none
  int line = 0;
};

struct Statement {
  std::string_view opcode;
  int guard = -1;  ///< register of @p
  bool guard_negated = false;
  std::vector<Operand> operands;
  int scope = 0;
  int line = 0;
  SourceLine source;
  std::string_view text;
};

struct Variable {
  std::string_view name;
  Space space = Space::kGlobal;
  uint64_t bytes = 0;
  uint32_t align = 1;
  bool dynamic = false;          ///< .extern .shared without a size
  std::vector<uint8_t> initial;  ///< may be shorter than `bytes`: the rest is zero
  int line = 0;
};

struct Label {
  std::string_view name;
  int scope = 0;
  int statement = 0;  ///< index of the statement that follows
  bool is_list = false;
  std::vector<std::string_view> targets;  ///< of .branchtargets
};

struct FunctionSyntax {
  std::string_view name;
  bool is_kernel = false;
  bool defined = false;
  int line = 0;
  std::vector<int> parameters;     ///< into variables
  std::vector<int> returns;        ///< into variables
  std::vector<uint8_t> registers;  ///< bytes of each virtual register: 0 (predicate), 2, 4, 8
  std::vector<Variable> variables;
  std::vector<Statement> statements;
  std::vector<Label> labels;
  std::vector<int> scope_parent;                         ///< of each scope; -1 for the outermost
  std::array<uint32_t, 3> required_threads = {0, 0, 0};  ///< .reqntid, zero without
  uint32_t max_threads = 0;                              ///< product of .maxntid, zero without
};

struct ModuleSyntax {
  std::vector<Variable> variables;
  std::vector<FunctionSyntax> functions;
  std::vector<std::pair<int, std::string>> files;  ///< of .file
};

}  // namespace vqllm::ptx
