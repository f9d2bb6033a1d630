#include "runtime/device/gpu_kernels.h"

#include "kernels/cuda/fixed_kernels.h"
#include "runtime/device/launch_model.h"
#include "vq/base/check.h"

namespace vqllm {

GpuBuffer& GpuBuffer::operator=(GpuBuffer&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

GpuBuffer::~GpuBuffer() {
  if (driver_ != nullptr) driver_->Free(address_);
}

GpuProgram GpuKernels::Load(const CachedKernel& built, const std::string& name, const std::string& serves,
                            const std::vector<KernelLaunch>& launches) {
  return {name, serves, launches, driver_.Load(built.kernel, name)};
}

void GpuKernels::Launch(const GpuProgram& program, std::span<const KernelLaunch> launches,
                        const GpuArguments& arguments) {
  for (const KernelLaunch& launch : launches) {
    std::vector<const void*> pointers;
    for (const std::string& parameter : launch.parameters) {
      const auto found = arguments.find(parameter);
      VQLLM_CHECK(found != arguments.end(), "{}: {}", program.name, parameter);
      pointers.push_back(&found->second);
    }
    const LaunchSize size = {launch.grid_x, launch.grid_y, launch.grid_z, launch.threads,
                             launch.shared_bytes};
    Count(program.serves, launch.kernel, size,
          driver_.Launch(*program.module, launch.kernel, size, pointers));
  }
}

const GpuModule& GpuKernels::Fixed(const char* file) {
  std::unique_ptr<GpuModule>& module = fixed_[file];
  if (!module) {
    const std::string name = std::string(file) + ".cu";
    const CachedKernel built = cache_.Get(FixedKernelText(file), name, {.arch = driver_.gpu().Arch()}, "");
    module = driver_.Load(built.kernel, name);
  }
  return *module;
}

std::vector<KernelUse> GpuKernels::Uses() const {
  std::vector<KernelUse> uses;
  for (const auto& [op, use] : uses_) uses.push_back(use);
  return uses;
}

void GpuKernels::Count(const std::string& serves, const std::string& kernel, const LaunchSize& size,
                       const LaunchCounts& counts) {
  KernelUse& use = uses_[serves];
  use.op = serves;
  if (use.kernels.find(kernel) == std::string::npos) use.kernels += (use.kernels.empty() ? "" : " ") + kernel;
  ++use.launches;
  use.dram_bytes += counts.dram_bytes;
  use.shared_wavefronts += counts.shared_wavefronts;
  const LaunchTime time = ModelLaunch(counts, size, driver_.gpu());
  use.modelled_lower_us += time.lower_us;
  use.modelled_upper_us += time.upper_us;
}

}  // namespace vqllm
