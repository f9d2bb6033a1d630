#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/generate.h"
#include "runtime/device/device.h"
#include "runtime/device/driver.h"

namespace vqllm {

/// Device memory of a driver, given back with the object.
class GpuBuffer {
 public:
  GpuBuffer() = default;
  /// Filled with zeros.
  GpuBuffer(GpuDriver& driver, int64_t bytes, const std::string& name)
      : driver_(&driver), address_(driver.Allocate(bytes, name)), bytes_(bytes) {}
  GpuBuffer(GpuBuffer&& other) noexcept { *this = std::move(other); }
  GpuBuffer& operator=(GpuBuffer&& other) noexcept;
  ~GpuBuffer();

  DeviceAddress address() const { return address_; }
  int64_t bytes() const { return bytes_; }

 private:
  GpuDriver* driver_ = nullptr;
  DeviceAddress address_ = 0;
  int64_t bytes_ = 0;
};

/// A buffer that holds the values; no memory (address 0) where there are none.
template <typename T>
GpuBuffer UploadAll(GpuDriver& driver, std::span<const T> values, const std::string& name) {
  if (values.empty()) return {};
  GpuBuffer buffer(driver, static_cast<int64_t>(values.size_bytes()), name);
  driver.Upload(buffer.address(), values.data(), buffer.bytes());
  return buffer;
}
template <typename T>
GpuBuffer UploadAll(GpuDriver& driver, const std::vector<T>& values, const std::string& name) {
  return UploadAll(driver, std::span<const T>(values), name);
}

/// A generated kernel file, compiled and loaded.
struct GpuProgram {
  std::string name;    ///< of the file
  std::string serves;  ///< what the launches are counted under: "gemv aqlm-2x8 4096x4096"
  std::vector<KernelLaunch> launches;
  std::unique_ptr<GpuModule> module;
};

/// Addresses of a program's parameters by name.
using GpuArguments = std::map<std::string_view, DeviceAddress>;

/// The kernels of one driver: generated for a request or fixed, compiled through the cache at their first
/// use, loaded once. Every launch is counted under the op that it serves.
class GpuKernels {
 public:
  GpuKernels(GpuDriver& driver, KernelCache cache) : driver_(driver), cache_(std::move(cache)) {}

  GpuDriver& driver() const { return driver_; }
  const KernelCache& cache() const { return cache_; }

  /// Loads a compiled file.
  GpuProgram Load(const CachedKernel& built, const std::string& name, const std::string& serves,
                  const std::vector<KernelLaunch>& launches);
  /// Runs the kernels of a program as `launches` say (by default as the program was planned); each parameter
  /// must be among the arguments.
  void Launch(const GpuProgram& program, const GpuArguments& arguments) {
    Launch(program, program.launches, arguments);
  }
  void Launch(const GpuProgram& program, std::span<const KernelLaunch> launches,
              const GpuArguments& arguments);

  /// Runs `kernel` of kernels/cuda/<file>.cu. The arguments must have the exact types of its parameters.
  template <typename... T>
  void LaunchFixed(const char* file, const char* kernel, const LaunchSize& size, const T&... arguments) {
    const void* const pointers[] = {static_cast<const void*>(&arguments)...};
    Count(kernel, kernel, size, driver_.Launch(Fixed(file), kernel, size, pointers));
  }

  std::vector<KernelUse> Uses() const;
  void ResetUses() { uses_.clear(); }

 private:
  const GpuModule& Fixed(const char* file);
  void Count(const std::string& serves, const std::string& kernel, const LaunchSize& size,
             const LaunchCounts& counts);

  GpuDriver& driver_;
  KernelCache cache_;
  std::map<std::string, std::unique_ptr<GpuModule>> fixed_;
  std::map<std::string, KernelUse> uses_;
};

}  // namespace vqllm
