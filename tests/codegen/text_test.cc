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
