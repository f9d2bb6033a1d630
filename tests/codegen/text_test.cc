#include "codegen/text.h"

namespace vqllm {
namespace {

TEST(FillText, FieldsTakeTheirPlaceAndIndentation) {
  EXPECT_EQ(FillText(R"(
      int a = $a$;
      {
        $body$
      }
      $nothing$
      end
    )",
                     {{"a", 3}, {"body", "x();\n  y();"}, {"nothing", ""}}),
            "int a = 3;\n{\n  x();\n    y();\n}\nend\n");
}

TEST(FillText, AFieldWithoutValueIsOurFault) { EXPECT_DEATH(FillText("$absent$", {}), "no field absent"); }

TEST(DropUnusedConstants, ChainsOfThemGo) {
  EXPECT_EQ(DropUnusedConstants("constexpr int kA = 1;  // kept\n"
                                "constexpr int kB = kA + 1;\n"
                                "constexpr int kC = 3;  // only for kD\n"
                                "constexpr int kD = kC;\n"
                                "// kD is not code\n"
                                "int x = kB;\n"),
            "constexpr int kA = 1;  // kept\nconstexpr int kB = kA + 1;\n// kD is not code\nint x = kB;\n");
}

TEST(AlignComments, NeighboursShareAColumn) {
  EXPECT_EQ(AlignComments("a;  // one\nbcd; // two\n\n  e;   // three\n// four\nf;\n"),
            "a;    // one\nbcd;  // two\n\n  e;  // three\n// four\nf;\n");
}

TEST(TextWriter, GapsDoNotPileUp) {
  TextWriter writer;
  writer.Write("a");
  writer.Gap();
  writer.Gap();
  writer.Indent();
  writer.Write("b\n  c");
  EXPECT_EQ(writer.text(), "a\n\n  b\n    c\n");
}

}  // namespace
}  // namespace vqllm
