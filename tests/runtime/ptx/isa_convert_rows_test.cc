#include <bit>
#include <functional>

#include "tests/runtime/ptx/support.h"
#include "tests/runtime/ptx/support/exact.h"
#include "tests/runtime/ptx/support/rows.h"
#include "vq/base/rng.h"

/// cvt with a float on one side or both, in all types and roundings, on edge values and on random bits,
/// against exact arithmetic.
namespace vqllm::ptx::test {
namespace {

struct FloatType {
  std::string name;
  FloatKind kind;
  char reg;
};
const std::vector<FloatType> kFloats = {
    {"f16", kF16Kind, 'h'}, {"bf16", kBf16Kind, 'h'}, {"f32", kF32Kind, 'r'}, {"f64", kF64Kind, 'l'}};

struct IntType {
  std::string name;
  int bits;
  bool is_signed;
  char reg() const { return bits <= 16 ? 'h' : bits == 32 ? 'r' : 'l'; }
};
const std::vector<IntType> kIntegers = {{"u8", 8, false},   {"s8", 8, true},    {"u16", 16, false},
                                        {"s16", 16, true},  {"u32", 32, false}, {"s32", 32, true},
                                        {"u64", 64, false}, {"s64", 64, true}};

struct Mode {
  std::string name;
  Round round;
};
const std::vector<Mode> kModes = {
    {"rn", Round::kNearest}, {"rz", Round::kZero}, {"rm", Round::kDown}, {"rp", Round::kUp}};

// Floats round the limits of all integers and formats, with ties; random bits, half of them near one.
std::vector<Row> FloatRows(const FloatKind& kind) {
  std::vector<uint64_t> values;
  for (const double center : {0.0,        0.25,      0.5,
                              1.0,        1.5,       2.5,
                              127.0,      255.0,     448.0,
                              464.0,      480.0,     57344.0,
                              61440.0,    65504.0,   65520.0,
                              0x1p15,     0x1p16,    0x1p31,
                              0x1p32,     0x1p63,    0x1p64,
                              0x1p-14,    0x1p-24,   0x1p-25,
                              0x1p-6,     0x1p-9,    0x1p-10,
                              0x1p-16,    0x1p-17,   0x1p-126,
                              0x1p-133,   0x1p-149,  0x1.fffffep127,
                              0x1.fep127, 0x1.ffp127}) {
    const uint64_t bits = Encode(kind, Decode(kF64Kind, std::bit_cast<uint64_t>(center)), Round::kZero);
    for (int step = -2; step <= 2; ++step) {
      const uint64_t near = bits + static_cast<uint64_t>(static_cast<int64_t>(step));
      values.push_back(near);
      values.push_back(near ^ uint64_t{1} << (kind.bits - 1));
    }
  }
  values.push_back(Encode(kind, {Exact::What::kInfinity, false, 0, 0}, Round::kZero));
  values.push_back(Encode(kind, {Exact::What::kInfinity, true, 0, 0}, Round::kZero));
  values.push_back(kind.nan);
  Rng rng(static_cast<uint64_t>(kind.bits));
  std::vector<Row> rows;
  for (size_t i = 0; i < values.size(); ++i)
    rows.push_back({values[i], values[(i * 5 + 1) % values.size()], 0});
  const uint64_t one = static_cast<uint64_t>(-kind.least + 1) << kind.mantissa;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t near_one =
        one + (rng.Next() % (uint64_t{40} << kind.mantissa)) - std::min(one, uint64_t{20} << kind.mantissa);
    rows.push_back({i % 2 ? near_one : rng.Next(), i % 2 ? rng.Next() : near_one, 0});
  }
  return rows;
}

struct Case {
  RowInstruction instruction;
  int result_bits;
  std::function<uint64_t(uint64_t a, uint64_t b)> expected;
  uint64_t open_nan = 0;  ///< a NaN of this magnitude and more may have any payload
};

void Check(const std::vector<Row>& rows, int source_bits, const std::vector<Case>& cases) {
  std::vector<RowInstruction> instructions;
  for (const Case& c : cases) instructions.push_back(c.instruction);
  const auto results = RunRows(instructions, rows);
  const uint64_t in = source_bits == 64 ? ~uint64_t{0} : (uint64_t{1} << source_bits) - 1;
  for (size_t k = 0; k < cases.size(); ++k) {
    const int bits = cases[k].result_bits;
    const uint64_t out = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint64_t expected = cases[k].expected(rows[i][0] & in, rows[i][1] & in) & out;
      const uint64_t found = results[k][i] & out;
      const uint64_t magnitude = (uint64_t{1} << (bits - 1)) - 1;
      if (cases[k].open_nan != 0 && (expected & magnitude) > cases[k].open_nan &&
          (found & magnitude) > cases[k].open_nan) {
        continue;
      }
      ASSERT_EQ(found, expected) << fmt::format("{} of {:x}, {:x}: {:x}, expected {:x}",
                                                cases[k].instruction.text, rows[i][0] & in, rows[i][1] & in,
                                                found, expected);
    }
  }
}

uint64_t Infinity(const FloatKind& kind) {
  return Encode(kind, {Exact::What::kInfinity, false, 0, 0}, Round::kZero);
}

TEST(IsaConvertRows, FloatsToIntegers) {
  for (const FloatType& from : kFloats) {
    std::vector<Case> cases;
    for (const IntType& to : kIntegers) {
      for (const Mode& mode : kModes) {
        for (const std::string& rest :
             {std::string(), std::string(".ftz"), std::string(".sat"), std::string(".ftz.sat")}) {
          const bool ftz = rest.find("ftz") != std::string::npos;
          const FloatKind kind = from.kind;
          const bool flushes = ftz && kind.bits == 32;
          const int width = std::max(16, to.bits);
          cases.push_back({{fmt::format("cvt.{}i{}.{}.{} $d, $a;", mode.name, rest, to.name, from.name),
                            to.reg(),
                            {from.reg}},
                           width,
                           [=](uint64_t a, uint64_t) {
                             const Exact value = Decode(kind, flushes ? FlushSubnormal(kind, a) : a);
                             if (value.what == Exact::What::kNan) {
                               // The highest bit where a double or 64 bits are at one end.
                               const uint64_t high =
                                   kind.bits == 64 || to.bits == 64 ? uint64_t{1} << (to.bits - 1) : 0;
                               return to.bits == 8 && to.is_signed && high != 0 ? high | 0xff00 : high;
                             }
                             const uint64_t bits = ToInteger(value, mode.round, to.bits, to.is_signed);
                             return to.bits == 8 && to.is_signed && (bits & 0x80) ? bits | 0xff00 : bits;
                           }});
        }
      }
    }
    Check(FloatRows(from.kind), from.kind.bits, cases);
  }
}

TEST(IsaConvertRows, IntegersToFloats) {
  for (const IntType& from : kIntegers) {
    std::vector<uint64_t> values;
    for (int bit = 0; bit < from.bits; ++bit) {
      for (const uint64_t add : {~uint64_t{0}, uint64_t{0}, uint64_t{1}})
        values.push_back((uint64_t{1} << bit) + add);
    }
    for (const uint64_t value : {uint64_t{65519}, uint64_t{65520}, uint64_t{16777217},
                                 uint64_t{0x8000008000000001}, ~uint64_t{0}, ~uint64_t{0} - 65520}) {
      values.push_back(value);
    }
    std::vector<Row> rows;
    for (const uint64_t value : values) rows.push_back({value, 0, 0});
    Rng rng(9);
    for (int i = 0; i < 1000; ++i) rows.push_back({rng.Next() >> rng.Below(64), 0, 0});
    std::vector<Case> cases;
    for (const FloatType& to : kFloats) {
      for (const Mode& mode : kModes) {
        for (const bool sat : {false, true}) {
          const FloatKind kind = to.kind;
          cases.push_back(
              {{fmt::format("cvt.{}{}.{}.{} $d, $a;", mode.name, sat ? ".sat" : "", to.name, from.name),
                to.reg,
                {from.reg()}},
               kind.bits,
               [=](uint64_t a, uint64_t) {
                 const int unused = 64 - from.bits;
                 const uint64_t wide =
                     from.is_signed ? static_cast<uint64_t>(static_cast<int64_t>(a << unused) >> unused)
                                    : a << unused >> unused;
                 Exact value = FromInteger(wide, from.is_signed);
                 if (sat && value.negative) value = {};
                 if (sat && value.magnitude > 1) value.magnitude = 1;
                 return Encode(kind, value, mode.round);
               }});
        }
      }
    }
    Check(rows, from.bits, cases);
  }
}

struct Modifiers {
  Round round = Round::kNearest;
  bool ftz = false;
  bool sat = false;
  bool satfinite = false;
  bool relu = false;
};

uint64_t Converted(const FloatKind& from, const FloatKind& to, uint64_t a, const Modifiers& m) {
  Exact value = Decode(from, m.ftz && from.bits == 32 ? FlushSubnormal(from, a) : a);
  if (m.sat && (value.what == Exact::What::kNan || value.negative)) value = {};
  if (m.sat && Compare(value, {Exact::What::kNumber, false, 1, 0}) > 0)
    value = {Exact::What::kNumber, false, 1, 0};
  if (m.relu && value.what != Exact::What::kNan && value.negative) value = {};
  const uint64_t bits = Encode(to, value, m.round, m.satfinite);
  return m.ftz && to.bits == 32 ? FlushSubnormal(to, bits) : bits;
}

TEST(IsaConvertRows, FloatsToFloats) {
  const auto add = [](const FloatType& from, const FloatType& to, const std::string& text, const Modifiers& m,
                      std::vector<Case>& cases) {
    const FloatKind source = from.kind;
    const FloatKind dest = to.kind;
    cases.push_back({{"cvt" + text + "." + to.name + "." + from.name + " $d, $a;", to.reg, {from.reg}},
                     dest.bits,
                     [=](uint64_t a, uint64_t) { return Converted(source, dest, a, m); },
                     Infinity(dest)});
  };
  const FloatType& f16 = kFloats[0];
  const FloatType& bf16 = kFloats[1];
  const FloatType& f32 = kFloats[2];
  const FloatType& f64 = kFloats[3];
  std::vector<std::vector<Case>> cases(4);  // by source
  for (const bool ftz : {false, true}) {
    for (const bool sat : {false, true}) {
      const std::string rest = std::string(ftz ? ".ftz" : "") + (sat ? ".sat" : "");
      const Modifiers plain = {Round::kNearest, ftz, sat};
      add(f16, f32, rest, plain, cases[0]);
      add(f32, f32, rest, plain, cases[2]);
      for (size_t from = 0; from < 4; ++from) add(kFloats[from], f64, rest, plain, cases[from]);
      for (const Mode& mode : kModes) {
        add(f64, f32, "." + mode.name + rest, {mode.round, ftz, sat}, cases[3]);
        add(f32, f16, "." + mode.name + rest, {mode.round, ftz, sat}, cases[2]);
        if (!ftz) add(f64, f16, "." + mode.name + rest, {mode.round, false, sat}, cases[3]);
      }
    }
  }
  add(bf16, f32, "", {}, cases[1]);
  add(f16, f16, "", {}, cases[0]);
  add(f16, f16, ".sat", {Round::kNearest, false, true}, cases[0]);
  for (const Mode& mode : kModes) {
    add(bf16, f16, "." + mode.name, {mode.round}, cases[1]);
    add(f16, bf16, "." + mode.name, {mode.round}, cases[0]);
    add(bf16, bf16, "." + mode.name, {mode.round}, cases[1]);
    add(f64, bf16, "." + mode.name, {mode.round}, cases[3]);
    add(f32, bf16, "." + mode.name, {mode.round}, cases[2]);
    if (mode.round == Round::kDown || mode.round == Round::kUp) continue;
    for (const bool relu : {false, true}) {
      for (const bool satfinite : {false, true}) {
        const std::string rest = std::string(relu ? ".relu" : "") + (satfinite ? ".satfinite" : "");
        for (const FloatType& to : {f16, bf16}) {
          add(f32, to, "." + mode.name + rest, {mode.round, false, false, satfinite, relu}, cases[2]);
        }
      }
    }
  }
  // Whole numbers of the same type.
  for (size_t i = 0; i < 4; ++i) {
    const FloatKind kind = kFloats[i].kind;
    for (const Mode& mode : kModes) {
      cases[i].push_back({{fmt::format("cvt.{0}i.{1}.{1} $d, $a;", mode.name, kFloats[i].name),
                           kFloats[i].reg,
                           {kFloats[i].reg}},
                          kind.bits,
                          [=](uint64_t a, uint64_t) {
                            const Exact value = Decode(kind, a);
                            if (value.what != Exact::What::kNumber || value.exponent >= 0)
                              return Encode(kind, value, mode.round);
                            Exact magnitude = value;
                            magnitude.negative = false;
                            const Round round = value.negative && mode.round == Round::kDown ? Round::kUp
                                                : value.negative && mode.round == Round::kUp ? Round::kDown
                                                                                             : mode.round;
                            Exact whole = FromInteger(ToInteger(magnitude, round, 64, false), false);
                            whole.negative = value.negative;
                            return Encode(kind, whole, Round::kNearest);
                          },
                          Infinity(kind)});
    }
  }
  for (size_t i = 0; i < 4; ++i) Check(FloatRows(kFloats[i].kind), kFloats[i].kind.bits, cases[i]);
}

TEST(IsaConvertRows, PairsTf32AndEightBits) {
  std::vector<Case> from_f32;
  std::vector<Case> from_pair;
  for (const bool relu : {false, true}) {
    const std::string r = relu ? ".relu" : "";
    for (const bool satfinite : {false, true}) {
      const std::string sat = satfinite ? ".satfinite" : "";
      for (const Mode& mode : {kModes[0], kModes[1]}) {
        const Modifiers m = {mode.round, false, false, satfinite, relu};
        // a lies above b.
        for (const auto& [name, kind] : {std::pair("f16x2", kF16Kind), std::pair("bf16x2", kBf16Kind)}) {
          from_f32.push_back({{fmt::format("cvt.{}{}{}.{}.f32 $d, $a, $b;", mode.name, r, sat, name)},
                              32,
                              [=, k = kind](uint64_t a, uint64_t b) {
                                return Converted(kF32Kind, k, a, m) << 16 | Converted(kF32Kind, k, b, m);
                              }});
        }
        from_f32.push_back({{fmt::format("cvt.{}{}{}.tf32.f32 $d, $a;", mode.name, sat, r), 'r', "r"},
                            32,
                            [=](uint64_t a, uint64_t) { return Converted(kF32Kind, kTf32Kind, a, m) << 13; },
                            0x7f800000});
      }
    }
    const Modifiers finite = {Round::kNearest, false, false, true, relu};
    for (const auto& [name, kind] : {std::pair("e4m3x2", kE4m3Kind), std::pair("e5m2x2", kE5m2Kind)}) {
      from_f32.push_back({{fmt::format("cvt.rn.satfinite{}.{}.f32 $d, $a, $b;", r, name), 'h', "rr"},
                          16,
                          [=, k = kind](uint64_t a, uint64_t b) {
                            return Converted(kF32Kind, k, a, finite) << 8 | Converted(kF32Kind, k, b, finite);
                          }});
      from_pair.push_back({{fmt::format("cvt.rn.satfinite{}.{}.f16x2 $d, $a;", r, name), 'h', "r"},
                           16,
                           [=, k = kind](uint64_t a, uint64_t) {
                             return Converted(kF16Kind, k, a >> 16, finite) << 8 |
                                    Converted(kF16Kind, k, a & 0xffff, finite);
                           }});
      from_pair.push_back({{fmt::format("cvt.rn{}.f16x2.{} $d, $a;", r, name), 'r', "h"},
                           32,
                           [=, k = kind](uint64_t a, uint64_t) {
                             const Modifiers m = {Round::kNearest, false, false, false, relu};
                             return Converted(k, kF16Kind, a >> 8 & 0xff, m) << 16 |
                                    Converted(k, kF16Kind, a & 0xff, m);
                           }});
    }
  }
  for (const bool satfinite : {false, true}) {
    from_f32.push_back(
        {{fmt::format("cvt.rna{}.tf32.f32 $d, $a;", satfinite ? ".satfinite" : ""), 'r', "r"},
         32,
         [=](uint64_t a, uint64_t) {
           return Converted(kF32Kind, kTf32Kind, a, {Round::kAway, false, false, satfinite}) << 13;
         },
         0x7f800000});
  }
  Check(FloatRows(kF32Kind), 32, from_f32);
  std::vector<Row> pairs;  // all halves, so all pairs of bytes too
  for (uint64_t i = 0; i < 65536; ++i) pairs.push_back({i | (i * 40503 & 0xffff) << 16, 0, 0});
  Check(pairs, 32, from_pair);
}

}  // namespace
}  // namespace vqllm::ptx::test
