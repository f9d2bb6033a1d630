#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/ptx/instruction.h"
#include "runtime/ptx/syntax.h"

namespace vqllm::ptx {

/// A .global or .const variable, or a shared one (whose address depends on the kernel).
struct ProgramVariable {
  std::string name;
  Space space = Space::kGlobal;
  uint64_t bytes = 0;
  uint32_t align = 1;
  uint64_t const_offset = 0;  ///< of a .const variable
  bool dynamic = false;
  std::vector<uint8_t> initial;
};

/// A value that all lanes and warps share. Those with a variable are its address plus `bits`, known at
/// launch.
struct ProgramConstant {
  uint32_t offset = 0;
  uint8_t bytes = 4;  ///< 0: a predicate
  uint64_t bits = 0;
  int variable = -1;
};

struct ParameterInfo {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

/// One copy of a call: between the parameter areas in the local memory of each lane.
struct CallCopy {
  uint32_t from = 0;
  uint32_t to = 0;
  uint32_t bytes = 0;
};
struct CallSite {
  int callee = 0;
  std::vector<CallCopy> arguments;
  std::vector<CallCopy> results;
};

struct ProgramFunction {
  std::string name;
  bool is_kernel = false;
  uint32_t begin = 0;                     ///< first instruction
  uint32_t end = 0;                       ///< one past the last, which is a return
  std::vector<ParameterInfo> parameters;  ///< of a kernel: offsets into the argument bytes
  uint32_t parameter_bytes = 0;
  uint32_t register_base = 0;
  uint32_t register_bytes = 0;
  uint32_t local_base = 0;
  uint32_t local_bytes = 0;
  std::vector<int> callees;
  std::vector<int> shared_variables;
  uint32_t required_threads[3] = {};
  uint32_t max_threads = 0;
  std::vector<std::pair<Special, Place>> specials;
  bool ordered = false;
  // Of a kernel with all it calls:
  std::vector<int> reachable;
  std::vector<std::pair<int, uint32_t>> shared_layout;  ///< variable, offset
  uint32_t static_shared = 0;
  uint32_t dynamic_align = 16;
  uint32_t warp_registers = 0;
  uint32_t thread_local_bytes = 0;
};

/// Where an instruction stands in the text.
struct InstructionText {
  std::string_view opcode;
  std::string_view text;
  int line = 0;
  SourceLine source;
};

/// A decoded module.
struct Program {
  std::string name;
  std::string source;
  std::vector<Instruction> code;
  std::vector<InstructionText> texts;  ///< one for each instruction
  std::deque<std::vector<Place>> lists;
  std::vector<std::vector<uint32_t>> branch_lists;
  std::vector<CallSite> calls;
  std::vector<ProgramVariable> variables;
  std::vector<ProgramConstant> constants;
  uint32_t constant_bytes = 0;  ///< of all ProgramConstants
  uint64_t const_bank_bytes = 0;
  std::vector<ProgramFunction> functions;
  std::vector<std::pair<int, std::string>> files;

  const std::string& FileName(int number) const;
};

/// Parses, checks and decodes. Throws Error.
std::unique_ptr<const Program> Assemble(std::string_view source, std::string_view name);

}  // namespace vqllm::ptx
