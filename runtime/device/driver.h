#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "codegen/compile.h"
#include "codegen/gpu.h"

namespace vqllm {

/// Device memory is named by addresses, as in CUDA; 0 is no memory.
using DeviceAddress = uint64_t;

struct LaunchSize {
  int64_t blocks_x = 1;
  int64_t blocks_y = 1;
  int64_t blocks_z = 1;
  int threads = 1;
  int64_t shared_bytes = 0;  ///< dynamic
};

/// What a launch moved and executed, where the driver counts it; all 0 on a GPU.
struct LaunchCounts {
  double dram_bytes = 0;  ///< sectors touched for the first time in the launch, loads and stores
  double l2_bytes = 0;    ///< sectors touched for the first time in their block
  double shared_wavefronts = 0;
  double shared_ideal = 0;  ///< the same without bank conflicts
  double global_lines = 0;  ///< 128-byte passes of global requests through L1
  double instructions = 0;  ///< of warps
  double tensor_flops = 0;
};

/// A file of kernels, loaded.
class GpuModule {
 public:
  virtual ~GpuModule() = default;
};

/// A run of launches, recorded.
class GpuGraph {
 public:
  virtual ~GpuGraph() = default;
};

/// The few things that a GPU device asks of what stands below it. Two exist: libcuda, and the PTX interpreter
/// in its place. Launches run in the order of the calls. Objects must not outlive their driver. All throw
/// Error that names the call and what it was about.
class GpuDriver {
 public:
  virtual ~GpuDriver() = default;

  /// One line for reports.
  virtual std::string Describe() const = 0;
  /// What kernels are planned and compiled for.
  virtual const GpuSpec& gpu() const = 0;
  /// True where Launch counts.
  virtual bool Counts() const { return false; }

  /// Memory, filled with zeros, aligned to 256 bytes. `name` is what errors call it.
  virtual DeviceAddress Allocate(int64_t bytes, const std::string& name) = 0;
  virtual void Free(DeviceAddress address) = 0;
  /// `from` may be changed as soon as Upload returns.
  virtual void Upload(DeviceAddress to, const void* from, int64_t bytes) = 0;
  /// Waits for all launches before.
  virtual void Download(void* to, DeviceAddress from, int64_t bytes) = 0;

  virtual std::unique_ptr<GpuModule> Load(const CompiledKernel& kernel, const std::string& name) = 0;
  /// `arguments` has one pointer per parameter of the kernel.
  virtual LaunchCounts Launch(const GpuModule& module, const std::string& kernel, const LaunchSize& size,
                              std::span<const void* const> arguments) = 0;
  /// Waits for all launches, and throws what went wrong in them.
  virtual void Synchronise() = 0;

  /// Records what launches() launches instead of running it. Null from a driver that cannot record; then
  /// launches() has not been called.
  virtual std::unique_ptr<GpuGraph> Record(const std::function<void()>& launches) = 0;
  virtual void Replay(const GpuGraph& graph) = 0;
};

struct PtxDriverOptions {
  bool hazards = true;  ///< every launch is checked, and a hazard is an Error
  int workers = 1;      ///< threads of the interpreter; no result depends on it
};

/// The PTX interpreter in place of a GPU: what `gpu` is only decides what kernels are made for it.
std::unique_ptr<GpuDriver> NewPtxDriver(const GpuSpec& gpu, const PtxDriverOptions& options = {});

/// The first GPU of libcuda, which is opened at run time. Throws Error where there is none. `library` stands
/// for it in tests.
std::unique_ptr<GpuDriver> NewCudaDriver(const std::string& library = "libcuda.so.1");

}  // namespace vqllm
