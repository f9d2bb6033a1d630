#include "tests/runtime/ptx/support/integer_rows.h"

/// Integer arithmetic in all of its types, on all pairs of edge values and on random bits.
namespace vqllm::ptx::test {
namespace {

// The upper half of the product. Products of 64 bits without sign need all 128.
Bits High(Whole a, Whole b, const IntType& type) {
  if (type.bits == 64 && !type.is_signed) return Bits(a) * Bits(b) >> 64;
  return Of((a * b) >> type.bits);
}

TEST(IsaIntegerRows, ArithmeticOfEveryType) {
  for (const IntType& type : kTypes) {
    const std::string& t = type.name;
    const char k = type.kind();
    const std::string two(2, k);
    const std::string three(3, k);
    const int n = type.bits;
    std::vector<Case> cases = {
        {{"add." + t + " $d, $a, $b;", k, two}, n, [](Whole a, Whole b, Whole) { return Of(a + b); }},
        {{"sub." + t + " $d, $a, $b;", k, two}, n, [](Whole a, Whole b, Whole) { return Of(a - b); }},
        {{"mul.lo." + t + " $d, $a, $b;", k, two},
         n,
         [](Whole a, Whole b, Whole) { return Bits(a) * Bits(b); }},
        {{"mul.hi." + t + " $d, $a, $b;", k, two},
         n,
         [&](Whole a, Whole b, Whole) { return High(a, b, type); }},
        {{"mad.lo." + t + " $d, $a, $b, $c;", k, three},
         n,
         [](Whole a, Whole b, Whole c) { return Bits(a) * Bits(b) + Of(c); }},
        {{"mad.hi." + t + " $d, $a, $b, $c;", k, three},
         n,
         [&](Whole a, Whole b, Whole c) { return High(a, b, type) + Of(c); }},
        {{"min." + t + " $d, $a, $b;", k, two},
         n,
         [](Whole a, Whole b, Whole) { return Of(std::min(a, b)); }},
        {{"max." + t + " $d, $a, $b;", k, two},
         n,
         [](Whole a, Whole b, Whole) { return Of(std::max(a, b)); }},
        {{"sad." + t + " $d, $a, $b, $c;", k, three},
         n,
         [](Whole a, Whole b, Whole c) { return Of(c + (a < b ? b - a : a - b)); }},
        {{"slct." + t + ".s32 $d, $a, $b, $c;", k, two + "r"},
         n,
         [](Whole a, Whole b, Whole c) { return Of(c >= 0 ? a : b); }},
    };
    if (type.is_signed) {
      cases.push_back(
          {{"abs." + t + " $d, $a;", k, {k}}, n, [](Whole a, Whole, Whole) { return Of(a < 0 ? -a : a); }});
      cases.push_back({{"neg." + t + " $d, $a;", k, {k}}, n, [](Whole a, Whole, Whole) { return Of(-a); }});
    }
    const Case slct = cases[9];
    cases.erase(cases.begin() + 9);
    Check(type, cases);
    Check(type, {slct}, kTypes[3]);
    // By zero there is no quotient.
    Check(type,
          {{{"div." + t + " $d, $a, $b;", k, two},
            n,
            [](Whole a, Whole b, Whole) { return b == 0 ? 0 : Of(a / b); }},
           {{"rem." + t + " $d, $a, $b;", k, two},
            n,
            [](Whole a, Whole b, Whole) { return b == 0 ? 0 : Of(a % b); }}},
          type, [&](const Row& row) { return type.Read(row[1]) == 0; });
    if (n == 64) continue;
    const char wide = n == 16 ? 'r' : 'l';
    const IntType third = {"", 2 * n, type.is_signed};
    Check(type,
          {{{"mul.wide." + t + " $d, $a, $b;", wide, two},
            2 * n,
            [](Whole a, Whole b, Whole) { return Of(a * b); }},
           {{"mad.wide." + t + " $d, $a, $b, $c;", wide, two + wide},
            2 * n,
            [](Whole a, Whole b, Whole c) { return Of(a * b + c); }}},
          third);
  }
  const IntType& s32 = kTypes[3];
  const auto relu = [](Whole v) { return Of(v < 0 ? 0 : v); };
  Check(s32,
        {{{"add.sat.s32 $d, $a, $b;"}, 32, [&](Whole a, Whole b, Whole) { return Of(Clamp(a + b, s32)); }},
         {{"sub.sat.s32 $d, $a, $b;"}, 32, [&](Whole a, Whole b, Whole) { return Of(Clamp(a - b, s32)); }},
         {{"mad.hi.sat.s32 $d, $a, $b, $c;", 'r', "rrr"},
          32,
          [&](Whole a, Whole b, Whole c) { return Of(Clamp((a * b >> 32) + c, s32)); }},
         {{"min.relu.s32 $d, $a, $b;"}, 32, [&](Whole a, Whole b, Whole) { return relu(std::min(a, b)); }},
         {{"max.relu.s32 $d, $a, $b;"}, 32, [&](Whole a, Whole b, Whole) { return relu(std::max(a, b)); }}});
}

TEST(IsaIntegerRows, CarryChainsOfEveryType) {
  for (const IntType& type : {kTypes[2], kTypes[3], kTypes[4], kTypes[5]}) {
    const std::string& t = type.name;
    const char k = type.kind();
    const int n = type.bits;
    const std::string three(3, k);
    const auto plain = [n](Whole v) { return Bits(Low(Of(v), n)); };
    // The carry of a + b, and the borrow of a - b, without sign whatever the type says.
    const auto carry = [plain, n](Whole a, Whole b) { return (plain(a) + plain(b)) >> n; };
    const auto borrow = [plain](Whole a, Whole b) { return Bits(plain(a) < plain(b) ? 1 : 0); };
    const auto low = [n](Whole a, Whole b) { return Bits(Low(Bits(a) * Bits(b), n)); };
    const auto high = [n, type](Whole a, Whole b) { return Bits(Low(High(a, b, type), n)); };
    const auto code = [&](const std::string& body) {
      std::string text = body;
      for (size_t at = text.find('@'); at != std::string::npos; at = text.find('@')) text.replace(at, 1, t);
      return RowInstruction{text, k, three};
    };
    const std::string make = "add.cc.@ $d, $a, $b;\n";  // sets the carry
    Check(type, {{code(make + "addc.@ $d, $b, $c;"), n,
                  [=](Whole a, Whole b, Whole c) { return Of(b + c) + carry(a, b); }},
                 {code(make + "addc.cc.@ $d, $c, 0;\naddc.@ $d, 5, 0;"), n,
                  [=](Whole a, Whole b, Whole c) { return 5 + ((plain(c) + carry(a, b)) >> n); }},
                 {code("sub.cc.@ $d, $a, $b;\nsubc.@ $d, $b, $c;"), n,
                  [=](Whole a, Whole b, Whole c) { return Of(b - c) - borrow(a, b); }},
                 {code("sub.cc.@ $d, $a, $b;\nsubc.cc.@ $d, $c, 0;\nsubc.@ $d, 5, 0;"), n,
                  [=](Whole a, Whole b, Whole c) { return Bits(5) - (plain(c) < borrow(a, b) ? 1 : 0); }},
                 {code("mad.lo.cc.@ $d, $a, $b, $c;\naddc.@ $d, 0, 0;"), n,
                  [=](Whole a, Whole b, Whole c) { return (low(a, b) + plain(c)) >> n; }},
                 {code("mad.hi.cc.@ $d, $a, $b, $c;\naddc.@ $d, 0, 0;"), n,
                  [=](Whole a, Whole b, Whole c) { return (high(a, b) + plain(c)) >> n; }},
                 {code(make + "madc.lo.@ $d, $b, $c, $a;"), n,
                  [=](Whole a, Whole b, Whole c) { return low(b, c) + Of(a) + carry(a, b); }},
                 {code(make + "madc.hi.@ $d, $b, $c, $a;"), n,
                  [=](Whole a, Whole b, Whole c) { return high(b, c) + Of(a) + carry(a, b); }},
                 {code(make + "madc.lo.cc.@ $d, $b, $c, $a;\naddc.@ $d, 0, 0;"), n,
                  [=](Whole a, Whole b, Whole c) { return (low(b, c) + plain(a) + carry(a, b)) >> n; }},
                 {code(make + "madc.hi.cc.@ $d, $b, $c, $a;\naddc.@ $d, 0, 0;"), n,
                  [=](Whole a, Whole b, Whole c) { return (high(b, c) + plain(a) + carry(a, b)) >> n; }}});
  }
}

TEST(IsaIntegerRows, DotProductsPairsAnd24Bits) {
  const auto part = [](Whole v, int i, int bits, bool is_signed) {
    return IntType{"", bits, is_signed}.Read(static_cast<uint64_t>(Of(v) >> (bits * i)));
  };
  std::vector<Case> cases;
  for (const bool a_signed : {false, true}) {
    for (const bool b_signed : {false, true}) {
      const std::string types = fmt::format("{}.{}", a_signed ? "s32" : "u32", b_signed ? "s32" : "u32");
      cases.push_back(
          {{"dp4a." + types + " $d, $a, $b, $c;", 'r', "rrr"}, 32, [=](Whole a, Whole b, Whole c) {
             for (int i = 0; i < 4; ++i) c += part(a, i, 8, a_signed) * part(b, i, 8, b_signed);
             return Of(c);
           }});
      for (const int high : {0, 1}) {
        cases.push_back({{fmt::format("dp2a.{}.{} $d, $a, $b, $c;", high ? "hi" : "lo", types), 'r', "rrr"},
                         32,
                         [=](Whole a, Whole b, Whole c) {
                           for (int i = 0; i < 2; ++i) {
                             c += part(a, i, 16, a_signed) * part(b, i + 2 * high, 8, b_signed);
                           }
                           return Of(c);
                         }});
      }
    }
    const std::string t = a_signed ? "s32" : "u32";
    const auto product = [=](Whole a, Whole b) {
      return part(a, 0, 24, a_signed) * part(b, 0, 24, a_signed);
    };
    cases.push_back(
        {{"mul24.lo." + t + " $d, $a, $b;"}, 32, [=](Whole a, Whole b, Whole) { return Of(product(a, b)); }});
    cases.push_back({{"mul24.hi." + t + " $d, $a, $b;"}, 32, [=](Whole a, Whole b, Whole) {
                       return Of(product(a, b) >> 16);
                     }});
    cases.push_back({{"mad24.lo." + t + " $d, $a, $b, $c;", 'r', "rrr"}, 32, [=](Whole a, Whole b, Whole c) {
                       return Of(product(a, b) + c);
                     }});
    cases.push_back({{"mad24.hi." + t + " $d, $a, $b, $c;", 'r', "rrr"}, 32, [=](Whole a, Whole b, Whole c) {
                       return Of((product(a, b) >> 16) + c);
                     }});
    const auto pair = [=](auto&& f) {
      return [=](Whole a, Whole b, Whole) {
        Bits result = 0;
        for (int i = 0; i < 2; ++i) {
          result |= Bits(Low(Of(f(part(a, i, 16, a_signed), part(b, i, 16, a_signed))), 16)) << (16 * i);
        }
        return result;
      };
    };
    const std::string x2 = a_signed ? "s16x2" : "u16x2";
    cases.push_back({{"add." + x2 + " $d, $a, $b;"}, 32, pair([](Whole a, Whole b) { return a + b; })});
    cases.push_back(
        {{"min." + x2 + " $d, $a, $b;"}, 32, pair([](Whole a, Whole b) { return std::min(a, b); })});
    cases.push_back(
        {{"max." + x2 + " $d, $a, $b;"}, 32, pair([](Whole a, Whole b) { return std::max(a, b); })});
    if (!a_signed) continue;
    const auto relu = [](Whole v) { return v < 0 ? Whole{0} : v; };
    cases.push_back(
        {{"min.relu.s16x2 $d, $a, $b;"}, 32, pair([=](Whole a, Whole b) { return relu(std::min(a, b)); })});
    cases.push_back(
        {{"max.relu.s16x2 $d, $a, $b;"}, 32, pair([=](Whole a, Whole b) { return relu(std::max(a, b)); })});
  }
  Check(kTypes[2], cases);
}

}  // namespace
}  // namespace vqllm::ptx::test
