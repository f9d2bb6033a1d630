#include <functional>

#include "tests/runtime/ptx/support.h"
#include "tests/runtime/ptx/support/exact.h"
#include "tests/runtime/ptx/support/rows.h"

/// Every opcode of floats in all of its types and roundings, on all pairs of edge values (NaN, infinities,
/// subnormals, ties, overflow) and on random bits, against exact arithmetic rounded once.
namespace vqllm::ptx::test {
namespace {

struct FloatType {
  std::string name;
  FloatKind kind;
  int halves = 1;  ///< elements of the register
  char reg = 'r';
};
const FloatType kF32Type = {"f32", kF32Kind};
const FloatType kF64Type = {"f64", kF64Kind, 1, 'l'};
const std::vector<FloatType> kHalfTypes = {
    {"f16", kF16Kind, 1, 'h'}, {"f16x2", kF16Kind, 2}, {"bf16", kBf16Kind, 1, 'h'}, {"bf16x2", kBf16Kind, 2}};

// Modifiers of an opcode, in the order of the text.
struct Modifiers {
  Round round = Round::kNearest;
  bool ftz = false;
  bool sat = false;
  bool relu = false;
};

std::vector<uint64_t> Edges(const FloatKind& kind) {
  const uint64_t sign = uint64_t{1} << (kind.bits - 1);
  const uint64_t one = static_cast<uint64_t>(-kind.least + 1) << kind.mantissa;
  const uint64_t infinity = static_cast<uint64_t>(kind.most - kind.least + 2) << kind.mantissa;
  const uint64_t least = uint64_t{1} << kind.mantissa;
  const uint64_t ulp =
      one - (static_cast<uint64_t>(kind.mantissa + 1) << kind.mantissa);  // half an ulp of one
  const std::vector<uint64_t> positive = {
      0,           1,   least - 1, least,        one,      one + 1,     one - 1, one + least / 2,
      one + least, ulp, ulp + 1,   infinity - 1, infinity, infinity | 5};
  std::vector<uint64_t> all = positive;
  for (const uint64_t bits : positive) all.push_back(bits | sign);
  all.push_back(one + least / 3);
  return all;
}

// Both elements of a packed register get edges of their own.
std::vector<Row> Rows(const FloatType& type, int more) {
  std::vector<Row> rows = EdgeRows(Edges(type.kind), more, static_cast<uint64_t>(type.kind.bits));
  if (type.halves == 1) return rows;
  const size_t n = rows.size();
  std::vector<Row> packed = rows;
  for (size_t i = 0; i < n; ++i) {
    for (int k = 0; k < 3; ++k) {
      const uint64_t mask = (uint64_t{1} << type.kind.bits) - 1;
      packed[i][k] = (rows[i][k] & mask) | (rows[(i * 7 + 3) % n][k] & mask) << type.kind.bits;
    }
  }
  return packed;
}

using Oracle = std::function<uint64_t(uint64_t a, uint64_t b, uint64_t c)>;  // of one element
struct Case {
  std::string text;
  Oracle expected;
  int operands = 2;
};

// What an operation's exact value becomes.
uint64_t Finish(const FloatKind& kind, const Exact& value, const Modifiers& m) {
  uint64_t bits = Encode(kind, value, m.round);
  const Exact rounded = Decode(kind, bits);
  if (m.sat) {
    const uint64_t one = static_cast<uint64_t>(-kind.least + 1) << kind.mantissa;
    if (rounded.what == Exact::What::kNan || rounded.negative || rounded.is_zero()) return 0;
    if (Compare(rounded, Decode(kind, one)) >= 0) return one;
  }
  if (m.relu && rounded.what != Exact::What::kNan && rounded.negative) return 0;
  return m.ftz ? FlushSubnormal(kind, bits) : bits;
}

void Check(const FloatType& type, const std::vector<Case>& cases, int more = 1500) {
  const std::vector<Row> rows = Rows(type, more);
  std::vector<RowInstruction> instructions;
  for (const Case& c : cases) {
    instructions.push_back({c.text, type.reg, std::string(static_cast<size_t>(c.operands), type.reg)});
  }
  const auto results = RunRows(instructions, rows);
  for (size_t k = 0; k < cases.size(); ++k) {
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int h = 0; h < type.halves; ++h) {
        const uint64_t mask = type.kind.bits == 64 ? ~uint64_t{0} : (uint64_t{1} << type.kind.bits) - 1;
        const auto part = [&](uint64_t bits) { return bits >> (h * type.kind.bits % 64) & mask; };
        const uint64_t found = part(results[k][i]);
        const uint64_t expected = cases[k].expected(part(rows[i][0]), part(rows[i][1]), part(rows[i][2]));
        // Of the NaN of doubles the ISA leaves the payload open.
        if (type.kind.bits == 64 && IsNan(type.kind, expected) && IsNan(type.kind, found)) continue;
        ASSERT_EQ(found, expected) << fmt::format("{} of {:x}, {:x}, {:x}", cases[k].text, part(rows[i][0]),
                                                  part(rows[i][1]), part(rows[i][2]));
      }
    }
  }
}

// add, sub, mul, fma and mad with these modifiers, which stand in `text` as they do in the opcode.
void AddArithmetic(const FloatType& type, const std::string& round, const std::string& rest,
                   const Modifiers& m, const std::vector<std::string>& bases, std::vector<Case>& cases) {
  const FloatKind kind = type.kind;
  const auto read = [=](uint64_t bits) { return Decode(kind, m.ftz ? FlushSubnormal(kind, bits) : bits); };
  for (const std::string& base : bases) {
    const bool three = base == "fma" || base == "mad";
    const std::string text =
        base + round + rest + "." + type.name + (three ? " $d, $a, $b, $c;" : " $d, $a, $b;");
    const Oracle oracle = [=](uint64_t a, uint64_t b, uint64_t c) {
      const Exact x = read(a);
      const Exact y = read(b);
      const Exact value = base == "add"   ? Add(x, y, m.round)
                          : base == "sub" ? Add(x, Negate(y), m.round)
                          : base == "mul" ? Multiply(x, y)
                                          : Add(Multiply(x, y), read(c), m.round);
      return Finish(kind, value, m);
    };
    cases.push_back({text, oracle, three ? 3 : 2});
  }
}

struct Mode {
  std::string name;
  Round round;
};
const std::vector<Mode> kModes = {
    {".rn", Round::kNearest}, {".rz", Round::kZero}, {".rm", Round::kDown}, {".rp", Round::kUp}};

TEST(IsaFloatRows, SinglesInEveryRoundingFlushedAndSaturated) {
  std::vector<Case> cases;
  for (const bool ftz : {false, true}) {
    for (const bool sat : {false, true}) {
      const std::string rest = std::string(ftz ? ".ftz" : "") + (sat ? ".sat" : "");
      AddArithmetic(kF32Type, "", rest, {Round::kNearest, ftz, sat}, {"add", "sub", "mul"}, cases);
      for (const Mode& mode : kModes) {
        AddArithmetic(kF32Type, mode.name, rest, {mode.round, ftz, sat}, {"add", "sub", "mul", "fma", "mad"},
                      cases);
      }
    }
  }
  Check(kF32Type, cases, 4000);
}

TEST(IsaFloatRows, DoublesInEveryRounding) {
  std::vector<Case> cases;
  AddArithmetic(kF64Type, "", "", {}, {"add", "sub", "mul"}, cases);
  for (const Mode& mode : kModes) {
    AddArithmetic(kF64Type, mode.name, "", {mode.round}, {"add", "sub", "mul", "fma", "mad"}, cases);
  }
  Check(kF64Type, cases, 4000);
}

TEST(IsaFloatRows, PairsOfSingles) {
  const FloatType pair = {"f32x2", kF32Kind, 2, 'l'};
  std::vector<Case> cases;
  for (const bool ftz : {false, true}) {
    const std::string rest = ftz ? ".ftz" : "";
    AddArithmetic(pair, "", rest, {Round::kNearest, ftz}, {"add", "sub", "mul"}, cases);
    AddArithmetic(pair, ".rn", rest, {Round::kNearest, ftz}, {"add", "sub", "mul", "fma"}, cases);
  }
  Check(pair, cases, 2000);
}

TEST(IsaFloatRows, HalvesOfBothKinds) {
  for (const FloatType& type : kHalfTypes) {
    std::vector<Case> cases;
    const bool ieee = type.kind.mantissa == 10;  // bf16 has neither .ftz nor .sat
    for (const bool ftz : {false, true}) {
      for (const bool sat : {false, true}) {
        if (!ieee && (ftz || sat)) continue;
        const std::string rest = std::string(ftz ? ".ftz" : "") + (sat ? ".sat" : "");
        AddArithmetic(type, "", rest, {Round::kNearest, ftz, sat}, {"add", "sub", "mul"}, cases);
        AddArithmetic(type, ".rn", rest, {Round::kNearest, ftz, sat}, {"add", "sub", "mul", "fma"}, cases);
      }
      if (!ieee && ftz) continue;
      AddArithmetic(type, ".rn", ftz ? ".ftz.relu" : ".relu", {Round::kNearest, ftz, false, true}, {"fma"},
                    cases);
    }
    Check(type, cases, 6000);
  }
}

TEST(IsaFloatRows, QuotientsAndRootsInEveryRounding) {
  for (const FloatType& type : {kF32Type, kF64Type}) {
    const FloatKind kind = type.kind;
    const uint64_t one = static_cast<uint64_t>(-kind.least + 1) << kind.mantissa;
    std::vector<Case> cases;
    for (const Mode& mode : kModes) {
      for (const bool ftz : {false, true}) {
        if (ftz && kind.bits == 64) continue;
        const Modifiers m = {mode.round, ftz};
        const std::string tail = mode.name + (ftz ? ".ftz." : ".") + type.name;
        const auto read = [=](uint64_t bits) {
          return Decode(kind, ftz ? FlushSubnormal(kind, bits) : bits);
        };
        cases.push_back({"div" + tail + " $d, $a, $b;", [=](uint64_t a, uint64_t b, uint64_t) {
                           return Finish(kind, Divide(read(a), read(b)), m);
                         }});
        cases.push_back({"rcp" + tail + " $d, $a;",
                         [=](uint64_t a, uint64_t, uint64_t) {
                           return Finish(kind, Divide(Decode(kind, one), read(a)), m);
                         },
                         1});
        cases.push_back({"sqrt" + tail + " $d, $a;",
                         [=](uint64_t a, uint64_t, uint64_t) { return Finish(kind, SquareRoot(read(a)), m); },
                         1});
      }
    }
    Check(type, cases, 3000);
  }
}

// The larger or smaller; a number wins against NaN unless .NaN; -0 is less than +0.
uint64_t Extreme(const FloatKind& kind, uint64_t a, uint64_t b, bool max, bool nan) {
  if (IsNan(kind, a) || IsNan(kind, b)) {
    if (nan || (IsNan(kind, a) && IsNan(kind, b))) return kind.nan;
    return IsNan(kind, a) ? b : a;
  }
  const int order = Compare(Decode(kind, a), Decode(kind, b));
  if (order == 0) return (Decode(kind, a).negative == max) ? b : a;
  return (order > 0) == max ? a : b;
}

TEST(IsaFloatRows, ExtremesOfEveryTypeAndModifier) {
  std::vector<FloatType> types = kHalfTypes;
  types.push_back(kF32Type);
  types.push_back(kF64Type);
  for (const FloatType& type : types) {
    const FloatKind kind = type.kind;
    const uint64_t sign = uint64_t{1} << (kind.bits - 1);
    std::vector<Case> cases;
    for (int bits = 0; bits < 32; ++bits) {
      const bool max = bits & 1;
      const bool ftz = bits & 2;
      const bool nan = bits & 4;
      const bool absolute = bits & 8;
      const bool xorsign = bits & 16;
      if ((kind.bits == 64 && bits > 1) || (ftz && kind.mantissa == 7) || (xorsign && !absolute)) continue;
      const std::string tail = std::string(ftz ? ".ftz" : "") + (nan ? ".NaN" : "") +
                               (xorsign ? ".xorsign" : "") + (absolute ? ".abs" : "") + "." + type.name;
      const auto read = [=](uint64_t v) {
        v = ftz ? FlushSubnormal(kind, v) : v;
        return absolute ? v & ~sign : v;
      };
      if (absolute == xorsign) {
        cases.push_back(
            {(max ? "max" : "min") + tail + " $d, $a, $b;", [=](uint64_t a, uint64_t b, uint64_t) {
               const uint64_t m = Extreme(kind, read(a), read(b), max, nan);
               return !xorsign || IsNan(kind, m) ? m : m | ((a ^ b) & sign);
             }});
      }
      if (kind.bits != 32 || xorsign) continue;
      cases.push_back({(max ? "max" : "min") + tail + " $d, $a, $b, $c;",
                       [=](uint64_t a, uint64_t b, uint64_t c) {
                         return Extreme(kind, Extreme(kind, read(a), read(b), max, nan), read(c), max, nan);
                       },
                       3});
    }
    // The sign alone changes, also that of a NaN.
    for (const bool ftz : {false, true}) {
      if (ftz && (kind.bits == 64 || kind.mantissa == 7)) continue;
      const std::string tail = std::string(ftz ? ".ftz." : ".") + type.name + " $d, $a;";
      const auto read = [=](uint64_t v) { return ftz ? FlushSubnormal(kind, v) : v; };
      cases.push_back({"neg" + tail, [=](uint64_t a, uint64_t, uint64_t) { return read(a) ^ sign; }, 1});
      cases.push_back({"abs" + tail, [=](uint64_t a, uint64_t, uint64_t) { return read(a) & ~sign; }, 1});
    }
    if (kind.bits >= 32) {
      cases.push_back({"copysign." + type.name + " $d, $a, $b;",
                       [=](uint64_t a, uint64_t b, uint64_t) { return (b & ~sign) | (a & sign); }});
    }
    Check(type, cases);
  }
}

}  // namespace
}  // namespace vqllm::ptx::test
