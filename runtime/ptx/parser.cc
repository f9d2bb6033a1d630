#include "runtime/ptx/parser.h"

#include <bit>
#include <charconv>
#include <cstring>

#include "vq/base/error.h"

namespace vqllm::ptx {

Parser::Parser(std::string_view source, std::string_view name) : source_(source), name_(name) {
  if (source.size() > kMaxTextBytes) {
    Fail("{}: found {} bytes of PTX, allowed: {}", name, source.size(), kMaxTextBytes);
  }
  tokens_ = Lex(source, name_);
}

const Token& Parser::Peek(size_t ahead) const {
  return position_ + ahead < tokens_.size() ? tokens_[position_ + ahead] : tokens_.back();
}

Token Parser::Next() {
  const Token token = Peek();
  if (token.kind == Token::Kind::kEnd) Refuse(token, "the text ends in the middle");
  ++position_;
  return token;
}

bool Parser::Accept(std::string_view text) {
  if (Peek().kind == Token::Kind::kEnd || Peek().text != text) return false;
  ++position_;
  return true;
}

void Parser::Expect(std::string_view text) {
  if (!Accept(text)) Refuse(Peek(), fmt::format("expected '{}'", text));
}

void Parser::Refuse(const Token& token, std::string_view problem) const {
  Fail("{}:{}: {}, found '{}'", name_, token.line, problem, token.text.substr(0, 80));
}

Operand Parser::Number() {
  const Token token = Next();
  Operand operand;
  if (token.kind != Token::Kind::kNumber) Refuse(token, "expected a number");
  std::string_view text = token.text;
  const auto parse = [&](size_t skip, int base) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + skip, end, operand.bits, base);
    if (error != std::errc() || stop != end) Refuse(token, "a number out of range or malformed");
  };
  const char kind = text.size() > 2 && text[0] == '0' ? text[1] : '\0';
  if (kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D') {
    const bool single = kind == 'f' || kind == 'F';
    if (text.size() != (single ? 10u : 18u)) Refuse(token, "a float literal of the wrong length");
    operand.kind = single ? Operand::Kind::kFloat32 : Operand::Kind::kFloat;
    parse(2, 16);
  } else if (text.find('.') != std::string_view::npos) {
    double value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size()) Refuse(token, "a malformed float");
    operand.kind = Operand::Kind::kFloat;
    operand.bits = std::bit_cast<uint64_t>(value);
  } else {
    if (text.size() > 1 && (text.back() == 'U' || text.back() == 'u')) text.remove_suffix(1);
    if (kind == 'x' || kind == 'X') {
      parse(2, 16);
    } else if (kind == 'b' || kind == 'B') {
      parse(2, 2);
    } else if (text.size() > 1 && text[0] == '0') {
      parse(1, 8);
    } else {
      parse(0, 10);
    }
  }
  return operand;
}

uint64_t Parser::Unsigned(uint64_t limit) {
  const Token token = Peek();
  const Operand number = Number();
  if (number.kind != Operand::Kind::kInteger || number.bits > limit) {
    Refuse(token, fmt::format("expected a whole number of at most {}", limit));
  }
  return number.bits;
}

void Parser::SkipLine() {
  const int line = Peek().line;
  while (Peek().kind != Token::Kind::kEnd && Peek().line == line) ++position_;
}

void Parser::FileDirective() {
  const int number = static_cast<int>(Unsigned(1 << 20));
  const Token path = Next();
  if (path.kind != Token::Kind::kString) Refuse(path, "expected the path of .file");
  module_.files.emplace_back(number, path.text.substr(1, path.text.size() - 2));
  while (Accept(",")) Unsigned(~uint64_t{0});  // time stamp, size
}

void Parser::SkipSection() {
  while (Peek().text != "{") Next();
  Next();
  while (Next().text != "}") {
  }
}

ModuleSyntax Parser::Run() {
  bool is_extern = false;
  while (Peek().kind != Token::Kind::kEnd) {
    const Token token = Next();
    const std::string_view text = token.text;
    if (text == ".version" || text == ".target" || text == ".address_size") {
      if (text == ".address_size" && Peek().text != "64") Refuse(Peek(), "address size: allowed is 64");
      SkipLine();
    } else if (text == ".visible" || text == ".weak" || text == ".common" || text == ";") {
      continue;
    } else if (text == ".extern") {
      is_extern = true;
      continue;
    } else if (text == ".shared") {
      DeclareGlobal(Space::kShared);
    } else if (text == ".global") {
      DeclareGlobal(Space::kGlobal);
    } else if (text == ".const") {
      DeclareGlobal(Space::kConst);
    } else if (text == ".entry" || text == ".func") {
      Function(text == ".entry", is_extern);
    } else if (text == ".file") {
      FileDirective();
    } else if (text == ".section") {
      SkipSection();
    } else if (text == ".pragma") {
      while (!Accept(";")) Next();
    } else {
      Refuse(token, "expected a directive of the module");
    }
    is_extern = false;
  }
  return std::move(module_);
}

int Parser::FindFunction(std::string_view name) const {
  const auto found = function_names_.find(name);
  return found == function_names_.end() ? -1 : found->second;
}

void Parser::ParameterList(FunctionSyntax& function, std::vector<int>& list) {
  if (!Accept("(")) return;
  while (!Accept(")")) {
    if (Peek().text == ".reg") Refuse(Peek(), "parameters in registers are not supported");
    Expect(".param");
    Variable variable = Declaration(Space::kParam);
    scopes_.front().variables[variable.name] = static_cast<int>(function.variables.size());
    list.push_back(static_cast<int>(function.variables.size()));
    function.variables.push_back(std::move(variable));
    if (Peek().text != ")") Expect(",");
  }
}

void Parser::FunctionDirectives(FunctionSyntax& function) {
  while (Peek().text != "{" && Peek().text != ";") {
    const Token token = Next();
    const std::string_view text = token.text;
    if (text == ".reqntid" || text == ".maxntid") {
      std::array<uint32_t, 3> threads = {1, 1, 1};
      int n = 0;
      do {
        if (n == 3) Refuse(token, "more than three numbers of threads");
        threads[n++] = static_cast<uint32_t>(Unsigned(1 << 16));
      } while (Accept(","));
      if (text == ".reqntid") function.required_threads = threads;
      const uint64_t product = uint64_t{threads[0]} * threads[1] * threads[2];
      function.max_threads = static_cast<uint32_t>(std::min<uint64_t>(product, 1 << 20));
    } else if (text == ".minnctapersm" || text == ".maxnreg" || text == ".maxnctapersm") {
      Unsigned(1 << 20);
    } else if (text == ".pragma") {
      while (!Accept(";")) Next();
    } else if (text != ".noreturn") {
      Refuse(token, "expected a directive of a function");
    }
  }
}

void Parser::Function(bool is_kernel, bool is_extern) {
  FunctionSyntax function;
  function.is_kernel = is_kernel;
  function.line = Peek().line;
  function.scope_parent = {-1};
  scopes_.assign(1, Scope{});
  ParameterList(function, function.returns);
  const Token name = Next();
  if (name.kind != Token::Kind::kWord) Refuse(name, "expected the name of a function");
  function.name = name.text;
  ParameterList(function, function.parameters);
  FunctionDirectives(function);
  int index = FindFunction(function.name);
  if (index < 0) {
    index = static_cast<int>(module_.functions.size());
    function_names_[function.name] = index;
    module_.functions.push_back(std::move(function));
  } else if (Peek().text == "{") {
    if (module_.functions[index].defined) Refuse(name, "a second definition of a function");
    module_.functions[index] = std::move(function);
  }
  if (Accept(";")) return;  // a declaration
  if (is_extern) Refuse(name, "a body for an .extern function");
  module_.functions[index].defined = true;
  function_ = &module_.functions[index];
  Body();
  function_ = nullptr;
}

Variable Parser::Declaration(Space space) {
  Variable variable;
  variable.space = space;
  variable.line = Peek().line;
  Type type = Type::kNone;
  uint64_t align = 0;
  uint64_t vector = 1;
  while (Peek().kind == Token::Kind::kWord && Peek().text.starts_with('.')) {
    const Token token = Next();
    if (token.text == ".align") {
      align = Unsigned(1 << 16);
      if (!std::has_single_bit(align)) Refuse(token, "an alignment that is no power of two");
    } else if (token.text == ".v2" || token.text == ".v4") {
      vector = token.text == ".v2" ? 2 : 4;
    } else if (token.text == ".ptr") {
      if (Peek().text == ".global" || Peek().text == ".const" || Peek().text == ".shared" ||
          Peek().text == ".local") {
        Next();
      }
      // The alignment after .ptr is that of what the pointer points at.
      if (Accept(".align")) Unsigned(1 << 16);
    } else if (const Type named = TypeFromName(token.text.substr(1)); named != Type::kNone) {
      type = named;
    } else {
      Refuse(token, "expected a type or an alignment");
    }
  }
  const Token name = Next();
  if (name.kind != Token::Kind::kWord) Refuse(name, "expected the name of a variable");
  if (TypeSize(type) == 0) Refuse(name, "a variable without a type that has a size");
  variable.name = name.text;
  uint64_t count = vector;
  while (Accept("[")) {
    if (Accept("]")) {
      variable.dynamic = true;
      continue;
    }
    const uint64_t n = Unsigned(kMaxVariableBytes);
    if (n != 0 && count > kMaxVariableBytes / n) Refuse(name, "a variable of more than 1 GiB");
    count *= n;
    Expect("]");
  }
  variable.bytes = count * static_cast<uint64_t>(TypeSize(type));
  if (variable.bytes > kMaxVariableBytes) Refuse(name, "a variable of more than 1 GiB");
  variable.align = static_cast<uint32_t>(align ? align : vector * static_cast<uint64_t>(TypeSize(type)));
  if (Peek().text == "=") {
    if (space != Space::kGlobal && space != Space::kConst) Refuse(Peek(), "an initial value here");
    InitialValue(variable, type);
  }
  return variable;
}

void Parser::InitialValue(Variable& variable, Type type) {
  Expect("=");
  const Token begin = Peek();
  int depth = 0;
  do {
    if (Accept("{")) {
      if (++depth > 8) Refuse(begin, "an initial value nested too deeply");
    } else if (depth > 0 && Accept("}")) {
      --depth;
    } else if (depth > 0 && Accept(",")) {
      continue;
    } else {
      AppendInitial(variable, type);
    }
  } while (depth > 0);
  if (variable.dynamic) {
    variable.bytes = variable.initial.size();
    variable.dynamic = false;
  }
  if (variable.initial.size() > variable.bytes) Refuse(begin, "more initial values than the variable holds");
}

void Parser::AppendInitial(Variable& variable, Type type) {
  const bool minus = Accept("-");
  const Token token = Peek();
  if (token.kind == Token::Kind::kWord) Refuse(token, "an address as initial value is not supported");
  const Operand number = Number();
  uint64_t bits = number.bits;
  if (number.kind == Operand::Kind::kFloat && type == Type::kF32) {
    bits = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
  }
  if (number.kind == Operand::Kind::kInteger) {
    if (minus) bits = uint64_t{0} - bits;
  } else if (minus) {
    bits ^= uint64_t{1} << (number.kind == Operand::Kind::kFloat && type != Type::kF32 ? 63 : 31);
  }
  const size_t size = static_cast<size_t>(TypeSize(type));
  if (variable.initial.size() + size > kMaxInitialBytes)
    Refuse(token, "an initial value of more than 64 MiB");
  for (size_t i = 0; i < size; ++i) {
    variable.initial.push_back(i < 8 ? static_cast<uint8_t>(bits >> (8 * i)) : uint8_t{0});
  }
}

void Parser::DeclareGlobal(Space space) {
  const Token token = Peek();
  Variable variable = Declaration(space);
  Expect(";");
  if (variable.dynamic && space != Space::kShared) Refuse(token, "an array without a size");
  const auto [found, fresh] =
      global_names_.emplace(variable.name, static_cast<int>(module_.variables.size()));
  if (!fresh) Refuse(token, "a second variable of one name");
  module_.variables.push_back(std::move(variable));
}

void Parser::DeclareLocal(Space space) {
  const Token token = Peek();
  Variable variable = Declaration(space);
  Expect(";");
  if (variable.dynamic) Refuse(token, "an array without a size");
  scopes_.back().variables[variable.name] = static_cast<int>(function_->variables.size());
  function_->variables.push_back(std::move(variable));
  if (function_->variables.size() > kMaxRegisters) Refuse(token, "too many variables");
}

ModuleSyntax ParsePtx(std::string_view source, std::string_view name) { return Parser(source, name).Run(); }

}  // namespace vqllm::ptx
