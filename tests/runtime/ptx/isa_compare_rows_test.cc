#include <functional>

#include "tests/runtime/ptx/support.h"
#include "tests/runtime/ptx/support/exact.h"
#include "tests/runtime/ptx/support/rows.h"

/// setp, set, selp, slct and testp of floats, in all types and relations, ordered and unordered.
namespace vqllm::ptx::test {
namespace {

struct FloatType {
  std::string name;
  FloatKind kind;
  char reg;
};
const std::vector<FloatType> kScalars = {
    {"f16", kF16Kind, 'h'}, {"bf16", kBf16Kind, 'h'}, {"f32", kF32Kind, 'r'}, {"f64", kF64Kind, 'l'}};
const std::vector<std::string> kRelations = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                             "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

bool Holds(const std::string& relation, const FloatKind& kind, bool ftz, uint64_t a, uint64_t b) {
  if (ftz) a = FlushSubnormal(kind, a);
  if (ftz) b = FlushSubnormal(kind, b);
  const int order = Compare(Decode(kind, a), Decode(kind, b));
  if (relation == "num") return order != 2;
  if (relation == "nan") return order == 2;
  if (order == 2) return relation.size() == 3;  // the unordered ones end in u
  const std::string base = relation.substr(0, 2);
  return base == "eq"   ? order == 0
         : base == "ne" ? order != 0
         : base == "lt" ? order < 0
         : base == "le" ? order <= 0
         : base == "gt" ? order > 0
                        : order >= 0;
}

std::vector<Row> Rows(const FloatKind& kind) {
  const uint64_t sign = uint64_t{1} << (kind.bits - 1);
  const uint64_t one = static_cast<uint64_t>(-kind.least + 1) << kind.mantissa;
  const uint64_t infinity = static_cast<uint64_t>(kind.most - kind.least + 2) << kind.mantissa;
  std::vector<uint64_t> values;
  for (const uint64_t bits :
       {uint64_t{0}, uint64_t{1}, (uint64_t{1} << kind.mantissa) - 1, uint64_t{1} << kind.mantissa, one,
        one + 1, infinity - 1, infinity, infinity + 1}) {
    values.push_back(bits);
    values.push_back(bits | sign);
  }
  return EdgeRows(values, 300, 3);
}

using Oracle = std::function<uint64_t(const Row&)>;
struct Case {
  RowInstruction instruction;
  Oracle expected;
};
void Check(const std::vector<Row>& rows, const std::vector<Case>& cases) {
  std::vector<RowInstruction> instructions;
  for (const Case& c : cases) instructions.push_back(c.instruction);
  const auto results = RunRows(instructions, rows);
  for (size_t k = 0; k < cases.size(); ++k) {
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(results[k][i], cases[k].expected(rows[i])) << fmt::format(
          "{} of {:x}, {:x}, {:x}", cases[k].instruction.text, rows[i][0], rows[i][1], rows[i][2]);
    }
  }
}

uint64_t Low(uint64_t value, int bits) { return bits == 64 ? value : value & ((uint64_t{1} << bits) - 1); }

// "", ".and" with a third operand and so on: how a comparison is combined with predicate c.
struct Logic {
  std::string name;
  std::string operand;
  bool Apply(bool value, uint64_t c) const {
    const bool other = ((c & 1) != 0) != (operand == ", !$c");
    return name == ".and"   ? value && other
           : name == ".or"  ? value || other
           : name == ".xor" ? value != other
                            : value;
  }
};
const std::vector<Logic> kLogic = {{"", ""}, {".and", ", $c"}, {".or", ", $c"}, {".xor", ", !$c"}};

TEST(IsaCompareRows, EveryRelationOfEveryFloat) {
  for (const FloatType& type : kScalars) {
    std::vector<Case> cases;
    const FloatKind kind = type.kind;
    const bool half = kind.bits == 16;
    const std::string sources = {type.reg, type.reg, 'p'};
    for (const std::string& relation : kRelations) {
      for (const Logic& logic : kLogic) {
        for (const bool ftz : {false, true}) {
          if (ftz && (kind.bits == 64 || kind.mantissa == 7)) continue;
          const std::string tail = "." + relation + logic.name + (ftz ? ".ftz" : "") + ".";
          const auto holds = [=](const Row& row) {
            return logic.Apply(Holds(relation, kind, ftz, Low(row[0], kind.bits), Low(row[1], kind.bits)),
                               row[2]);
          };
          cases.push_back({{"setp" + tail + type.name + " $d, $a, $b" + logic.operand + ";", 'p', sources},
                           [=](const Row& row) { return uint64_t{holds(row)}; }});
          const auto set = [&](const std::string& result, char reg, uint64_t yes) {
            cases.push_back({{"set" + tail + result + "." + type.name + " $d, $a, $b" + logic.operand + ";",
                              reg, sources},
                             [=](const Row& row) { return holds(row) ? yes : 0; }});
          };
          set("u32", 'r', 0xffffffffu);
          set("s32", 'r', 0xffffffffu);
          if (!half) set("f32", 'r', 0x3f800000u);
          if (half) set("u16", 'h', 0xffffu);
          if (half) set("s16", 'h', 0xffffu);
          if (half) set(type.name, 'h', kind.mantissa == 10 ? 0x3c00u : 0x3f80u);
        }
      }
    }
    // The second predicate is the contrary, combined in the same way.
    cases.push_back({{"{ .reg .pred %x; setp.lt.and." + type.name + " %x|$d, $a, $b, $c; }", 'p', sources},
                     [=](const Row& row) {
                       return uint64_t{
                           !Holds("lt", kind, false, Low(row[0], kind.bits), Low(row[1], kind.bits)) &&
                           (row[2] & 1) != 0};
                     }});
    Check(Rows(kind), cases);
  }
}

TEST(IsaCompareRows, PairsOfHalves) {
  for (const FloatType& type : {FloatType{"f16x2", kF16Kind, 'r'}, FloatType{"bf16x2", kBf16Kind, 'r'}}) {
    std::vector<Row> rows = Rows(type.kind);
    const std::vector<Row> singles = rows;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int k = 0; k < 2; ++k) {
        rows[i][k] = (singles[i][k] & 0xffff) | (singles[(i * 7 + 3) % rows.size()][k] & 0xffff) << 16;
      }
    }
    const FloatKind kind = type.kind;
    std::vector<Case> cases;
    for (const std::string& relation : kRelations) {
      for (const Logic& logic : kLogic) {
        const std::string tail = "." + relation + logic.name;
        const std::string operands = "$a, $b" + logic.operand + ";";
        const auto holds = [=](const Row& row, int half) {
          return logic.Apply(
              Holds(relation, kind, false, row[0] >> (16 * half) & 0xffff, row[1] >> (16 * half) & 0xffff),
              row[2]);
        };
        const auto both = [=](uint64_t yes) {
          return [=](const Row& row) { return (holds(row, 0) ? yes : 0) | (holds(row, 1) ? yes << 16 : 0); };
        };
        cases.push_back(
            {{"set" + tail + ".u32." + type.name + " $d, " + operands, 'r', "rrp"}, both(0xffff)});
        cases.push_back(
            {{"set" + tail + ".s32." + type.name + " $d, " + operands, 'r', "rrp"}, both(0xffff)});
        cases.push_back({{"set" + tail + "." + type.name + "." + type.name + " $d, " + operands, 'r', "rrp"},
                         both(kind.mantissa == 10 ? 0x3c00 : 0x3f80)});
        cases.push_back(
            {{"{ .reg .pred %x; .reg .pred %y; .reg .b32 %s;\nsetp" + tail + "." + type.name + " %x|%y, " +
                  operands + "\nselp.b32 $d, 1, 0, %x;\nselp.b32 %s, 2, 0, %y;\nor.b32 $d, $d, %s; }",
              'r', "rrp"},
             [=](const Row& row) { return uint64_t{holds(row, 0)} | uint64_t{holds(row, 1)} << 1; }});
      }
    }
    Check(rows, cases);
  }
}

TEST(IsaCompareRows, SelectionsAndProperties) {
  for (const FloatType& type : {kScalars[2], kScalars[3]}) {
    const FloatKind kind = type.kind;
    const int bits = kind.bits;
    const std::string& t = type.name;
    std::vector<Case> cases;
    const auto add = [&](const std::string& text, char dest, const std::string& sources,
                         const Oracle& expected) {
      cases.push_back({{text, dest, sources}, expected});
    };
    add("selp." + t + " $d, $a, $b, $c;", type.reg, {type.reg, type.reg, 'p'},
        [=](const Row& row) { return Low((row[2] & 1) != 0 ? row[0] : row[1], bits); });
    const uint64_t infinity = static_cast<uint64_t>(kind.most - kind.least + 2) << kind.mantissa;
    const auto magnitude = [=](const Row& row) { return row[0] & ((uint64_t{1} << (bits - 1)) - 1); };
    const auto property = [&](const std::string& name, const std::function<bool(uint64_t)>& holds) {
      add("testp." + name + "." + t + " $d, $a;", 'p', {type.reg},
          [=](const Row& row) { return uint64_t{holds(magnitude(row))}; });
    };
    property("finite", [=](uint64_t m) { return m < infinity; });
    property("infinite", [=](uint64_t m) { return m == infinity; });
    property("number", [=](uint64_t m) { return m <= infinity; });
    property("notanumber", [=](uint64_t m) { return m > infinity; });
    property("normal", [=](uint64_t m) { return m >= uint64_t{1} << kind.mantissa && m < infinity; });
    property("subnormal", [=](uint64_t m) { return m != 0 && m < uint64_t{1} << kind.mantissa; });
    Check(Rows(kind), cases);
  }
  // slct picks a where c >= 0: -0 is, NaN is not, and .ftz makes a negative subnormal zero.
  std::vector<Row> rows = Rows(kF32Kind);
  for (Row& row : rows) row = {row[1], ~row[1], row[0]};
  std::vector<Case> cases;
  for (const auto& [name, reg] : {std::pair("b16", 'h'), std::pair("b32", 'r'), std::pair("f32", 'r'),
                                  std::pair("f64", 'l'), std::pair("u64", 'l')}) {
    for (const bool ftz : {false, true}) {
      const int bits = reg == 'h' ? 16 : reg == 'r' ? 32 : 64;
      cases.push_back(
          {{fmt::format("slct{}.{}.f32 $d, $a, $b, $c;", ftz ? ".ftz" : "", name), reg, {reg, reg, 'r'}},
           [=](const Row& row) {
             return Low(Holds("ge", kF32Kind, ftz, Low(row[2], 32), 0) ? row[0] : row[1], bits);
           }});
    }
  }
  Check(rows, cases);
}

}  // namespace
}  // namespace vqllm::ptx::test
