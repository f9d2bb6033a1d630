#include "runtime/device/open.h"

#include "codegen/compile.h"
#include "runtime/device/gpu.h"
#include "vq/base/error.h"
#include "vq/base/parallel.h"

namespace vqllm {
namespace {

std::shared_ptr<Device> OpenCuda() {
  CompilerVersion();  // says what is missing where there is no compiler
  return std::make_shared<GpuDevice>(NewCudaDriver(), KernelCache(KernelCache::DefaultFolder()));
}

std::shared_ptr<Device> OpenPtx(const DeviceOptions& options) {
  CompilerVersion();
  const PtxDriverOptions driver = {.hazards = options.hazards, .workers = Threads()};
  return std::make_shared<GpuDevice>(NewPtxDriver(ParseGpu(options.gpu), driver),
                                     KernelCache(KernelCache::DefaultFolder()));
}

}  // namespace

std::shared_ptr<Device> OpenDevice(const DeviceOptions& options) {
  if (options.kind == "cpu") return NewCpuDevice(options.exact);
  if (options.kind == "cuda") return OpenCuda();
  if (options.kind == "ptx") return OpenPtx(options);
  if (options.kind != "auto") Fail("device: found \"{}\", allowed: cpu cuda ptx auto", options.kind);
  try {
    return OpenCuda();
  } catch (const Error&) {  // no GPU or no compiler: what `auto` is for
    return NewCpuDevice(options.exact);
  }
}

}  // namespace vqllm
