#include "tests/runtime/ptx/support/rows.h"

#include "tests/runtime/ptx/support.h"
#include "vq/base/rng.h"

namespace vqllm::ptx::test {
namespace {

// Register names by kind: %a16 %a32 %a64 %ap and so on.
std::string Register(char operand, char kind) {
  const char* const width = kind == 'h' ? "16" : kind == 'l' ? "64" : kind == 'p' ? "p" : "32";
  return fmt::format("%{}{}", operand, width);
}

std::string Kernel(const std::vector<RowInstruction>& instructions, size_t rows) {
  std::string text =
      ".version 9.0\n.target sm_100\n.address_size 64\n"
      ".visible .entry k(.param .u64 out, .param .u64 in)\n{\n"
      ".reg .b64 %in; .reg .b64 %to; .reg .b32 %i; .reg .b32 %n; .reg .b32 %m; .reg .b64 %wide; .reg .pred "
      "%end;\n";
  for (const char operand : {'a', 'b', 'c', 'd'}) {
    text += fmt::format(".reg .b16 %{0}16; .reg .b32 %{0}32; .reg .b64 %{0}64; .reg .pred %{0}p;\n", operand);
  }
  text += fmt::format(
      "mov.u32 %i, %ctaid.x;\nmov.u32 %n, %ntid.x;\nmov.u32 %m, %tid.x;\nmad.lo.u32 %i, %i, %n, %m;\n"
      "setp.ge.u32 %end, %i, {};\n@%end bra END;\n"
      "ld.param.u64 %in, [in];\nmad.wide.u32 %in, %i, 24, %in;\nld.param.u64 %to, [out];\n"
      "mad.wide.u32 %to, %i, 8, %to;\n",
      rows);
  for (int i = 0; i < 3; ++i) {
    const char name = static_cast<char>('a' + i);
    text += fmt::format(
        "ld.global.u64 %{0}64, [%in+{1}];\ncvt.u32.u64 %{0}32, %{0}64;\ncvt.u16.u64 %{0}16, %{0}64;\n"
        "and.b32 %m, %{0}32, 1;\nsetp.ne.u32 %{0}p, %m, 0;\n",
        name, 8 * i);
  }
  for (size_t k = 0; k < instructions.size(); ++k) {
    const RowInstruction& instruction = instructions[k];
    std::string line = instruction.text;
    const auto replace = [&](char operand, char kind) {
      const std::string from = std::string("$") + operand;
      for (size_t at = line.find(from); at != std::string::npos; at = line.find(from)) {
        line.replace(at, 2, Register(operand, kind));
      }
    };
    replace('d', instruction.dest);
    for (size_t s = 0; s < instruction.sources.size(); ++s) {
      replace(static_cast<char>('a' + s), instruction.sources[s]);
    }
    text += line + "\n";
    if (instruction.dest == 'p') {
      text += "selp.b64 %wide, 1, 0, %dp;\n";
    } else if (instruction.dest == 'l') {
      text += "mov.b64 %wide, %d64;\n";
    } else {
      text += instruction.dest == 'h' ? "cvt.u64.u16 %wide, %d16;\n" : "cvt.u64.u32 %wide, %d32;\n";
    }
    text += fmt::format("st.global.u64 [%to+{}], %wide;\n", 8 * k * rows);
  }
  return text + "END:\nret;\n}\n";
}

}  // namespace

std::vector<std::vector<uint64_t>> RunRows(const std::vector<RowInstruction>& instructions,
                                           const std::vector<Row>& rows) {
  const Module module = Module::Parse(Kernel(instructions, rows.size()), "rows.ptx");
  Memory memory;
  const uint64_t in = Upload(memory, rows, "in");
  const uint64_t out = memory.Allocate(instructions.size() * rows.size() * 8, "out");
  LaunchOptions options;
  options.lines = OpcodeLogWanted();
  const LaunchReport report = Launch(memory, module, "k", {static_cast<uint32_t>(rows.size() + 255) / 256},
                                     {256}, 0, Args(out, in), options);
  EXPECT_EQ(Text(report.hazards), "");
  LogOpcodes(report);
  std::vector<std::vector<uint64_t>> results;
  for (size_t k = 0; k < instructions.size(); ++k) {
    results.push_back(Download<uint64_t>(memory, out + 8 * k * rows.size(), rows.size()));
  }
  return results;
}

std::vector<Row> EdgeRows(const std::vector<uint64_t>& values, int more, uint64_t seed) {
  Rng rng(seed);
  const auto any = [&] { return values[rng.Below(values.size())]; };
  std::vector<Row> rows;
  for (const uint64_t a : values) {
    for (const uint64_t b : values) rows.push_back({a, b, any()});
  }
  for (int i = 0; i < more; ++i) {
    Row row;
    for (uint64_t& value : row) value = rng.Below(3) == 0 ? any() : rng.Next();
    rows.push_back(row);
  }
  return rows;
}

}  // namespace vqllm::ptx::test
