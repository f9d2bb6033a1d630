#include <algorithm>

#include "runtime/ptx/assembler.h"
#include "runtime/ptx/barrier_operation.h"
#include "runtime/ptx/select.h"
#include "vq/base/check.h"

namespace vqllm::ptx {

void Assembler::Function(int index) {
  function_index_ = index;
  syntax_ = &module_.functions[index];
  ProgramFunction& function = program_.functions[index];
  function.begin = static_cast<uint32_t>(program_.code.size());
  register_bytes_.assign(1, 4);  // virtual register 0 is nowhere
  register_bytes_.insert(register_bytes_.end(), syntax_->registers.begin(), syntax_->registers.end());
  special_register_.assign(static_cast<size_t>(Special::kCount), -1);
  accesses_.clear();
  code_.clear();
  labels_.clear();
  for (const Label& label : syntax_->labels) {
    if (!labels_.try_emplace({label.scope, label.name, label.is_list}, &label).second) {
      Refuse(syntax_->line, label.name, "a second label of one name");
    }
  }
  for (const Statement& statement : syntax_->statements) EncodeStatement(statement);
  // The end of a body returns.
  static const Statement kReturn = [] {
    Statement statement;
    statement.opcode = "ret";
    statement.text = "ret";
    return statement;
  }();
  EncodeStatement(kReturn);
  PackRegisters();
  std::ranges::sort(function.callees);
  function.callees.erase(std::unique(function.callees.begin(), function.callees.end()),
                         function.callees.end());
  program_.code.insert(program_.code.end(), code_.begin(), code_.end());
  function.end = static_cast<uint32_t>(program_.code.size());
}

void Assembler::EncodeStatement(const Statement& statement) {
  const Opcode opcode(statement.opcode);
  statement_ = &statement;
  opcode_ = &opcode;
  instruction_ = {};
  access_ = {};
  list_.clear();
  dests_ = sources_ = addresses_ = 0;
  has_list_ = false;
  const OpcodeForm& form = PickForm(statement, opcode);
  instruction_.flow = form.flow;
  instruction_.cls = form.cls;
  if (statement.guard >= 0) {
    instruction_.guard = Register(statement.guard, 0, false, nullptr);
    instruction_.guard_xor = statement.guard_negated ? kAllLanes : 0;
    access_.reads.push_back(instruction_.guard / 2);
    access_.guarded = true;
  }
  EncodeForm(statement, opcode, form);
  if (has_list_) {
    instruction_.index = static_cast<uint32_t>(program_.lists.size());
    program_.lists.push_back(list_);
    instruction_.list = program_.lists.back().data();
  }
  code_.push_back(instruction_);
  accesses_.push_back(access_);
  program_.texts.push_back({statement.opcode, statement.text, statement.line, statement.source});
}

void Assembler::EncodeForm(const Statement& statement, const Opcode& opcode, const OpcodeForm& form) {
  switch (form.shape) {
    case Shape::kBranch:
      return Branch(statement);
    case Shape::kBranchIndexed:
      return BranchIndexed(statement);
    case Shape::kCall:
      return Call(statement);
    case Shape::kMove:
      return Move(statement, opcode, form);
    case Shape::kPlain:
    case Shape::kMemory:
      Encode(statement, opcode, form);
      return;
    case Shape::kBarrier:
      Encode(statement, opcode, form);
      Barrier(opcode);
      return;
  }
}

const Label& Assembler::FindLabel(const Statement& statement, std::string_view name, bool is_list) const {
  for (int scope = statement.scope; scope >= 0; scope = syntax_->scope_parent[static_cast<size_t>(scope)]) {
    if (const auto found = labels_.find({scope, name, is_list}); found != labels_.end())
      return *found->second;
  }
  RefuseOperand("no such label");
}

void Assembler::Branch(const Statement& statement) {
  if (statement.operands.size() != 1) RefuseOperand("expected one label");
  const Label& label = FindLabel(statement, statement.operands[0].name, false);
  instruction_.target = program_.functions[function_index_].begin + static_cast<uint32_t>(label.statement);
}

void Assembler::BranchIndexed(const Statement& statement) {
  if (statement.operands.size() != 2) RefuseOperand("expected an index and a list of labels");
  AddSource(Source(statement.operands[0], 4, Type::kU32, false, nullptr));
  const Label& list = FindLabel(statement, statement.operands[1].name, true);
  std::vector<uint32_t> targets;
  for (const std::string_view name : list.targets) {
    const Label& label = FindLabel(statement, name, false);
    targets.push_back(program_.functions[function_index_].begin + static_cast<uint32_t>(label.statement));
  }
  instruction_.index = static_cast<uint32_t>(program_.branch_lists.size());
  program_.branch_lists.push_back(std::move(targets));
}

// call (results), name, (arguments); both lists may be missing.
void Assembler::Call(const Statement& statement) {
  static const Operand kEmpty = [] {
    Operand operand;
    operand.kind = Operand::Kind::kList;
    return operand;
  }();
  const std::vector<Operand>& operands = statement.operands;
  size_t at = 0;
  const Operand* results = &kEmpty;
  if (at < operands.size() && operands[at].kind == Operand::Kind::kList) results = &operands[at++];
  if (at >= operands.size() || operands[at].kind != Operand::Kind::kFunction) {
    RefuseOperand("expected a function of this module (indirect calls are not supported)");
  }
  const int callee = operands[at++].index;
  const Operand* arguments = &kEmpty;
  if (at < operands.size() && operands[at].kind == Operand::Kind::kList) arguments = &operands[at++];
  if (at != operands.size()) RefuseOperand("unexpected operands of a call");
  const FunctionSyntax& target = module_.functions[callee];
  if (!target.defined || target.is_kernel) RefuseOperand("a call of a function that has no body");
  if (arguments->elements.size() != target.parameters.size() ||
      results->elements.size() != target.returns.size()) {
    RefuseOperand("the number of parameters does not fit the function");
  }
  CallSite site;
  site.callee = callee;
  const uint32_t own = program_.functions[function_index_].local_base;
  const uint32_t other = program_.functions[callee].local_base;
  const auto link = [&](const Operand& here, int there, bool is_argument) {
    if (here.kind != Operand::Kind::kVariable || here.global ||
        syntax_->variables[here.index].space != Space::kParam) {
      RefuseOperand("parameters of a call must be .param variables");
    }
    const bool is_kernel_parameter =
        syntax_->is_kernel && std::ranges::count(syntax_->parameters, here.index) > 0;
    const Variable& formal = target.variables[there];
    if (is_kernel_parameter || syntax_->variables[here.index].bytes != formal.bytes) {
      RefuseOperand("a parameter of the wrong size");
    }
    const uint32_t mine = own + variable_offset_[function_index_][here.index];
    const uint32_t theirs = other + variable_offset_[callee][there];
    const uint32_t bytes = static_cast<uint32_t>(formal.bytes);
    (is_argument ? site.arguments : site.results)
        .push_back(is_argument ? CallCopy{mine, theirs, bytes} : CallCopy{theirs, mine, bytes});
  };
  for (size_t i = 0; i < arguments->elements.size(); ++i)
    link(arguments->elements[i], target.parameters[i], true);
  for (size_t i = 0; i < results->elements.size(); ++i) link(results->elements[i], target.returns[i], false);
  instruction_.index = static_cast<uint32_t>(program_.calls.size());
  program_.calls.push_back(std::move(site));
}

void Assembler::Move(const Statement& statement, const Opcode& opcode, const OpcodeForm& form) {
  if (statement.operands.size() != 2) RefuseOperand("expected two operands");
  const Operand& to = statement.operands[0];
  const Operand& from = statement.operands[1];
  const int bytes = TypeSize(opcode.type());
  const bool packs = from.kind == Operand::Kind::kVector;
  const bool unpacks = to.kind == Operand::Kind::kVector;
  if (packs && unpacks) RefuseOperand("expected one vector at most");
  if (packs || unpacks) {
    const size_t count = (packs ? from : to).elements.size();
    if ((count != 2 && count != 4) || bytes % static_cast<int>(count) != 0) {
      RefuseOperand("expected a vector of two or four");
    }
    instruction_.elements = static_cast<uint8_t>(count);
    instruction_.element_bytes = static_cast<uint8_t>(bytes / static_cast<int>(count));
    instruction_.dest_bytes = instruction_.source_bytes = static_cast<uint8_t>(bytes);
    if (unpacks) {
      AddSource(Source(from, bytes, opcode.type(), false, nullptr));
      EncodeVector(to, count, instruction_.element_bytes, true, false);
      instruction_.handler = SelectUnpack(opcode);
    } else {
      AddDest(Dest(to, bytes, false, nullptr));
      EncodeVector(from, count, instruction_.element_bytes, false, false);
      instruction_.handler = SelectPack(opcode);
    }
    return;
  }
  if (from.kind == Operand::Kind::kSpecial && from.index >= static_cast<int>(Special::kClock)) {
    const bool wide = from.index != static_cast<int>(Special::kClock);
    if (bytes != (wide ? 8 : 4)) RefuseOperand("a clock of another width");
    AddDest(Dest(to, bytes, false, nullptr));
    instruction_.dest_bytes = static_cast<uint8_t>(bytes);
    instruction_.handler = SelectClock(opcode);
    return;
  }
  Encode(statement, opcode, form);
}

void Assembler::Barrier(const Opcode& opcode) {
  // Sources: barrier, [threads], [predicate]; the predicate is read from the last.
  BarrierOperation operation;
  operation.kind = opcode.Has("arrive") ? BarrierOperation::Kind::kArrive
                   : opcode.Has("popc") ? BarrierOperation::Kind::kPopc
                   : opcode.Has("and")  ? BarrierOperation::Kind::kAnd
                   : opcode.Has("or")   ? BarrierOperation::Kind::kOr
                                        : BarrierOperation::Kind::kSync;
  const bool reduces = operation.kind == BarrierOperation::Kind::kPopc ||
                       operation.kind == BarrierOperation::Kind::kAnd ||
                       operation.kind == BarrierOperation::Kind::kOr;
  operation.has_count = sources_ - (reduces ? 1 : 0) == 2;
  instruction_.immediate = operation.Pack();
}

void Assembler::PackRegisters() {
  ProgramFunction& function = program_.functions[function_index_];
  const FlowGraph graph = BuildFlowGraph(code_, function.begin, program_.branch_lists);
  const std::vector<uint32_t> post = PostDominators(graph);
  for (uint32_t b = 0; b < graph.blocks(); ++b) {
    Instruction& last = code_[graph.begin[b + 1] - 1];
    // function.begin + size stands for "at the end of the function".
    last.reconverge = function.begin + graph.begin[post[b]];
  }
  std::vector<uint8_t> pinned(register_bytes_.size(), 0);
  pinned[0] = 1;
  for (const int special : special_register_) {
    if (special >= 0) pinned[static_cast<size_t>(special)] = 1;
  }
  const Allocation allocation = AllocateRegisters(graph, accesses_, register_bytes_, pinned);
  constexpr uint32_t kNowhereBytes = 256;
  const auto settle = [&](Place& place) {
    if (place != kNowhere && (place & 1) == 0) place = kNowhereBytes + allocation.offset[place / 2];
  };
  for (Instruction& instruction : code_) {
    settle(instruction.guard);
    for (Place& place : instruction.dest) settle(place);
    for (Place& place : instruction.source) settle(place);
    if (instruction.list != nullptr) {
      for (Place& place : program_.lists[instruction.index]) settle(place);
    }
  }
  for (size_t s = 0; s < special_register_.size(); ++s) {
    if (special_register_[s] < 0) continue;
    function.specials.emplace_back(
        static_cast<Special>(s),
        kNowhereBytes + allocation.offset[static_cast<size_t>(special_register_[s])]);
  }
  function.register_bytes = kNowhereBytes + allocation.bytes;
}

}  // namespace vqllm::ptx
