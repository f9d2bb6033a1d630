#include "tests/runtime/ptx/support/integer_rows.h"

/// Logic, shifts, bit fields, comparisons and conversions of integers in all of their types, on all pairs of
/// edge values and on random bits.
namespace vqllm::ptx::test {
namespace {

TEST(IsaBitRows, LogicAndShiftsOfEveryWidth) {
  for (const IntType& type : kTypes) {
    const int n = type.bits;
    const char k = type.kind();
    const std::string b = fmt::format("b{}", n);
    const std::string two(2, k);
    const IntType amount = {"", 32, false};
    std::vector<Case> cases;
    if (!type.is_signed) {
      cases = {{{"and." + b + " $d, $a, $b;", k, two}, n, [](Whole x, Whole y, Whole) { return Of(x & y); }},
               {{"or." + b + " $d, $a, $b;", k, two}, n, [](Whole x, Whole y, Whole) { return Of(x | y); }},
               {{"xor." + b + " $d, $a, $b;", k, two}, n, [](Whole x, Whole y, Whole) { return Of(x ^ y); }},
               {{"not." + b + " $d, $a;", k, {k}}, n, [](Whole x, Whole, Whole) { return ~Of(x); }},
               {{"cnot." + b + " $d, $a;", k, {k}}, n, [](Whole x, Whole, Whole) { return Of(x == 0); }}};
      Check(type, cases);
    }
    // Amounts of the width and more: all bits leave, or are the sign.
    const auto left = [n](Whole x, Whole, Whole by) {
      return by >= n ? Bits(0) : Of(x) << static_cast<int>(by);
    };
    const auto right = [n](Whole x, Whole, Whole by) {
      return Of(x >> static_cast<int>(by >= n ? 127 : by));
    };
    const auto both = [&](const std::string& left_name, const std::string& right_name) {
      return std::vector<Case>{{{"shl." + left_name + " $d, $a, $c;", k, two + "r"}, n, left},
                               {{"shr." + right_name + " $d, $a, $c;", k, two + "r"}, n, right}};
    };
    const std::vector<Case> shifts = both(b, type.is_signed ? type.name : b);
    Check(type, shifts, amount);
    Check(type, {{{"shr." + type.name + " $d, $a, $c;", k, two + "r"}, n, right}}, amount);
    for (const int by : {0, 1, n - 1, n, n + 1, 255, 256}) {
      const auto fixed = [&](const Case& c) {
        return Case{{Replaced(c.instruction.text, "$c", std::to_string(by)), k, two},
                    n,
                    [c, by](Whole x, Whole y, Whole) { return c.expected(x, y, by); }};
      };
      Check(type, {fixed(shifts[0]), fixed(shifts[1])});
    }
  }
  // Funnel shifts: 64 bits {b, a} by c, wrapped or clamped to 32.
  const auto funnel = [](bool left, bool wrap) {
    return [=](Whole a, Whole b, Whole c) {
      const uint64_t both = static_cast<uint64_t>(b) << 32 | static_cast<uint64_t>(a);
      const int by = static_cast<int>(wrap ? c & 31 : std::min<Whole>(c, 32));
      return left ? Bits((by == 0 ? both : both << by) >> 32) : Bits(both >> by);
    };
  };
  Check(kTypes[2], {{{"shf.l.wrap.b32 $d, $a, $b, $c;", 'r', "rrr"}, 32, funnel(true, true)},
                    {{"shf.l.clamp.b32 $d, $a, $b, $c;", 'r', "rrr"}, 32, funnel(true, false)},
                    {{"shf.r.wrap.b32 $d, $a, $b, $c;", 'r', "rrr"}, 32, funnel(false, true)},
                    {{"shf.r.clamp.b32 $d, $a, $b, $c;", 'r', "rrr"}, 32, funnel(false, false)}});
}

// Bits pos .. pos + len - 1 of a; beyond the top the sign of the highest bit that is there.
TEST(IsaBitRows, BitFieldsOfEveryType) {
  for (const IntType& type : {kTypes[2], kTypes[3], kTypes[4], kTypes[5]}) {
    const int n = type.bits;
    const char k = type.kind();
    const auto extract = [n, type](Whole a, Whole b, Whole c) {
      const int pos = static_cast<int>(b & 255);
      const int len = static_cast<int>(c & 255);
      const auto bit = [&](int i) { return i < n ? Of(a) >> i & 1 : Bits(0); };
      const Bits sign = type.is_signed && len > 0 ? bit(std::min(pos + len - 1, n - 1)) : 0;
      Bits result = 0;
      for (int i = 0; i < n; ++i) result |= (i < len && pos + i < n ? bit(pos + i) : sign) << i;
      return result;
    };
    const auto insert = [n](Whole a, Whole b, Whole c) {  // 8 bits of a into c at b
      const int pos = static_cast<int>(b & 255);
      Bits result = Of(c);
      for (int i = 0; i < 8 && pos + i < n; ++i) {
        result = (result & ~(Bits(1) << (pos + i))) | (Of(a) >> i & 1) << (pos + i);
      }
      return result;
    };
    const auto leading = [n, type](Whole a, Whole, Whole) {
      const Bits bits = Low(Of(type.is_signed && a < 0 ? ~a : a), n);
      int top = n - 1;
      while (top >= 0 && (bits >> top & 1) == 0) --top;
      return top;
    };
    const IntType amount = {"", 32, false};
    const std::string b = fmt::format("b{}", n);
    const std::string& t = type.name;
    Check(type,
          {{{"bfe." + t + " $d, $a, $b, $c;", k, {k, 'r', 'r'}}, n, extract},
           {{"bfind." + t + " $d, $a;", 'r', {k}},
            32,
            [=](Whole a, Whole, Whole) { return Of(leading(a, 0, 0)); }},
           {{"bfind.shiftamt." + t + " $d, $a;", 'r', {k}},
            32,
            [=](Whole a, Whole, Whole) {
              const int top = leading(a, 0, 0);
              return Of(top < 0 ? -1 : n - 1 - top);
            }}},
          amount);
    Check(type, {{{"bfi." + b + " $d, $a, $c, $b, 8;", k, {k, 'r', k}}, n, insert}});
    if (type.is_signed) continue;
    Check(type, {{{"popc." + b + " $d, $a;", 'r', {k}},
                  32,
                  [](Whole a, Whole, Whole) { return Bits(std::popcount(static_cast<uint64_t>(a))); }},
                 {{"clz." + b + " $d, $a;", 'r', {k}},
                  32,
                  [=](Whole a, Whole, Whole) { return Bits(n - 1 - leading(a, 0, 0)); }},
                 {{"brev." + b + " $d, $a;", k, {k}}, n, [n](Whole a, Whole, Whole) {
                    Bits result = 0;
                    for (int i = 0; i < n; ++i) result |= (Of(a) >> i & 1) << (n - 1 - i);
                    return result;
                  }}});
  }
}

TEST(IsaBitRows, ComparisonsOfEveryTypeAndCombination) {
  const auto holds = [](const std::string& relation, Whole a, Whole b) {
    if (relation == "eq") return a == b;
    if (relation == "ne") return a != b;
    if (relation == "lt" || relation == "lo") return a < b;
    if (relation == "le" || relation == "ls") return a <= b;
    if (relation == "gt" || relation == "hi") return a > b;
    return a >= b;
  };
  for (const IntType& type : kTypes) {
    std::vector<std::string> relations = {"eq", "ne", "lt", "le", "gt", "ge"};
    if (!type.is_signed) relations.insert(relations.end(), {"lo", "ls", "hi", "hs"});
    const char k = type.kind();
    const std::string sources = {k, k, 'p'};
    const int n = type.bits;
    std::vector<Case> cases;
    for (const std::string& relation : relations) {
      std::vector<std::string> names = {type.name};
      if (!type.is_signed && (relation == "eq" || relation == "ne")) names.push_back(fmt::format("b{}", n));
      for (const std::string& name : names) {
        const auto plain = [=](Whole a, Whole b, Whole) { return Bits(holds(relation, a, b)); };
        cases.push_back({{"setp." + relation + "." + name + " $d, $a, $b;", 'p', sources}, 1, plain});
        cases.push_back({{"set." + relation + ".u32." + name + " $d, $a, $b;", 'r', sources},
                         32,
                         [=](Whole a, Whole b, Whole) { return holds(relation, a, b) ? 0xffffffffu : 0u; }});
        cases.push_back({{"set." + relation + ".f32." + name + " $d, $a, $b;", 'r', sources},
                         32,
                         [=](Whole a, Whole b, Whole) { return holds(relation, a, b) ? 0x3f800000u : 0u; }});
        for (const std::string& logic : {std::string("and"), std::string("or"), std::string("xor")}) {
          const auto combined = [=](Whole a, Whole b, Whole c, bool inverted) {
            const bool first = holds(relation, a, b);
            const bool second = ((c & 1) != 0) != inverted;
            return Bits(logic == "and" ? first && second : logic == "or" ? first || second : first != second);
          };
          cases.push_back({{"setp." + relation + "." + logic + "." + name + " $d, $a, $b, $c;", 'p', sources},
                           1,
                           [=](Whole a, Whole b, Whole c) { return combined(a, b, c, false); }});
          cases.push_back(
              {{"setp." + relation + "." + logic + "." + name + " $d, $a, $b, !$c;", 'p', sources},
               1,
               [=](Whole a, Whole b, Whole c) { return combined(a, b, c, true); }});
          cases.push_back(
              {{"set." + relation + "." + logic + ".s32." + name + " $d, $a, $b, $c;", 'r', sources},
               32,
               [=](Whole a, Whole b, Whole c) { return combined(a, b, c, false) ? ~Bits(0) : Bits(0); }});
        }
      }
    }
    cases.push_back({{"selp." + type.name + " $d, $a, $b, $c;", k, sources},
                     n,
                     [](Whole a, Whole b, Whole c) { return Of((c & 1) != 0 ? a : b); }});
    cases.push_back({{"selp.b" + std::to_string(n) + " $d, $a, $b, !$c;", k, sources},
                     n,
                     [](Whole a, Whole b, Whole c) { return Of((c & 1) != 0 ? b : a); }});
    Check(type, cases);
  }
  const std::string three = "ppp";
  const auto bit = [](Whole v) { return (v & 1) != 0; };
  Check(kTypes[2],
        {{{"and.pred $d, $a, $b;", 'p', three},
          1,
          [=](Whole a, Whole b, Whole) { return Bits(bit(a) && bit(b)); }},
         {{"or.pred $d, $a, !$b;", 'p', three},
          1,
          [=](Whole a, Whole b, Whole) { return Bits(bit(a) || !bit(b)); }},
         {{"xor.pred $d, !$a, $b;", 'p', three},
          1,
          [=](Whole a, Whole b, Whole) { return Bits(bit(a) == bit(b)); }},
         {{"not.pred $d, $a;", 'p', three}, 1, [=](Whole a, Whole, Whole) { return Bits(!bit(a)); }},
         {{"mov.pred $d, $a;", 'p', three}, 1, [=](Whole a, Whole, Whole) { return Bits(bit(a)); }}});
}

TEST(IsaBitRows, ConversionsOfEveryPairOfTypes) {
  std::vector<IntType> all = kTypes;
  all.push_back({"u8", 8, false});
  all.push_back({"s8", 8, true});
  for (const IntType& from : all) {
    const char source = from.bits == 8 ? 'h' : from.kind();
    std::vector<Case> cases;
    for (const IntType& to : all) {
      const char dest = to.bits == 8 ? 'h' : to.kind();
      const int width = std::max(16, to.bits);  // the register extends a byte by its sign
      cases.push_back({{"cvt." + to.name + "." + from.name + " $d, $a;", dest, {source}},
                       width,
                       [=](Whole a, Whole, Whole) { return Of(to.Read(Low(Of(a), 64))); }});
      cases.push_back({{"cvt.sat." + to.name + "." + from.name + " $d, $a;", dest, {source}},
                       width,
                       [=](Whole a, Whole, Whole) { return Of(Clamp(a, to)); }});
    }
    Check(from, cases);
  }
}

}  // namespace
}  // namespace vqllm::ptx::test
