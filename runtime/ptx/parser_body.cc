#include <algorithm>

#include "runtime/ptx/parser.h"
#include "vq/base/error.h"

namespace vqllm::ptx {
namespace {

struct SpecialName {
  std::string_view name;
  Special special;
};
constexpr SpecialName kSpecials[] = {
    {"%tid.x", Special::kTidX},
    {"%tid.y", Special::kTidY},
    {"%tid.z", Special::kTidZ},
    {"%ntid.x", Special::kNtidX},
    {"%ntid.y", Special::kNtidY},
    {"%ntid.z", Special::kNtidZ},
    {"%ctaid.x", Special::kCtaidX},
    {"%ctaid.y", Special::kCtaidY},
    {"%ctaid.z", Special::kCtaidZ},
    {"%nctaid.x", Special::kNctaidX},
    {"%nctaid.y", Special::kNctaidY},
    {"%nctaid.z", Special::kNctaidZ},
    {"%laneid", Special::kLaneid},
    {"%warpid", Special::kWarpid},
    {"%nwarpid", Special::kNwarpid},
    {"%smid", Special::kSmid},
    {"%nsmid", Special::kNsmid},
    {"%gridid", Special::kGridid},
    {"%lanemask_eq", Special::kLanemaskEq},
    {"%lanemask_lt", Special::kLanemaskLt},
    {"%lanemask_le", Special::kLanemaskLe},
    {"%lanemask_gt", Special::kLanemaskGt},
    {"%lanemask_ge", Special::kLanemaskGe},
    {"%dynamic_smem_size", Special::kDynamicSmemSize},
    {"%total_smem_size", Special::kTotalSmemSize},
    {"%clock", Special::kClock},
    {"%clock64", Special::kClock64},
    {"%globaltimer", Special::kGlobaltimer},
    // A launch without clusters is a grid of clusters of one block.
    {"%cluster_ctarank", Special::kClusterZero},
    {"%cluster_ctaid.x", Special::kClusterZero},
    {"%cluster_ctaid.y", Special::kClusterZero},
    {"%cluster_ctaid.z", Special::kClusterZero},
    {"%cluster_nctarank", Special::kClusterOne},
    {"%cluster_nctaid.x", Special::kClusterOne},
    {"%cluster_nctaid.y", Special::kClusterOne},
    {"%cluster_nctaid.z", Special::kClusterOne},
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void Parser::Body() {
  Expect("{");
  loc_ = {};
  const size_t outer = scopes_.size();
  for (;;) {
    if (Accept("{")) {
      Scope scope;
      scope.id = static_cast<int>(function_->scope_parent.size());
      function_->scope_parent.push_back(scopes_.back().id);
      scopes_.push_back(std::move(scope));
      if (scopes_.size() > 64) Refuse(Peek(), "blocks nested deeper than 64");
    } else if (Accept("}")) {
      if (scopes_.size() == outer) return;
      scopes_.pop_back();
    } else {
      BodyItem();
    }
  }
}

void Parser::BodyItem() {
  const Token token = Peek();
  const std::string_view text = token.text;
  if (Accept(";")) return;
  if (Accept(".reg")) return Registers();
  if (Accept(".shared")) return DeclareLocal(Space::kShared);
  if (Accept(".local")) return DeclareLocal(Space::kLocal);
  if (Accept(".param")) return DeclareLocal(Space::kParam);
  if (Accept(".global")) return DeclareGlobal(Space::kGlobal);
  if (Accept(".const")) return DeclareGlobal(Space::kConst);
  if (Accept(".loc")) return Loc();
  if (Accept(".pragma")) {
    while (!Accept(";")) Next();
    return;
  }
  if (token.kind == Token::Kind::kWord && Peek(1).text == ":") return LabelItem();
  if (text.starts_with('.')) Refuse(token, "expected a directive of a function body");
  Instruction();
}

void Parser::Registers() {
  const Token declared = Next();
  if (!declared.text.starts_with('.')) Refuse(declared, "expected a type of registers");
  const Type type = TypeFromName(declared.text.substr(1));
  if (type == Type::kNone || type == Type::kB128) Refuse(declared, "not a type of registers");
  const uint8_t bytes = type == Type::kPred ? 0 : static_cast<uint8_t>(std::max(2, TypeSize(type)));
  do {
    const Token name = Next();
    if (name.kind != Token::Kind::kWord) Refuse(name, "expected the name of a register");
    RegisterRange range;
    range.first = static_cast<int>(function_->registers.size());
    if (Accept("<")) {
      range.count = static_cast<int>(Unsigned(kMaxRegisters));
      Expect(">");
    }
    const size_t count = range.count ? static_cast<size_t>(range.count) : 1;
    if (function_->registers.size() + count > kMaxRegisters) Refuse(name, "too many registers");
    function_->registers.resize(function_->registers.size() + count, bytes);
    scopes_.back().registers[name.text] = range;
  } while (Accept(","));
  Expect(";");
}

int Parser::FindRegister(std::string_view name) const {
  size_t digits = name.size();
  while (digits > 0 && IsDigit(name[digits - 1])) --digits;
  const std::string_view prefix = name.substr(0, digits);
  const std::string_view number = name.substr(digits);
  int value = -1;
  if (!number.empty() && number.size() <= 6 && (number.size() == 1 || number[0] != '0')) {
    value = 0;
    for (const char c : number) value = value * 10 + (c - '0');
  }
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->registers.find(name);
        found != scope->registers.end() && found->second.count == 0) {
      return found->second.first;
    }
    if (value < 0) continue;
    if (const auto found = scope->registers.find(prefix);
        found != scope->registers.end() && value < found->second.count) {
      return found->second.first + value;
    }
  }
  return -1;
}

// What a header's function did in a kernel counts for the line of the kernel's own file that called it: of
// the chain of calls, the innermost line in the file of the outermost.
void Parser::Loc() {
  const int line = Peek().line;
  const auto place = [&] {
    const int file = static_cast<int>(Unsigned(1 << 20));
    const int source = static_cast<int>(Unsigned(1u << 30));
    return Place{file, source, static_cast<int>(Unsigned(1u << 30))};
  };
  const Place here = place();
  Inlined inlined{here[0], {here[0], here[1]}};
  while (Peek().kind != Token::Kind::kEnd && Peek().line == line) {
    if (!Accept("inlined_at")) {
      ++position_;  // flags, the name of the function
      continue;
    }
    const Place caller = place();
    const auto known = inlined_.find(caller);
    inlined = known != inlined_.end() ? known->second : Inlined{caller[0], {caller[0], caller[1]}};
    if (inlined.outer_file == here[0]) inlined.line = {here[0], here[1]};
  }
  inlined_[here] = inlined;
  loc_ = inlined.line;
}

void Parser::LabelItem() {
  Label label;
  const Token name = Next();
  Expect(":");
  label.name = name.text;
  label.scope = scopes_.back().id;
  label.statement = static_cast<int>(function_->statements.size());
  if (Accept(".branchtargets")) {
    label.is_list = true;
    do {
      label.targets.push_back(Next().text);
    } while (Accept(","));
    Expect(";");
  } else if (Peek().text == ".callprototype" || Peek().text == ".calltargets") {
    Refuse(Peek(), "indirect calls are not supported");
  }
  function_->labels.push_back(std::move(label));
}

void Parser::Instruction() {
  Statement statement;
  const Token first = Peek();
  statement.line = first.line;
  statement.source = loc_;
  statement.scope = scopes_.back().id;
  if (Accept("@")) {
    statement.guard_negated = Accept("!");
    const Token name = Next();
    statement.guard = FindRegister(name.text);
    if (statement.guard < 0 || function_->registers[statement.guard] != 0) {
      Refuse(name, "expected a predicate register");
    }
  }
  const Token opcode = Next();
  if (opcode.kind != Token::Kind::kWord) Refuse(opcode, "expected an instruction");
  statement.opcode = opcode.text;
  while (!Accept(";")) {
    if (!statement.operands.empty()) Expect(",");
    statement.operands.push_back(ParseOperand());
    if (statement.operands.size() > 16) Refuse(first, "more than 16 operands");
  }
  const Token& last = tokens_[position_ - 1];
  statement.text = source_.substr(static_cast<size_t>(first.text.data() - source_.data()),
                                  static_cast<size_t>(last.text.data() - first.text.data()) + 1);
  function_->statements.push_back(std::move(statement));
  if (++statements_ > kMaxStatements) Refuse(first, "more than 2^20 instructions");
}

Operand Parser::ParseOperand() {
  const Token token = Peek();
  if (token.text == "{") return VectorOperand();
  if (token.text == "[") return AddressOperand();
  if (token.text == "(") return ListOperand();
  if (Accept("!")) {
    Operand operand = NameOperand();
    if (operand.kind != Operand::Kind::kRegister) Refuse(token, "expected a predicate after '!'");
    operand.negated = true;
    return operand;
  }
  if (Accept("-")) {
    Operand operand = Number();
    if (operand.kind == Operand::Kind::kInteger) {
      operand.bits = uint64_t{0} - operand.bits;
    } else {
      operand.bits ^= uint64_t{1} << (operand.kind == Operand::Kind::kFloat ? 63 : 31);
    }
    return operand;
  }
  if (token.kind == Token::Kind::kNumber) return Number();
  return NameOperand();
}

Operand Parser::VectorOperand() {
  Operand vector;
  vector.kind = Operand::Kind::kVector;
  Expect("{");
  while (!Accept("}")) {
    if (!vector.elements.empty()) Expect(",");
    if (Peek().text == "{" || Peek().text == "[" || Peek().text == "(") Refuse(Peek(), "expected a scalar");
    vector.elements.push_back(ParseOperand());
    if (vector.elements.size() > 32) Refuse(Peek(), "a vector of more than 32 elements");
  }
  return vector;
}

Operand Parser::ListOperand() {
  Operand list;
  list.kind = Operand::Kind::kList;
  Expect("(");
  while (!Accept(")")) {
    if (!list.elements.empty()) Expect(",");
    if (Peek().text == "{" || Peek().text == "[" || Peek().text == "(") Refuse(Peek(), "expected a name");
    list.elements.push_back(ParseOperand());
    if (list.elements.size() > 256) Refuse(Peek(), "more than 256 parameters");
  }
  return list;
}

int64_t Parser::SignedOffset() {
  int64_t offset = 0;
  while (Peek().text == "+" || Peek().text == "-") {
    const Token sign = Next();
    const bool minus = (sign.text == "-") != Accept("-");
    const int64_t value = static_cast<int64_t>(Unsigned(uint64_t{1} << 40));
    offset += minus ? -value : value;
    if (offset > (int64_t{1} << 41) || offset < -(int64_t{1} << 41)) Refuse(sign, "an offset out of range");
  }
  return offset;
}

Operand Parser::AddressOperand() {
  Operand address;
  address.kind = Operand::Kind::kAddress;
  Expect("[");
  const Token base = Peek();
  Operand element = base.kind == Token::Kind::kNumber ? Number() : NameOperand();
  if (element.kind != Operand::Kind::kRegister && element.kind != Operand::Kind::kInteger &&
      element.kind != Operand::Kind::kVariable) {
    Refuse(base, "expected a register, a variable or a number as address");
  }
  if (element.second != -1) Refuse(base, "expected one register as address");
  address.offset = element.offset + SignedOffset();
  element.offset = 0;
  address.elements.push_back(std::move(element));
  Expect("]");
  return address;
}

Operand Parser::NameOperand() {
  const Token token = Next();
  if (token.kind != Token::Kind::kWord) Refuse(token, "expected an operand");
  Operand operand;
  operand.name = token.text;
  if (token.text == "_") {
    operand.kind = Operand::Kind::kSink;
    if (Accept("|")) {
      const Token name = Next();
      operand.second = FindRegister(name.text);
      if (operand.second < 0) Refuse(name, "an undeclared register");
    }
    return operand;
  }
  if (token.text == "WARP_SZ") {
    operand.bits = kWarpSize;
    return operand;
  }
  if (const int index = FindRegister(token.text); index >= 0) {
    operand.kind = Operand::Kind::kRegister;
    operand.index = index;
    if (Accept("|")) {
      const Token name = Next();
      operand.second = name.text == "_" ? -2 : FindRegister(name.text);
      if (operand.second == -1) Refuse(name, "an undeclared register");
    }
    return operand;
  }
  for (const SpecialName& special : kSpecials) {
    if (special.name == token.text) {
      operand.kind = Operand::Kind::kSpecial;
      operand.index = static_cast<int>(special.special);
      return operand;
    }
  }
  if (token.text.starts_with('%')) Refuse(token, "an undeclared or unknown register");
  operand.kind = Operand::Kind::kLabel;
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend() && operand.index < 0; ++scope) {
    if (const auto found = scope->variables.find(token.text); found != scope->variables.end()) {
      operand.kind = Operand::Kind::kVariable;
      operand.index = found->second;
    }
  }
  if (operand.index < 0) {
    if (const auto found = global_names_.find(token.text); found != global_names_.end()) {
      operand.kind = Operand::Kind::kVariable;
      operand.index = found->second;
      operand.global = true;
    } else if (const int function = FindFunction(token.text); function >= 0) {
      operand.kind = Operand::Kind::kFunction;
      operand.index = function;
    }
  }
  if (operand.kind == Operand::Kind::kVariable) operand.offset = SignedOffset();
  return operand;
}

}  // namespace vqllm::ptx
