#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ptx/counters.h"
#include "runtime/ptx/hazards.h"
#include "runtime/ptx/memory.h"

/// Runs the PTX of NVRTC or nvcc on the CPU: values as the PTX ISA defines them, the memory traffic of every
/// warp instruction counted, and the mistakes that a GPU hides reported.
///
///   ptx::Module module = ptx::Module::Parse(ptx_text, "gemv.ptx");
///   ptx::Memory memory;
///   uint64_t y = memory.Allocate(bytes, "y");
///   ptx::LaunchReport report = ptx::Launch(memory, module, "gemv", {grid}, {256}, shared, ptx::Args(y, n));
///
/// What it does not model: rounding inside tensor cores and MUFU (sums are exact and rounded once, functions
/// are libm's), caches, clocks, and orders of independent threads other than reconvergence at the immediate
/// post-dominator.
namespace vqllm::ptx {

struct Program;  // the decoded module

struct Dim3 {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
};

/// What a kernel needs and takes.
struct KernelInfo {
  std::string name;
  std::vector<uint32_t> parameter_bytes;  ///< size of each parameter, in order
  uint32_t static_shared = 0;             ///< bytes of shared memory without the dynamic part
  uint32_t local_bytes = 0;               ///< per thread
  uint32_t warp_bytes = 0;                ///< what the interpreter holds for one resident warp
  /// The kernel has atomics on global memory or synchronises blocks in another way. Its blocks then run one
  /// after another, so that sums of floats have one order.
  bool ordered = false;
};

/// PTX text, checked and decoded. Immutable and cheap to copy; one module may be launched from several
/// threads, each with its own Memory.
class Module {
 public:
  /// `name` is what errors and hazards call the text. Throws Error, with the line and its text, for anything
  /// that is not PTX or that the interpreter does not execute: an opcode, a modifier, a type, an operand.
  static Module Parse(std::string_view text, std::string_view name = "PTX");

  std::vector<KernelInfo> Kernels() const;
  /// Throws Error that lists the kernels there are.
  KernelInfo Kernel(std::string_view name) const;
  /// Every distinct opcode with its modifiers, sorted, and how often it stands in the text.
  std::vector<std::pair<std::string, int>> Opcodes() const;

  const std::shared_ptr<const Program>& program() const { return program_; }

 private:
  std::shared_ptr<const Program> program_;
};

/// The address of a .global variable of the module. A module's variables come into being, with the initial
/// values of the text, at its first use with this Memory. Throws Error for a name that is not there.
uint64_t SymbolAddress(Memory& memory, const Module& module, std::string_view name);
/// Overwrites a .const variable from its beginning. Throws Error for an unknown name or too many bytes.
void SetConstant(Memory& memory, const Module& module, std::string_view name, const void* data,
                 uint64_t bytes);

struct LaunchOptions {
  int workers = 1;                    ///< threads that run blocks; the result does not depend on it
  bool counters = true;               ///< count the traffic
  bool hazards = true;                ///< look for races, uninitialised reads, missing waits and the like
  bool uninitialised_global = false;  ///< report reads of global bytes that nobody wrote (needs `hazards`)
  bool lines = false;                 ///< counts per PTX line in LaunchReport::lines (needs `counters`)
  bool reverse_warps = false;  ///< run the warps of a block in the opposite order: a correct kernel agrees
  /// Warp instructions that one block may execute before it counts as an endless loop.
  uint64_t instruction_budget = uint64_t{1} << 32;
};

/// What one line of the PTX cost. Sums over all blocks.
struct LineCount {
  int ptx_line = 0;
  int source_line = 0;  ///< line of the CUDA source by .loc, 0 where the PTX has none
  std::string source_file;
  std::string text;  ///< the instruction
  uint64_t warp_instructions = 0;
  uint64_t thread_instructions = 0;
  uint64_t sectors = 0;     ///< global sectors of its requests
  uint64_t wavefronts = 0;  ///< shared-memory wavefronts of its requests
};

struct LaunchReport {
  Counters counters;                 ///< all zero without LaunchOptions::counters
  std::vector<Hazard> hazards;       ///< sorted by PTX line, then kind; empty for a correct kernel
  uint64_t instructions = 0;         ///< warp instructions, counted always
  uint64_t thread_instructions = 0;  ///< sum over active lanes; 0 without LaunchOptions::counters
  /// False where a block was given up (trap, deadlock, budget); its reason is among the hazards, the
  /// counters are then those of what ran.
  bool completed = true;
  double seconds = 0;
  std::vector<LineCount> lines;

  /// Several lines for a terminal: the counters that are not zero under their names, then the hazards.
  std::string ToString() const;
};

/// Pointers to the arguments as cuLaunchKernel takes them. They must live until Launch returns: call it
/// inside the call of Launch. The values must have the exact types of the kernel's parameters.
template <typename... T>
std::array<const void*, sizeof...(T)> Args(const T&... values) {
  return {static_cast<const void*>(&values)...};
}

/// Runs a kernel to its end. `arguments` has one pointer per parameter. Throws Error for a launch that a
/// driver would refuse: unknown kernel, wrong number of arguments, more than 1024 threads, zero sizes, more
/// than 227 KiB of shared memory; and for a CPU without AVX2 where the library is built for it. What the
/// kernel itself does wrong is a hazard in the report, not an Error.
LaunchReport Launch(Memory& memory, const Module& module, std::string_view kernel, Dim3 grid, Dim3 block,
                    uint32_t dynamic_shared, std::span<const void* const> arguments,
                    const LaunchOptions& options = {});

}  // namespace vqllm::ptx
