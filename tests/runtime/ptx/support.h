#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/compile.h"
#include "runtime/ptx/interpreter.h"
#include "tests/runtime/ptx/support/opcode_log.h"
#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

/// What the tests of the interpreter share.
namespace vqllm::ptx::test {

/// One arch for each of the two code generators: NVVM 7 up to sm_90, NVVM 20 from sm_100 on.
inline const std::vector<std::string> kBothGenerators = {"sm_80", "sm_100"};

/// Those with the instructions of one arch alone.
inline const std::vector<std::string> kArchSpecific = {"sm_90a", "sm_100a", "sm_120a"};

/// The PTX of tests/runtime/ptx/kernels/<name>.cu.
inline std::string CompileKernel(const std::string& name, const std::string& arch,
                                 CompilerKind compiler = CompilerKind::kNvrtc) {
  const std::string path = "tests/runtime/ptx/kernels/" + name + ".cu";
  CompileOptions options;
  options.arch = arch;
  options.compiler = compiler;
  options.include_folders = {CudaHome() / "include" / "cccl"};  // CUB
  return Compile(ReadTextFile(vqllm::test::SourceDir() / path), name + ".cu", options).ptx;
}

template <typename T>
uint64_t Upload(Memory& memory, const std::vector<T>& values, const std::string& name) {
  const uint64_t address = memory.Allocate(values.size() * sizeof(T), name);
  memory.CopyIn(address, values.data(), values.size() * sizeof(T));
  return address;
}
template <typename T>
std::vector<T> Download(const Memory& memory, uint64_t address, size_t count) {
  std::vector<T> values(count);
  memory.CopyOut(values.data(), address, count * sizeof(T));
  return values;
}

inline std::string Text(const std::vector<Hazard>& hazards) {
  std::string text;
  for (const Hazard& hazard : hazards) text += hazard.ToString() + "\n";
  return text;
}
inline bool Has(const LaunchReport& report, HazardKind kind) {
  for (const Hazard& hazard : report.hazards) {
    if (hazard.kind == kind) return true;
  }
  return false;
}

/// Replaces the n-th occurrence (from 0); the test fails where it is not there.
inline std::string Replaced(std::string text, std::string_view from, std::string_view to, int n = 0) {
  size_t at = text.find(from);
  while (n-- > 0 && at != std::string::npos) at = text.find(from, at + 1);
  EXPECT_NE(at, std::string::npos) << "nothing to replace: " << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

/// A kernel of one warp around `body`. It has registers %p<8> %h<16> %r<32> %l<32> %f<32> %d<8>, %r0 is the
/// lane, %l0 the address of the output and %l1 that of the input; `words` 32-bit results of each lane are
/// stored from %r1 on, at out[lane * words].
inline std::string OneWarp(std::string_view body, int words, std::string_view declarations = "") {
  std::string text = ".version 9.0\n.target sm_100\n.address_size 64\n";
  text += declarations;
  text +=
      "\n.visible .entry k(.param .u64 out, .param .u64 in)\n{\n"
      ".reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .b64 %l<32>; .reg .f32 %f<32>; .reg .f64 "
      "%d<8>;\n"
      "mov.u32 %r0, %laneid;\nld.param.u64 %l0, [out];\nld.param.u64 %l1, [in];\n";
  text += body;
  text += fmt::format("\nmul.wide.u32 %l31, %r0, {};\nadd.s64 %l31, %l31, %l0;\n", 4 * words);
  for (int w = 0; w < words; ++w) text += fmt::format("st.global.u32 [%l31+{}], %r{};\n", 4 * w, w + 1);
  return text + "ret;\n}\n";
}

struct WarpResult {
  std::vector<uint32_t> out;  ///< [lane][word]
  LaunchReport report;
};

/// Runs OneWarp(body) with `input` as its input.
template <typename T = uint32_t>
WarpResult RunWarp(std::string_view body, int words, const std::vector<T>& input = {},
                   std::string_view declarations = "") {
  const Module module = Module::Parse(OneWarp(body, words, declarations));
  Memory memory;
  const uint64_t out = memory.Allocate(static_cast<uint64_t>(words) * 128, "out");
  const uint64_t in = Upload(memory, input, "in");
  WarpResult result;
  LaunchOptions options;
  options.lines = OpcodeLogWanted();
  result.report = Launch(memory, module, "k", {1}, {32}, 0, Args(out, in), options);
  LogOpcodes(result.report);
  result.out = Download<uint32_t>(memory, out, static_cast<size_t>(words) * 32);
  return result;
}

}  // namespace vqllm::ptx::test

/// Skips where no CUDA compiler is there.
#define VQLLM_NEED_NVRTC() \
  if (!::vqllm::CompilerAvailable()) GTEST_SKIP() << "no NVRTC: set CUDA_HOME"
