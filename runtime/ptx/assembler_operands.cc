#include <algorithm>
#include <bit>

#include "runtime/ptx/assembler.h"
#include "runtime/ptx/convert.h"
#include "runtime/ptx/select.h"
#include "vq/base/check.h"

namespace vqllm::ptx {
namespace {

// The bits of a literal as a value of `type`.
uint64_t LiteralBits(const Operand& operand, Type type) {
  switch (operand.kind) {
    case Operand::Kind::kFloat32:
      if (type == Type::kF64) {
        return std::bit_cast<uint64_t>(
            static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(operand.bits))));
      }
      return operand.bits;
    case Operand::Kind::kFloat:
      if (type == Type::kF32) {
        return std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(operand.bits)));
      }
      return operand.bits;
    default:
      return operand.bits;
  }
}

bool IsLiteral(const Operand& operand) {
  return operand.kind == Operand::Kind::kInteger || operand.kind == Operand::Kind::kFloat ||
         operand.kind == Operand::Kind::kFloat32;
}

int VectorLength(const Opcode& opcode) {
  return opcode.Has("v2") ? 2 : opcode.Has("v4") ? 4 : opcode.Has("v8") ? 8 : 1;
}

// Could this operand stand for this letter? Enough to tell the forms of one opcode apart.
bool Fits(const Operand& operand, char letter, const FunctionSyntax& function) {
  switch (letter) {
    case 'M':
      return operand.kind == Operand::Kind::kAddress;
    case 'P':
      return (operand.kind == Operand::Kind::kRegister && function.registers[operand.index] == 0) ||
             operand.kind == Operand::Kind::kInteger || operand.kind == Operand::Kind::kSink;
    case 'u':
      return !(operand.kind == Operand::Kind::kRegister && function.registers[operand.index] == 0);
    default:
      return true;
  }
}

}  // namespace

void Assembler::RefuseOperand(std::string_view problem) const {
  Refuse(statement_->line, statement_->text, problem);
}

const OpcodeForm& Assembler::PickForm(const Statement& statement, const Opcode& opcode) const {
  const std::vector<const OpcodeForm*> forms = FindForms(opcode);
  if (forms.empty()) RefuseOperand("unsupported opcode, modifier or type");
  for (const OpcodeForm* form : forms) {
    if (form->shape != Shape::kPlain && form->shape != Shape::kMemory && form->shape != Shape::kBarrier) {
      return *form;
    }
    size_t at = 0;
    bool fits = true;
    bool optional = false;
    // The last operand of an access with a cache hint is its policy.
    const size_t count =
        statement.operands.size() - (opcode.Has("L2::cache_hint") && !statement.operands.empty());
    for (const char letter : form->operands) {
      if (letter == ':') continue;
      if (letter == '?') {
        optional = true;
        continue;
      }
      if (at >= count) {
        fits &= optional;
        break;
      }
      fits &= Fits(statement.operands[at], letter, *syntax_);
      ++at;
    }
    if (fits && at == count) return *form;
  }
  RefuseOperand("the operands do not fit the opcode");
}

int Assembler::LetterBytes(char letter, const Opcode& opcode) const {
  switch (letter) {
    case 'T':
    case 'V':
      return TypeSize(opcode.type());
    case 'S':
      return TypeSize(opcode.last_type());
    case 'W':
      return 2 * TypeSize(opcode.type());
    case 'h':
      return 2;
    case 'u':
    case 'D':
      return 4;
    case 'l':
      return 8;
    default:
      return 0;
  }
}

Type Assembler::LetterType(char letter, const Opcode& opcode) const {
  if (letter == 'T' || letter == 'V') return opcode.type();
  if (letter == 'S') return opcode.last_type();
  return Type::kB64;
}

void Assembler::AddDest(Place place) {
  VQLLM_CHECK(dests_ < 2, "a form with more than two scalar destinations");
  instruction_.dest[dests_++] = place;
}

void Assembler::AddSource(Place place) {
  VQLLM_CHECK(sources_ < 4, "a form with more than four scalar sources");
  instruction_.source[sources_++] = place;
}

void Assembler::Encode(const Statement& statement, const Opcode& opcode, const OpcodeForm& form) {
  instruction_.handler = form.select(opcode);
  VQLLM_CHECK(instruction_.handler != nullptr, "no handler for {}", opcode.text);
  const bool shared = opcode.Has("shared") || opcode.Has("shared::cta");
  instruction_.space = opcode.Has("global")  ? Space::kGlobal
                       : shared              ? Space::kShared
                       : opcode.Has("local") ? Space::kLocal
                       : opcode.Has("const") ? Space::kConst
                       : opcode.Has("param") || opcode.Has("param::entry") || opcode.Has("param::func")
                           ? Space::kParam
                           : Space::kGeneric;
  if (form.shape == Shape::kMemory) {
    instruction_.element_bytes = static_cast<uint8_t>(TypeSize(opcode.type()));
    instruction_.elements = static_cast<uint8_t>(VectorLength(opcode));
    if (instruction_.element_bytes * instruction_.elements > 32)
      RefuseOperand("a vector of more than 32 bytes");
    instruction_.is_signed = IsSigned(opcode.type());
    const bool load = opcode.base != "st";
    switch (instruction_.space) {
      case Space::kShared:
        instruction_.cls = load ? InstructionClass::kLoadShared : InstructionClass::kStoreShared;
        break;
      case Space::kLocal:
        instruction_.cls = load ? InstructionClass::kLoadLocal : InstructionClass::kStoreLocal;
        break;
      case Space::kParam:
      case Space::kConst:
        instruction_.cls = InstructionClass::kLoadParam;
        break;
      default:
        break;
    }
  }
  if (opcode.base == "set" || opcode.base == "setp") instruction_.immediate = CompareImmediate(opcode);
  if (opcode.base == "mma") instruction_.immediate = opcode.Has("satfinite") ? 1 : 0;
  if (opcode.base == "atom" || opcode.base == "red") {
    instruction_.element_bytes = static_cast<uint8_t>(TypeSize(opcode.type()));
  }
  if (opcode.base == "cvt") instruction_.immediate = Conversion(opcode).Pack();
  const bool strong =
      opcode.Has("volatile") || opcode.Has("acquire") || opcode.Has("release") || opcode.Has("relaxed");
  if ((form.cls == InstructionClass::kAtomic || strong) && instruction_.space != Space::kShared &&
      instruction_.space != Space::kLocal) {
    program_.functions[function_index_].ordered = true;
  }
  const bool hint = opcode.Has("L2::cache_hint");
  size_t at = 0;
  bool is_dest = form.operands.find(':') != std::string_view::npos;
  for (const char letter : form.operands) {
    if (letter == ':') {
      is_dest = false;
    } else if (letter != '?' && at < statement.operands.size() - hint) {
      EncodeOperand(statement.operands[at++], letter, is_dest);
    }
  }
  if (form.cls == InstructionClass::kAsyncCopy && form.operands.starts_with(":MM")) {
    const uint32_t bytes = instruction_.immediate;
    if (bytes != 16 && (opcode.Has("cg") || (bytes != 4 && bytes != 8)))
      RefuseOperand("a copy of another size");
    instruction_.is_signed = form.operands.ends_with('P');  // the third source is a predicate
  }
  if (hint) Source(statement.operands.back(), 8, Type::kB64, false, nullptr);  // checked, no effect
}

void Assembler::EncodeOperand(const Operand& operand, char letter, bool is_dest) {
  const Opcode& opcode = *opcode_;
  switch (letter) {
    case 'M':
      return EncodeAddress(operand);
    case 'I': {
      if (operand.kind != Operand::Kind::kInteger || operand.bits > 0xffffffffu) {
        RefuseOperand("expected a number as literal");
      }
      instruction_.immediate = static_cast<uint32_t>(operand.bits);
      return;
    }
    case 'V':
      return EncodeVector(operand, instruction_.elements, instruction_.element_bytes, is_dest, true);
    case 'P':
      if (is_dest) {
        AddDest(Dest(operand, 0, false, nullptr));
      } else {
        AddSource(PredicateSource(operand, sources_));
      }
      return;
    case 'Q':
    case 'D': {
      AddDest(Dest(operand, letter == 'Q' ? 0 : 4, false, nullptr));
      if (operand.second >= 0) {
        Operand second = operand;
        second.kind = Operand::Kind::kRegister;
        second.index = operand.second;
        second.second = -1;
        AddDest(Dest(second, 0, false, nullptr));
      }
      return;
    }
    default:
      break;
  }
  if (operand.second != -1) RefuseOperand("unexpected '|'");
  if (letter >= '1' && letter <= '9') {
    return EncodeVector(operand, static_cast<size_t>(letter - '0'), 4, is_dest, false);
  }
  const int bytes = LetterBytes(letter, opcode);
  const bool converts = opcode.base == "cvt";
  if (is_dest) {
    AddDest(Dest(operand, bytes, converts, &instruction_.dest_bytes));
  } else {
    uint8_t actual = 0;
    AddSource(Source(operand, bytes, LetterType(letter, opcode), converts, &actual));
    if (converts && sources_ > 1 && actual != instruction_.source_bytes) {
      RefuseOperand("sources of different widths");
    }
    instruction_.source_bytes = actual;
  }
}

void Assembler::EncodeVector(const Operand& operand, size_t count, int bytes, bool is_dest, bool wider) {
  has_list_ = true;
  std::vector<const Operand*> elements;
  if (operand.kind == Operand::Kind::kVector) {
    for (const Operand& element : operand.elements) elements.push_back(&element);
  } else {
    elements.push_back(&operand);
  }
  if (elements.size() != count) RefuseOperand("a vector of the wrong length");
  int width = -1;
  for (const Operand* element : elements) {
    uint8_t actual = static_cast<uint8_t>(std::max(2, bytes));
    if (element->second != -1) RefuseOperand("unexpected '|'");
    const bool sink = element->kind == Operand::Kind::kSink;
    list_.push_back(is_dest ? Dest(*element, bytes, wider, &actual)
                            : Source(*element, bytes, Type::kB64, wider, &actual));
    if (sink) continue;
    if (width >= 0 && width != actual) RefuseOperand("registers of different widths in one vector");
    width = actual;
  }
  if (width < 0) width = std::max(2, bytes);
  if (wider) (is_dest ? instruction_.dest_bytes : instruction_.source_bytes) = static_cast<uint8_t>(width);
}

void Assembler::EncodeAddress(const Operand& operand) {
  if (operand.kind != Operand::Kind::kAddress) RefuseOperand("expected an address in brackets");
  const Operand& base = operand.elements[0];
  const bool second = addresses_++ > 0;
  int64_t& offset = second ? instruction_.offset2 : instruction_.offset;
  bool& wide = second ? instruction_.wide_address2 : instruction_.wide_address;
  offset = operand.offset;
  if (base.kind == Operand::Kind::kVariable) {
    const Space space =
        base.global ? module_.variables[base.index].space : syntax_->variables[base.index].space;
    const bool is_argument =
        !base.global && syntax_->is_kernel && std::ranges::count(syntax_->parameters, base.index) > 0;
    if (instruction_.space == Space::kParam) {
      if (space != Space::kParam) RefuseOperand("expected a parameter");
      if (is_argument) {
        offset += variable_offset_[function_index_][base.index];
        const int64_t bytes = int64_t{instruction_.element_bytes} * instruction_.elements;
        if (offset < 0 || offset + bytes > program_.functions[function_index_].parameter_bytes) {
          RefuseOperand("outside the parameters of the kernel");
        }
        if (opcode_->base == "st") RefuseOperand("the parameters of a kernel are read-only");
        return;  // no address register
      }
      instruction_.space = Space::kLocal;  // parameters of functions lie in local memory
    } else if (instruction_.space != space && instruction_.space != Space::kGeneric) {
      RefuseOperand("a variable of another state space");
    }
    wide = true;
    AddSource(VariableAddress(base, 8));
    instruction_.has_address = true;
    return;
  }
  if (opcode_->base == "st" && instruction_.space == Space::kParam) {
    RefuseOperand("st.param needs a variable");
  }
  uint8_t actual = 8;
  if (base.kind == Operand::Kind::kRegister) {
    actual = syntax_->registers[base.index];
    if (actual != 4 && actual != 8) RefuseOperand("an address of 32 or 64 bits");
    AddSource(Source(base, actual, Type::kB64, false, nullptr));
  } else {
    AddSource(Constant(base.bits, 8));
  }
  wide = actual == 8;
  instruction_.has_address = true;
}

Place Assembler::Register(int index, int bytes, bool wider, uint8_t* actual) {
  const uint8_t have = syntax_->registers[static_cast<size_t>(index)];
  const int need = bytes == 0 ? 0 : std::max(2, bytes);
  if (have != need && !(wider && need != 0 && have > need)) {
    RefuseOperand(need == 0   ? "expected a predicate"
                  : have == 0 ? "unexpected predicate"
                              : "a register of another width than the type");
  }
  if (actual != nullptr) *actual = have;
  return static_cast<Place>(index + 1) * 2;
}

Place Assembler::Dest(const Operand& operand, int bytes, bool wider, uint8_t* actual) {
  if (operand.kind == Operand::Kind::kSink) {
    if (actual != nullptr) *actual = static_cast<uint8_t>(std::max(2, bytes));
    return kNowhere;
  }
  if (operand.kind != Operand::Kind::kRegister || operand.negated) {
    RefuseOperand("expected a register as destination");
  }
  const Place place = Register(operand.index, bytes, wider, actual);
  access_.writes.push_back(place / 2);
  return place;
}

Place Assembler::PredicateSource(const Operand& operand, int position) {
  if (operand.kind == Operand::Kind::kInteger) return Constant(operand.bits ? kAllLanes : 0, 0);
  if (operand.kind != Operand::Kind::kRegister) RefuseOperand("expected a predicate");
  if (operand.negated) instruction_.negate |= static_cast<uint8_t>(1 << position);
  const Place place = Register(operand.index, 0, false, nullptr);
  access_.reads.push_back(place / 2);
  return place;
}

Place Assembler::SpecialRegister(const Operand& operand, int bytes) {
  if (operand.index >= static_cast<int>(Special::kClock)) RefuseOperand("a clock is read by mov only");
  if (bytes != 4) RefuseOperand("a special register has 32 bits");
  int& index = special_register_[static_cast<size_t>(operand.index)];
  if (index < 0) {
    index = static_cast<int>(register_bytes_.size());
    register_bytes_.push_back(4);
  }
  access_.reads.push_back(static_cast<uint32_t>(index));
  return static_cast<Place>(index) * 2;
}

Place Assembler::VariableAddress(const Operand& operand, int bytes) {
  if (bytes != 4 && bytes != 8) RefuseOperand("an address of 32 or 64 bits");
  const uint8_t width = static_cast<uint8_t>(bytes);
  const uint64_t addend = static_cast<uint64_t>(operand.offset);
  if (operand.global) {
    if (program_.variables[operand.index].space == Space::kShared) {
      program_.functions[function_index_].shared_variables.push_back(operand.index);
    }
    return Constant(addend, width, operand.index);
  }
  const Variable& variable = syntax_->variables[operand.index];
  const uint32_t offset = variable_offset_[function_index_][operand.index];
  if (variable.space == Space::kShared) {
    program_.functions[function_index_].shared_variables.push_back(static_cast<int>(offset));
    return Constant(addend, width, static_cast<int>(offset));
  }
  const bool is_argument = syntax_->is_kernel && std::ranges::count(syntax_->parameters, operand.index) > 0;
  const uint32_t base = is_argument ? 0 : program_.functions[function_index_].local_base;
  return Constant(addend + base + offset, width);
}

Place Assembler::Source(const Operand& operand, int bytes, Type type, bool wider, uint8_t* actual) {
  if (operand.negated) RefuseOperand("unexpected '!'");
  const uint8_t width = static_cast<uint8_t>(std::max(2, bytes));
  if (actual != nullptr) *actual = width;
  switch (operand.kind) {
    case Operand::Kind::kRegister: {
      const Place place = Register(operand.index, bytes, wider, actual);
      access_.reads.push_back(place / 2);
      return place;
    }
    case Operand::Kind::kSpecial:
      return SpecialRegister(operand, bytes);
    case Operand::Kind::kVariable:
      return VariableAddress(operand, bytes);
    default:
      break;
  }
  if (!IsLiteral(operand)) RefuseOperand("expected a register, a number or a variable");
  if (operand.kind == Operand::Kind::kInteger && (type == Type::kF32 || type == Type::kF64)) {
    RefuseOperand("expected a float literal");
  }
  uint64_t bits = LiteralBits(operand, type);
  if (width < 8) bits &= (uint64_t{1} << (8 * width)) - 1;
  return Constant(bits, width);
}

Place Assembler::Constant(uint64_t bits, uint8_t bytes, int variable) {
  const auto [found, fresh] = constants_.try_emplace({bits, bytes, variable}, program_.constant_bytes | 1u);
  if (fresh) {
    program_.constants.push_back({program_.constant_bytes, bytes, bits, variable});
    // 64-byte steps keep every constant aligned for the widest vector loads.
    program_.constant_bytes += std::max<uint32_t>(64, WarpBytes(bytes));
    if (program_.constant_bytes > kMaxConstantBytes) RefuseOperand("more than 64 MiB of constants");
  }
  return found->second;
}

}  // namespace vqllm::ptx
