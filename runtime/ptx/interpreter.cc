#include "runtime/ptx/interpreter.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "runtime/ptx/program.h"
#include "vq/base/error.h"

namespace vqllm::ptx {
namespace {

KernelInfo InfoOf(const Program& program, const ProgramFunction& function) {
  KernelInfo info;
  info.name = function.name;
  for (const ParameterInfo& parameter : function.parameters) info.parameter_bytes.push_back(parameter.bytes);
  info.static_shared = function.static_shared;
  info.local_bytes = function.thread_local_bytes;
  info.warp_bytes = function.warp_registers + function.thread_local_bytes * kWarpSize;
  info.ordered = function.ordered;
  (void)program;
  return info;
}

}  // namespace

Module Module::Parse(std::string_view text, std::string_view name) {
  Module module;
  module.program_ = Assemble(text, name);
  return module;
}

std::vector<KernelInfo> Module::Kernels() const {
  std::vector<KernelInfo> kernels;
  for (const ProgramFunction& function : program_->functions) {
    if (function.is_kernel) kernels.push_back(InfoOf(*program_, function));
  }
  return kernels;
}

KernelInfo Module::Kernel(std::string_view name) const {
  std::string known;
  for (const KernelInfo& kernel : Kernels()) {
    if (kernel.name == name) return kernel;
    known += (known.empty() ? "" : ", ") + kernel.name;
  }
  Fail("{}: kernel: found '{}', allowed: {}", program_->name, name, known);
}

std::vector<std::pair<std::string, int>> Module::Opcodes() const {
  std::map<std::string, int> counts;
  for (const InstructionText& text : program_->texts) {
    if (text.line != 0) ++counts[std::string(text.opcode)];  // the return at the end of a body has no line
  }
  return {counts.begin(), counts.end()};
}

uint64_t SymbolAddress(Memory& memory, const Module& module, std::string_view name) {
  const Program& program = *module.program();
  for (size_t i = 0; i < program.variables.size(); ++i) {
    if (program.variables[i].name == name && program.variables[i].space == Space::kGlobal) {
      return memory.InstanceOf(module.program()).addresses[i];
    }
  }
  Fail("{}: the module has no .global variable '{}'", program.name, name);
}

void SetConstant(Memory& memory, const Module& module, std::string_view name, const void* data,
                 uint64_t bytes) {
  const Program& program = *module.program();
  for (const ProgramVariable& variable : program.variables) {
    if (variable.name != name || variable.space != Space::kConst) continue;
    if (bytes > variable.bytes) {
      Fail("{}: constant '{}': found {} bytes, allowed: {}", program.name, name, bytes, variable.bytes);
    }
    std::memcpy(memory.InstanceOf(module.program()).const_bank.data() + variable.const_offset, data, bytes);
    return;
  }
  Fail("{}: the module has no .const variable '{}'", program.name, name);
}

}  // namespace vqllm::ptx
