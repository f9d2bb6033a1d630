#include "runtime/ptx/opcode.h"

#include <algorithm>
#include <map>
#include <string>

#include "vq/base/check.h"

namespace vqllm::ptx {
namespace {

struct PartSet {
  std::string_view name;
  std::string_view parts;
};
constexpr PartSet kPartSets[] = {
    {"int", "u16|u32|u64|s16|s32|s64"},
    {"int32", "u32|s32"},
    {"int64", "u32|s32|u64|s64"},
    {"bits", "b16|b32|b64"},
    {"any", "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"},
    {"half", "f16|f16x2|bf16|bf16x2"},
    {"mem", "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"},
    {"round", "rn|rz|rm|rp"},
    {"scope", "cta|cluster|gpu|sys"},
    {"order", "relaxed|acquire|release|acq_rel"},
    {"atomspace", "global|shared|shared::cta"},
    {"space", "global|shared|shared::cta|local|param|param::entry|param::func|const"},
    {"data", "global|shared|shared::cta|local|param|param::func"},
    {"level1", "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"},
    {"level2", "L2::evict_normal|L2::evict_first|L2::evict_last|L2::cache_hint"},
    {"prefetch", "L2::64B|L2::128B|L2::256B"},
    {"icmp", "eq|ne|lt|le|gt|ge"},
    {"ucmp", "eq|ne|lt|le|gt|ge|lo|ls|hi|hs"},
    {"fcmp", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"},
    {"logic", "and|or|xor"},
    {"plain", "u8|u16|u32|u64|s8|s16|s32|s64"},
};

// The choices of one pattern part; `optional` where it may be left out.
struct PatternPart {
  std::vector<std::string_view> choices;
  bool optional = false;
};

std::vector<std::string_view> Split(std::string_view text, char at) {
  std::vector<std::string_view> pieces;
  while (true) {
    const size_t end = text.find(at);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

std::vector<PatternPart> ParsePattern(std::string_view pattern) {
  std::vector<PatternPart> parts;
  for (std::string_view piece : Split(pattern, '.')) {
    PatternPart part;
    part.optional = piece.starts_with('[');
    if (part.optional || piece.starts_with('{')) piece = piece.substr(1, piece.size() - 2);
    for (const std::string_view choice : Split(piece, '|')) {
      if (!choice.starts_with('@')) {
        part.choices.push_back(choice);
        continue;
      }
      const auto set = std::find_if(std::begin(kPartSets), std::end(kPartSets),
                                    [&](const PartSet& s) { return s.name == choice.substr(1); });
      VQLLM_CHECK(set != std::end(kPartSets), "unknown set {} in pattern {}", choice, pattern);
      for (const std::string_view member : Split(set->parts, '|')) part.choices.push_back(member);
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

bool MatchFrom(const std::vector<PatternPart>& pattern, size_t i, const Opcode& opcode, size_t j) {
  if (i == pattern.size()) return j == opcode.parts.size();
  const PatternPart& part = pattern[i];
  if (j < opcode.parts.size() && std::ranges::find(part.choices, opcode.parts[j]) != part.choices.end() &&
      MatchFrom(pattern, i + 1, opcode, j + 1)) {
    return true;
  }
  return part.optional && MatchFrom(pattern, i + 1, opcode, j);
}

struct CompiledForm {
  const OpcodeForm* form;
  std::vector<PatternPart> parts;  // without the base
};

// The rows by base mnemonic, patterns cut once.
const std::map<std::string_view, std::vector<CompiledForm>>& Index() {
  static const auto* const index = [] {
    auto* map = new std::map<std::string_view, std::vector<CompiledForm>>;
    for (const OpcodeForm& form : OpcodeForms()) {
      std::vector<PatternPart> parts = ParsePattern(form.pattern);
      const std::vector<std::string_view> bases = parts.front().choices;
      parts.erase(parts.begin());
      for (const std::string_view base : bases) (*map)[base].push_back({&form, parts});
    }
    return map;
  }();
  return *index;
}

}  // namespace

Opcode::Opcode(std::string_view opcode) : text(opcode) {
  parts = Split(opcode, '.');
  base = parts.front();
  parts.erase(parts.begin());
  for (const std::string_view part : parts) {
    if (const Type named = TypeFromName(part); named != Type::kNone) types.push_back(named);
  }
}

bool Opcode::Has(std::string_view part) const { return std::ranges::find(parts, part) != parts.end(); }

int Opcode::Find(std::span<const std::string_view> choices) const {
  for (size_t i = 0; i < choices.size(); ++i) {
    if (Has(choices[i])) return static_cast<int>(i);
  }
  return -1;
}

bool Matches(std::string_view pattern, const Opcode& opcode) {
  std::vector<PatternPart> parts = ParsePattern(pattern);
  if (std::ranges::find(parts.front().choices, opcode.base) == parts.front().choices.end()) return false;
  return MatchFrom(parts, 1, opcode, 0);
}

std::vector<std::string> Spellings(std::string_view pattern) {
  constexpr size_t kMost = 3000;
  const std::vector<PatternPart> parts = ParsePattern(pattern);
  // Choice of each part: an index, or -1 for leaving it out.
  const auto spell = [&](const std::vector<int>& choice) {
    std::string text;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (choice[i] < 0) continue;
      if (!text.empty()) text += '.';
      text += parts[i].choices[static_cast<size_t>(choice[i])];
    }
    return text;
  };
  size_t product = 1;
  std::vector<int> first;
  for (const PatternPart& part : parts) {
    product = std::min(kMost + 1, product * (part.choices.size() + (part.optional ? 1 : 0)));
    first.push_back(part.optional ? -1 : 0);
  }
  std::vector<std::string> spellings;
  if (product > kMost) {
    for (size_t i = 0; i < parts.size(); ++i) {
      std::vector<int> choice = first;
      for (choice[i] = first[i]; choice[i] < static_cast<int>(parts[i].choices.size()); ++choice[i]) {
        spellings.push_back(spell(choice));
      }
    }
    return spellings;
  }
  std::vector<int> choice = first;
  while (true) {
    spellings.push_back(spell(choice));
    size_t i = 0;
    while (i < parts.size() && ++choice[i] == static_cast<int>(parts[i].choices.size())) {
      choice[i] = first[i];
      ++i;
    }
    if (i == parts.size()) return spellings;
  }
}

std::vector<const OpcodeForm*> FindForms(const Opcode& opcode) {
  std::vector<const OpcodeForm*> forms;
  const auto found = Index().find(opcode.base);
  if (found == Index().end() || opcode.parts.size() > 16) return forms;
  for (const CompiledForm& compiled : found->second) {
    if (MatchFrom(compiled.parts, 0, opcode, 0)) forms.push_back(compiled.form);
  }
  return forms;
}

}  // namespace vqllm::ptx
