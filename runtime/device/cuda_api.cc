#include "runtime/device/cuda_api.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>

#include "vq/base/error.h"

namespace vqllm::internal {
namespace {

template <typename Function>
void Load(void* handle, const std::string& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) Fail("cuda: {} has no {}; allowed: a driver of CUDA 12 or later", library, name);
}

std::unique_ptr<CudaApi> LoadAll(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) Fail("cuda: no NVIDIA driver here: {}", dlerror());
  auto api = std::make_unique<CudaApi>();
  const auto load = [&](const char* name, auto& function) { Load(handle, library, name, function); };
#define VQLLM_CUDA_LOAD(name) load(#name, api->name)
  VQLLM_CUDA_LOAD(cuGetErrorName);
  VQLLM_CUDA_LOAD(cuGetErrorString);
  VQLLM_CUDA_LOAD(cuInit);
  VQLLM_CUDA_LOAD(cuDriverGetVersion);
  VQLLM_CUDA_LOAD(cuDeviceGetCount);
  VQLLM_CUDA_LOAD(cuDeviceGet);
  VQLLM_CUDA_LOAD(cuDeviceGetName);
  VQLLM_CUDA_LOAD(cuDeviceGetAttribute);
  VQLLM_CUDA_LOAD(cuDevicePrimaryCtxRetain);
  VQLLM_CUDA_LOAD(cuDevicePrimaryCtxRelease_v2);
  VQLLM_CUDA_LOAD(cuCtxSetCurrent);
  VQLLM_CUDA_LOAD(cuMemAlloc_v2);
  VQLLM_CUDA_LOAD(cuMemFree_v2);
  VQLLM_CUDA_LOAD(cuMemsetD8Async);
  VQLLM_CUDA_LOAD(cuMemcpyHtoDAsync_v2);
  VQLLM_CUDA_LOAD(cuMemcpyDtoHAsync_v2);
  VQLLM_CUDA_LOAD(cuModuleLoadData);
  VQLLM_CUDA_LOAD(cuModuleUnload);
  VQLLM_CUDA_LOAD(cuModuleGetFunction);
  VQLLM_CUDA_LOAD(cuFuncSetAttribute);
  VQLLM_CUDA_LOAD(cuLaunchKernel);
  VQLLM_CUDA_LOAD(cuStreamCreate);
  VQLLM_CUDA_LOAD(cuStreamSynchronize);
  VQLLM_CUDA_LOAD(cuStreamDestroy_v2);
  VQLLM_CUDA_LOAD(cuStreamBeginCapture_v2);
  VQLLM_CUDA_LOAD(cuStreamEndCapture);
  VQLLM_CUDA_LOAD(cuGraphInstantiateWithFlags);
  VQLLM_CUDA_LOAD(cuGraphDestroy);
  VQLLM_CUDA_LOAD(cuGraphExecDestroy);
  VQLLM_CUDA_LOAD(cuGraphLaunch);
#undef VQLLM_CUDA_LOAD
  return api;
}

}  // namespace

const CudaApi& CudaApi::Open(const std::string& library) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<CudaApi>>* const opened =
      new std::map<std::string, std::unique_ptr<CudaApi>>();
  const std::lock_guard lock(mutex);
  std::unique_ptr<CudaApi>& api = (*opened)[library];
  if (!api) api = LoadAll(library);
  return *api;
}

void CudaApi::Check(Result result, const char* call, const std::string& what) const {
  if (result == kSuccess) return;
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != kSuccess || name == nullptr) name = "unknown error";
  if (cuGetErrorString(result, &text) != kSuccess || text == nullptr) text = "no description";
  Fail("cuda: {} ({}): {} {}, {}", call, what, result, name, text);
}

}  // namespace vqllm::internal
