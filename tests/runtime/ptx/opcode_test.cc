#include "runtime/ptx/opcode.h"

#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "runtime/ptx/select.h"
#include "tests/runtime/ptx/support.h"

namespace vqllm::ptx::test {
namespace {

TEST(OpcodeForms, EverySpellingOfTheTableHasAHandlerAndIsFound) {
  size_t spellings = 0;
  for (const OpcodeForm& form : OpcodeForms()) {
    for (const std::string& text : Spellings(form.pattern)) {
      const Opcode opcode(text);
      ++spellings;
      ASSERT_TRUE(Matches(form.pattern, opcode)) << text;
      ASSERT_FALSE(FindForms(opcode).empty()) << text;
      ASSERT_NE(form.select(opcode), nullptr) << text << " of " << form.pattern;
    }
  }
  EXPECT_GT(spellings, 5000u);
}

TEST(OpcodeForms, NoOpcodeIsAdmittedTwiceWithTheSameOperands) {
  for (const OpcodeForm& form : OpcodeForms()) {
    for (const std::string& text : Spellings(form.pattern)) {
      std::set<std::string_view> operands;
      const Opcode opcode(text);
      for (const OpcodeForm* other : FindForms(opcode)) {
        EXPECT_TRUE(operands.insert(other->operands).second) << text << " " << other->operands;
      }
    }
  }
}

TEST(OpcodeForms, AModifierThatNoRowNamesIsRefusedWithLineAndText) {
  for (const char* bad :
       {"fma.rn.relu.f32 %f1, %f2, %f3, %f4;", "mul.rz.f16 %h1, %h2, %h3;", "add.u8 %h1, %h2, %h3;",
        "add.cc.f32 %f1, %f2, %f3;", "ld.global.ftz.u32 %r1, [%l0];", "shfl.up.b32 %r1, %r2, 1, 0;",
        "cvt.rn.s32.f32 %r1, %f1;",
        "mma.sync.aligned.m16n8k16.col.row.f32.f16.f16.f32 {%f1}, {%f1}, {%f1}, {%f1};",
        "frobnicate.u32 %r1, %r2;", "atom.global.max.f32 %f1, [%l0], %f2;", "tcgen05.wait;",
        "prmt.b32.xx %r1, %r2, %r3, %r4;", "ex2.f32 %f1, %f2;", "min.sat.f32 %f1, %f2, %f3;"}) {
    try {
      Module::Parse(OneWarp(std::string(bad) + "\n", 1), "bad.ptx");
      ADD_FAILURE() << bad << " was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("bad.ptx:11: unsupported opcode, modifier or type: "))
          << bad;
      EXPECT_THAT(error.what(), testing::HasSubstr(bad));
    }
  }
}

TEST(OpcodeForms, OperandsOfTheWrongKindOrWidthAreRefused) {
  for (const char* bad : {"add.u32 %r1, %r2;",
                          "add.u32 %r1, %r2, %r3, %r4;",
                          "add.u32 %l1, %r2, %r3;",
                          "add.u32 %r1, %l2, %r3;",
                          "add.u32 %p1, %r2, %r3;",
                          "add.u32 5, %r2, %r3;",
                          "add.f32 %f1, %f2, 3;",
                          "selp.b32 %r1, %r2, %r3, %r4;",
                          "setp.eq.u32 %r1, %r2, %r3;",
                          "ld.global.u64 %r1, [%l0];",
                          "ld.global.v2.u32 %r1, [%l0];",
                          "ld.global.v2.u32 {%r1, %r2, %r3}, [%l0];",
                          "ld.global.u32 %r1, [%h1];",
                          "ld.global.u32 %r1, %l0;",
                          "ld.param.u32 %r1, [nothing];",
                          "ld.param.u64 %l2, [in+8];",
                          "st.param.u64 [in], %l2;",
                          "lop3.b32 %r1, %r2, %r3, %r4, %r5;",
                          "bra NOWHERE;",
                          "call foo;",
                          "mov.b32 {%r1, %r2}, %r3;",
                          "cp.async.cg.shared.global [%r1], [%l0], 8;",
                          "mul.wide.u32 %r1, %r2, %r3;",
                          "add.u32 %r99, %r1, %r2;",
                          "shl.b64 %l2, %l3, %l4;",
                          "cvt.u64.u32 %r1, %r2;",
                          "@%r1 add.u32 %r1, %r1, %r1;"}) {
    EXPECT_THROW(Module::Parse(OneWarp(std::string(bad) + "\n", 1)), Error) << bad;
  }
}

// The tests Isa* run once more in a process of their own and note what they execute. A form of the table that
// none of them executes has no test of its values.
TEST(Coverage, EveryFormIsExecutedByATestOfItsValues) {
  const vqllm::test::TempDir folder;
  const std::string log = (folder.path() / "opcodes").string();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      "VQLLM_OPCODE_LOG='" + log + "' '" + self + "' --gtest_filter='Isa*' --gtest_brief=1 > /dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0) << "run " << self << " --gtest_filter='Isa*'";
  std::set<std::string> executed;
  std::istringstream lines(ReadTextFile(log));
  for (std::string line; std::getline(lines, line);) executed.insert(line);
  std::set<const OpcodeForm*> tested;
  for (const std::string& text : executed) {
    for (const OpcodeForm* form : FindForms(Opcode(text))) tested.insert(form);
  }
  for (const OpcodeForm& form : OpcodeForms()) {
    EXPECT_TRUE(tested.contains(&form))
        << "no test of " << form.pattern << " with operands " << form.operands;
  }
  fmt::print("{} forms, {} opcodes executed by tests of their values\n", OpcodeForms().size(),
             executed.size());
}

// Every opcode of the test kernels for one target; prints the list.
class TargetCoverage : public testing::TestWithParam<const char*> {};

TEST_P(TargetCoverage, KernelsUseSupportedOpcodesOnly) {
  VQLLM_NEED_NVRTC();
  std::map<std::string, int> met;
  for (const char* kernel : {"vq_gemv", "vq_gemm", "vq_attn", "gptq_gemv", "reg_cb", "cub_reduce", "cub_sort",
                             "misc", "fp8_clock"}) {
    const Module module = Module::Parse(CompileKernel(kernel, GetParam()), kernel);
    for (const auto& [opcode, count] : module.Opcodes()) met[opcode] += count;
    for (const KernelInfo& info : module.Kernels()) {
      fmt::print("{:<60}{:>6} bytes a resident warp\n", info.name, info.warp_bytes);
      EXPECT_LE(info.warp_bytes, 64u * 1024) << info.name;
    }
  }
  for (const auto& [opcode, count] : met) fmt::print("{:<60}{:>6}\n", opcode, count);
  fmt::print("{}: {} distinct opcodes, none unsupported\n", GetParam(), met.size());
  EXPECT_GT(met.size(), 150u);
}

INSTANTIATE_TEST_SUITE_P(AllTargets, TargetCoverage,
                         testing::Values("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a",
                                         "sm_120", "sm_120a"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace vqllm::ptx::test
