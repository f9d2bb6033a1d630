#include "runtime/ptx/assembler.h"

#include <algorithm>

#include "runtime/ptx/parser.h"
#include "vq/base/error.h"

namespace vqllm::ptx {
namespace {

constexpr uint64_t kMaxConstBank = 10 * 65536;   // ten banks of 64 KiB
constexpr uint64_t kMaxLocalBytes = 512 * 1024;  // of one thread, the limit of the CUDA guide
constexpr uint64_t kMaxWarpRegisters = uint64_t{1} << 24;

uint64_t AlignUp(uint64_t value, uint64_t align) { return (value + align - 1) / align * align; }

}  // namespace

void Assembler::Refuse(int line, std::string_view text, std::string_view problem) const {
  Fail("{}:{}: {}: {}", program_.name, line, problem, text.substr(0, 200));
}

void Assembler::LayOutVariables() {
  for (const Variable& variable : module_.variables) {
    ProgramVariable out;
    out.name = variable.name;
    out.space = variable.space;
    out.bytes = variable.bytes;
    out.align = variable.align;
    out.dynamic = variable.dynamic;
    out.initial = variable.initial;
    if (variable.space == Space::kConst) {
      out.const_offset = AlignUp(program_.const_bank_bytes, variable.align);
      program_.const_bank_bytes = out.const_offset + variable.bytes;
      if (program_.const_bank_bytes > kMaxConstBank) {
        Refuse(variable.line, variable.name, "more than 640 KiB of constant memory");
      }
    }
    program_.variables.push_back(std::move(out));
  }
}

// Parameters of kernels get offsets into the argument bytes; shared variables join those of the module, whose
// addresses the kernel decides; all others lie in the local memory of the function.
void Assembler::LayOutFunction(int index) {
  const FunctionSyntax& syntax = module_.functions[index];
  ProgramFunction& function = program_.functions[index];
  std::vector<uint32_t>& offsets = variable_offset_[index];
  offsets.assign(syntax.variables.size(), 0);
  uint64_t local = 0;
  uint64_t arguments = 0;
  for (size_t i = 0; i < syntax.variables.size(); ++i) {
    const Variable& variable = syntax.variables[i];
    const bool is_argument =
        syntax.is_kernel && std::ranges::count(syntax.parameters, static_cast<int>(i)) > 0;
    if (variable.space == Space::kShared) {
      offsets[i] = static_cast<uint32_t>(program_.variables.size());
      program_.variables.push_back(
          {std::string(variable.name), Space::kShared, variable.bytes, variable.align, 0, false, {}});
    } else if (is_argument) {
      arguments = AlignUp(arguments, variable.align);
      offsets[i] = static_cast<uint32_t>(arguments);
      function.parameters.push_back({offsets[i], static_cast<uint32_t>(variable.bytes)});
      arguments += variable.bytes;
      if (arguments > 32764) Refuse(variable.line, variable.name, "more than 32764 bytes of parameters");
    } else {
      local = AlignUp(local, std::max<uint64_t>(variable.align, 1));
      offsets[i] = static_cast<uint32_t>(local);
      local += variable.bytes;
      if (local > kMaxLocalBytes) Refuse(variable.line, variable.name, "more than 512 KiB of local memory");
    }
  }
  function.parameter_bytes = static_cast<uint32_t>(arguments);
  function.local_bytes = static_cast<uint32_t>(AlignUp(local, 16));
}

// Callers before callees; a cycle is recursion.
std::vector<int> Assembler::CallOrder() const {
  const int n = static_cast<int>(program_.functions.size());
  std::vector<int> order;
  std::vector<uint8_t> state(program_.functions.size(), 0);  // 1 open, 2 done
  for (int root = 0; root < n; ++root) {
    if (state[root]) continue;
    std::vector<std::pair<int, size_t>> stack = {{root, 0}};
    state[root] = 1;
    while (!stack.empty()) {
      auto& [function, next] = stack.back();
      const std::vector<int>& callees = program_.functions[function].callees;
      if (next == callees.size()) {
        state[function] = 2;
        order.push_back(function);
        stack.pop_back();
        continue;
      }
      const int callee = callees[next++];
      if (state[callee] == 1) {
        Refuse(module_.functions[callee].line, module_.functions[callee].name,
               "recursive calls are not supported");
      }
      if (state[callee] == 0) {
        state[callee] = 1;
        stack.emplace_back(callee, 0);
      }
    }
  }
  std::ranges::reverse(order);
  return order;
}

// A function's registers and local memory lie behind those of all that may call it, so a call moves nothing.
void Assembler::PlaceFrames(const std::vector<int>& order) {
  for (const int caller : order) {
    const ProgramFunction& from = program_.functions[caller];
    if (uint64_t{from.local_base} + from.local_bytes > kMaxLocalBytes ||
        uint64_t{from.register_base} + from.register_bytes > kMaxWarpRegisters) {
      Refuse(module_.functions[caller].line, from.name, "too many registers or too much local memory");
    }
    for (const int callee : from.callees) {
      ProgramFunction& to = program_.functions[callee];
      to.register_base = std::max(to.register_base, from.register_base + from.register_bytes);
      to.local_base = std::max(to.local_base, from.local_base + from.local_bytes);
    }
  }
}

void Assembler::SummariseKernels() {
  for (size_t k = 0; k < program_.functions.size(); ++k) {
    ProgramFunction& kernel = program_.functions[k];
    if (!kernel.is_kernel) continue;
    std::vector<uint8_t> seen(program_.functions.size(), 0);
    std::vector<int> work = {static_cast<int>(k)};
    seen[k] = 1;
    std::vector<int> shared;
    while (!work.empty()) {
      const int f = work.back();
      work.pop_back();
      kernel.reachable.push_back(f);
      const ProgramFunction& function = program_.functions[f];
      kernel.ordered |= function.ordered;
      kernel.warp_registers =
          std::max(kernel.warp_registers, function.register_base + function.register_bytes);
      kernel.thread_local_bytes =
          std::max(kernel.thread_local_bytes, function.local_base + function.local_bytes);
      shared.insert(shared.end(), function.shared_variables.begin(), function.shared_variables.end());
      for (const int callee : function.callees) {
        if (!seen[callee]) work.push_back(callee);
        seen[callee] = 1;
      }
    }
    std::ranges::sort(shared);
    shared.erase(std::unique(shared.begin(), shared.end()), shared.end());
    uint64_t offset = 0;
    for (const int v : shared) {
      const ProgramVariable& variable = program_.variables[v];
      if (variable.dynamic) {
        kernel.dynamic_align = std::max(kernel.dynamic_align, variable.align);
        continue;
      }
      offset = AlignUp(offset, variable.align);
      kernel.shared_layout.emplace_back(v, static_cast<uint32_t>(offset));
      offset += variable.bytes;
      if (offset > (uint64_t{1} << 24))
        Refuse(module_.functions[k].line, kernel.name, "too much shared memory");
    }
    kernel.static_shared = static_cast<uint32_t>(offset);
    const uint32_t dynamic = static_cast<uint32_t>(AlignUp(offset, kernel.dynamic_align));
    for (const int v : shared) {
      if (program_.variables[v].dynamic) kernel.shared_layout.emplace_back(v, dynamic);
    }
  }
}

void Assembler::Run() {
  LayOutVariables();
  program_.functions.resize(module_.functions.size());
  variable_offset_.resize(module_.functions.size());
  for (size_t f = 0; f < module_.functions.size(); ++f) {
    const FunctionSyntax& syntax = module_.functions[f];
    ProgramFunction& function = program_.functions[f];
    function.name = syntax.name;
    function.is_kernel = syntax.is_kernel && syntax.defined;
    function.max_threads = syntax.max_threads;
    std::ranges::copy(syntax.required_threads, function.required_threads);
    LayOutFunction(static_cast<int>(f));
  }
  // The callees are needed for the frames, the frames for the places of registers and parameters.
  for (size_t f = 0; f < module_.functions.size(); ++f) {
    for (const Statement& statement : module_.functions[f].statements) {
      for (const Operand& operand : statement.operands) {
        if (operand.kind == Operand::Kind::kFunction) program_.functions[f].callees.push_back(operand.index);
      }
    }
  }
  // Local frames before the bodies (addresses are constants), registers after them.
  const std::vector<int> order = CallOrder();
  PlaceFrames(order);
  for (size_t f = 0; f < module_.functions.size(); ++f) {
    if (module_.functions[f].defined) Function(static_cast<int>(f));
  }
  PlaceFrames(order);
  for (ProgramFunction& function : program_.functions) {
    const Place base = function.register_base;
    const auto move = [&](Place& place) {
      if (place != kNowhere && (place & 1) == 0) place += base;
    };
    for (uint32_t i = function.begin; i < function.end; ++i) {
      Instruction& instruction = program_.code[i];
      move(instruction.guard);
      for (Place& place : instruction.dest) move(place);
      for (Place& place : instruction.source) move(place);
      if (instruction.list == nullptr) continue;
      for (Place& place : program_.lists[instruction.index]) move(place);
      instruction.list = program_.lists[instruction.index].data();
    }
    for (auto& [special, place] : function.specials) move(place);
  }
  SummariseKernels();
}

const std::string& Program::FileName(int number) const {
  static const std::string none;
  for (const auto& [id, path] : files) {
    if (id == number) return path;
  }
  return none;
}

std::unique_ptr<const Program> Assemble(std::string_view source, std::string_view name) {
  auto program = std::make_unique<Program>();
  program->name = name;
  program->source = source;
  const ModuleSyntax module = ParsePtx(program->source, name);
  program->files = module.files;
  Assembler(module, *program).Run();
  return program;
}

}  // namespace vqllm::ptx
