#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace vqllm {

enum class CompilerKind {
  kNvrtc,  ///< in process; libnvrtc is opened at run time and never linked
  kNvcc,   ///< the nvcc of the toolkit as a child process; needs a host compiler
};

struct CompileOptions {
  std::string arch = "sm_80";  ///< "sm_80", "sm_90a": the machine code asked for; PTX is made for the same
  std::vector<std::filesystem::path> include_folders = {};  ///< besides the toolkit's own
  std::vector<std::string> flags = {};                      ///< more compiler flags, each beginning with '-'
  CompilerKind compiler = CompilerKind::kNvrtc;
};

/// What ptxas says about one kernel: the static evidence that a plan kept its budget.
struct KernelResources {
  std::string kernel = {};
  int registers = 0;     ///< a thread
  int spill_bytes = 0;   ///< spill stores + spill loads of a thread
  int stack_bytes = 0;   ///< local memory of a thread: arrays with a run-time index, spills
  int shared_bytes = 0;  ///< static shared memory of a block
};

struct CompiledKernel {
  std::string ptx;
  std::string cubin;  ///< an ELF file for options.arch
  std::string log;    ///< what the compiler said: warnings, resource report
  std::vector<KernelResources> kernels;
};

/// Compiles CUDA source text into PTX and a cubin. `name` stands for the text in messages. Needs no GPU and
/// no driver. Throws Error where the toolkit is absent, where it does not know the arch, and where the text
/// does not compile (with the first lines of the log).
CompiledKernel Compile(std::string_view text, const std::string& name, const CompileOptions& options);

/// True where Compile can work with this compiler.
bool CompilerAvailable(CompilerKind compiler = CompilerKind::kNvrtc);

/// "nvrtc 13.0" or "nvcc 13.0": part of a cache key. Throws Error where the compiler is absent.
std::string CompilerVersion(CompilerKind compiler = CompilerKind::kNvrtc);

/// The folder of the CUDA toolkit: $CUDA_HOME, $CUDA_PATH or /usr/local/cuda, the first that has
/// include/cuda_fp16.h; empty where none has.
std::filesystem::path CudaHome();

/// Reads the lines "ptxas info" of a compiler log.
std::vector<KernelResources> ParseResources(std::string_view log);

}  // namespace vqllm
