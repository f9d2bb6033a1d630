// A libcuda for machines without a GPU: the functions that runtime/device/cuda_api.h names, over the PTX
// interpreter. It has one "GPU" (none where $VQLLM_FAKE_GPUS is 0) that takes no cubin, so that PTX is loaded
// as on an unknown GPU, and it is as strict as a driver about shared memory, names and captures. A hazard is
// a fault of the GPU: it shows at the next call that waits.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/ptx/interpreter.h"

namespace {

using vqllm::ptx::Dim3;
using Result = int;

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialized = 3;
constexpr Result kNoDevice = 100;
constexpr Result kInvalidContext = 201;
constexpr Result kNoBinaryForGpu = 209;
constexpr Result kInvalidPtx = 218;
constexpr Result kNotFound = 500;
constexpr Result kIllegalAddress = 700;
constexpr Result kCaptureUnsupported = 900;

constexpr unsigned kSharedWithoutAsking = 48 * 1024;

struct Module;
struct Function {
  Module* module = nullptr;
  std::string name;
  unsigned shared_limit = kSharedWithoutAsking;
};
struct Module {
  vqllm::ptx::Module code;
  std::map<std::string, Function> functions;
};
using Work = std::function<void()>;
struct Graph {
  std::vector<Work> work;
};

struct Gpu {
  bool initialized = false;
  bool current = false;
  vqllm::ptx::Memory memory{uint64_t{1} << 32};
  std::set<uint64_t> allocated;
  bool capturing = false;
  std::vector<Work> captured;
  Result fault = kSuccess;  // sticky, as on a GPU
};
Gpu& TheGpu() {
  static Gpu gpu;
  return gpu;
}

int DeviceCount() {
  const char* count = std::getenv("VQLLM_FAKE_GPUS");
  return count == nullptr ? 1 : std::atoi(count);
}

/// Runs now, or when the graph that is being captured is launched.
Result Enqueue(Work work) {
  Gpu& gpu = TheGpu();
  if (!gpu.current) return kInvalidContext;
  if (gpu.fault != kSuccess) return gpu.fault;
  if (gpu.capturing) {
    gpu.captured.push_back(std::move(work));
  } else {
    work();
  }
  return kSuccess;
}

}  // namespace

extern "C" {

Result cuGetErrorName(Result error, const char** name) {
  static const std::map<Result, const char*> names = {{kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                      {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
                                                      {kNotFound, "CUDA_ERROR_NOT_FOUND"},
                                                      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  const auto found = names.find(error);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? kInvalidValue : kSuccess;
}
Result cuGetErrorString(Result, const char** text) {
  *text = "as the fake driver says";
  return kSuccess;
}
Result cuInit(unsigned) {
  if (DeviceCount() == 0) return kNoDevice;
  TheGpu().initialized = true;
  return kSuccess;
}
Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
Result cuDeviceGetCount(int* count) {
  *count = DeviceCount();
  return TheGpu().initialized ? kSuccess : kNotInitialized;
}
Result cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < DeviceCount() ? kSuccess : kInvalidValue;
}
Result cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(length));
  return kSuccess;
}
Result cuDeviceGetAttribute(int* value, int attribute, int) {
  // Clock kHz, SMs, memory clock kHz, bus bits, L2 bytes, compute capability: a GPU that is in no table.
  static const std::map<int, int> values = {{13, 1500000}, {16, 7}, {36, 1000000}, {37, 384},
                                            {38, 4 << 20}, {75, 8}, {76, 6}};
  const auto found = values.find(attribute);
  if (found == values.end()) return kInvalidValue;
  *value = found->second;
  return kSuccess;
}
Result cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &TheGpu();
  TheGpu().fault = kSuccess;
  return kSuccess;
}
Result cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
Result cuCtxSetCurrent(void* context) {
  TheGpu().current = context == &TheGpu();
  return TheGpu().current ? kSuccess : kInvalidContext;
}

Result cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  Gpu& gpu = TheGpu();
  if (gpu.capturing) return kCaptureUnsupported;
  if (bytes == 0) return kInvalidValue;
  if (gpu.memory.allocated_bytes() + bytes > (uint64_t{1} << 31)) return kOutOfMemory;
  *address = gpu.memory.Allocate(bytes, "cuMemAlloc");
  gpu.allocated.insert(*address);
  return kSuccess;
}
Result cuMemFree_v2(unsigned long long address) {
  Gpu& gpu = TheGpu();
  if (gpu.allocated.erase(address) == 0) return kInvalidValue;
  gpu.memory.Free(address);
  return kSuccess;
}
Result cuMemsetD8Async(unsigned long long address, unsigned char value, size_t bytes, void*) {
  return Enqueue([=] { TheGpu().memory.Fill(address, value, bytes); });
}
Result cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void*) {
  const auto* first = static_cast<const uint8_t*>(from);
  const auto staged = std::make_shared<std::vector<uint8_t>>(first, first + bytes);
  return Enqueue([=] { TheGpu().memory.CopyIn(to, staged->data(), bytes); });
}
Result cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void*) {
  return Enqueue([=] { TheGpu().memory.CopyOut(to, from, bytes); });
}

Result cuModuleLoadData(Module** module, const void* image) {
  const char* text = static_cast<const char*>(image);
  if (std::strncmp(text,
                   "\x7f"
                   "ELF",
                   4) == 0)
    return kNoBinaryForGpu;
  try {
    *module = new Module{vqllm::ptx::Module::Parse(text), {}};
  } catch (const std::exception&) {
    return kInvalidPtx;
  }
  return kSuccess;
}
Result cuModuleUnload(Module* module) {
  delete module;
  return kSuccess;
}
Result cuModuleGetFunction(Function** function, Module* module, const char* name) {
  for (const vqllm::ptx::KernelInfo& kernel : module->code.Kernels()) {
    if (kernel.name != name) continue;
    *function = &module->functions.try_emplace(name, Function{module, name}).first->second;
    return kSuccess;
  }
  return kNotFound;
}
Result cuFuncSetAttribute(Function* function, int attribute, int value) {
  if (attribute != 8 || value > 99 * 1024) return kInvalidValue;
  function->shared_limit = static_cast<unsigned>(value);
  return kSuccess;
}
Result cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, void*, void** parameters,
                      void** extra) {
  if (shared > function->shared_limit || extra != nullptr) return kInvalidValue;
  // Parameters are copied at the launch.
  std::vector<std::vector<uint8_t>> values;
  const vqllm::ptx::KernelInfo kernel = function->module->code.Kernel(function->name);
  for (size_t i = 0; i < kernel.parameter_bytes.size(); ++i) {
    const auto* first = static_cast<const uint8_t*>(parameters[i]);
    values.emplace_back(first, first + kernel.parameter_bytes[i]);
  }
  return Enqueue([=] {
    Gpu& gpu = TheGpu();
    std::vector<const void*> pointers;
    for (const auto& value : values) pointers.push_back(value.data());
    try {
      const vqllm::ptx::LaunchReport report =
          vqllm::ptx::Launch(gpu.memory, function->module->code, function->name, Dim3{grid_x, grid_y, grid_z},
                             Dim3{block_x, block_y, block_z}, shared, pointers);
      if (!report.hazards.empty()) gpu.fault = kIllegalAddress;
    } catch (const std::exception&) {
      gpu.fault = kInvalidValue;
    }
  });
}

Result cuStreamCreate(void** stream, unsigned) {
  *stream = &TheGpu();
  return kSuccess;
}
Result cuStreamSynchronize(void*) { return TheGpu().capturing ? kCaptureUnsupported : TheGpu().fault; }
Result cuStreamDestroy_v2(void*) { return kSuccess; }
Result cuStreamBeginCapture_v2(void*, int) {
  Gpu& gpu = TheGpu();
  if (gpu.capturing) return kInvalidValue;
  gpu.capturing = true;
  gpu.captured.clear();
  return kSuccess;
}
Result cuStreamEndCapture(void*, Graph** graph) {
  Gpu& gpu = TheGpu();
  if (!gpu.capturing) return kInvalidValue;
  gpu.capturing = false;
  *graph = new Graph{std::move(gpu.captured)};
  return kSuccess;
}
Result cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, unsigned long long) {
  *exec = new Graph(*graph);
  return kSuccess;
}
Result cuGraphDestroy(Graph* graph) {
  delete graph;
  return kSuccess;
}
Result cuGraphExecDestroy(Graph* exec) {
  delete exec;
  return kSuccess;
}
Result cuGraphLaunch(Graph* exec, void*) {
  for (const Work& work : exec->work) {
    const Result result = Enqueue(work);
    if (result != kSuccess) return result;
  }
  return kSuccess;
}

}  // extern "C"
