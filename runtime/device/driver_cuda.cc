#include <map>

#include "runtime/device/cuda_api.h"
#include "runtime/device/driver.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

using internal::CudaApi;

// A kernel gets this much shared memory without asking for more.
constexpr int64_t kSharedWithoutAsking = 48 * 1024;

// The driver's call, checked: the error names the call and what it was about.
#define VQLLM_CUDA(api, call, what, ...) (api).Check((api).call(__VA_ARGS__), #call, what)

class CudaModuleHandle final : public GpuModule {
 public:
  CudaModuleHandle(const CudaApi& api, CudaApi::Module module, std::string name)
      : api_(api), module_(module), name_(std::move(name)) {}
  ~CudaModuleHandle() override { api_.cuModuleUnload(module_); }
  CudaModuleHandle(const CudaModuleHandle&) = delete;
  CudaModuleHandle& operator=(const CudaModuleHandle&) = delete;

  /// The function, allowed at least `shared_bytes` of dynamic shared memory.
  CudaApi::Function Function(const std::string& kernel, int64_t shared_bytes) const {
    Entry& entry = functions_[kernel];
    const std::string what = name_ + " " + kernel;
    if (entry.function == nullptr)
      VQLLM_CUDA(api_, cuModuleGetFunction, what, &entry.function, module_, kernel.c_str());
    if (shared_bytes > entry.shared_bytes) {
      VQLLM_CUDA(api_, cuFuncSetAttribute, what, entry.function, CudaApi::kMaxDynamicShared,
                 static_cast<int>(shared_bytes));
      entry.shared_bytes = shared_bytes;
    }
    return entry.function;
  }
  const std::string& name() const { return name_; }

 private:
  struct Entry {
    CudaApi::Function function = nullptr;
    int64_t shared_bytes = kSharedWithoutAsking;
  };
  const CudaApi& api_;
  CudaApi::Module module_;
  std::string name_;
  mutable std::map<std::string, Entry> functions_;
};

class CudaGraphHandle final : public GpuGraph {
 public:
  CudaGraphHandle(const CudaApi& api, CudaApi::GraphExec graph) : api_(api), exec(graph) {}
  ~CudaGraphHandle() override { api_.cuGraphExecDestroy(exec); }
  CudaGraphHandle(const CudaGraphHandle&) = delete;
  CudaGraphHandle& operator=(const CudaGraphHandle&) = delete;

 private:
  const CudaApi& api_;

 public:
  const CudaApi::GraphExec exec;
};

class CudaDriver final : public GpuDriver {
 public:
  explicit CudaDriver(const std::string& library) : api_(CudaApi::Open(library)) {
    VQLLM_CUDA(api_, cuInit, library, 0);
    int count = 0;
    VQLLM_CUDA(api_, cuDeviceGetCount, library, &count);
    if (count < 1) Fail("cuda: found no GPU, allowed: at least one");
    VQLLM_CUDA(api_, cuDeviceGet, "GPU 0", &device_, 0);
    gpu_ = ReadSpec();
    VQLLM_CUDA(api_, cuDevicePrimaryCtxRetain, gpu_.title, &context_, device_);
    Enter();
    VQLLM_CUDA(api_, cuStreamCreate, gpu_.title, &stream_, 0);
  }
  ~CudaDriver() override {
    if (stream_ != nullptr) api_.cuStreamDestroy_v2(stream_);
    if (context_ != nullptr) api_.cuDevicePrimaryCtxRelease_v2(device_);
  }
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  std::string Describe() const override {
    int version = 0;
    VQLLM_CUDA(api_, cuDriverGetVersion, gpu_.title, &version);
    return fmt::format("{} ({}), driver of CUDA {}.{}", gpu_.title, gpu_.Arch(), version / 1000,
                       version % 1000 / 10);
  }
  const GpuSpec& gpu() const override { return gpu_; }

  DeviceAddress Allocate(int64_t bytes, const std::string& name) override {
    Enter();
    CudaApi::Address address = 0;
    const size_t size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    const std::string what = fmt::format("{}, {} bytes", name, bytes);
    VQLLM_CUDA(api_, cuMemAlloc_v2, what, &address, size);
    VQLLM_CUDA(api_, cuMemsetD8Async, what, address, 0, size, stream_);
    return address;
  }
  void Free(DeviceAddress address) override {
    Enter();
    api_.cuMemFree_v2(address);
  }
  void Upload(DeviceAddress to, const void* from, int64_t bytes) override {
    if (bytes == 0) return;
    Enter();
    // From pageable memory: the bytes are staged before the call returns.
    VQLLM_CUDA(api_, cuMemcpyHtoDAsync_v2, fmt::format("{} bytes", bytes), to, from,
               static_cast<size_t>(bytes), stream_);
  }
  void Download(void* to, DeviceAddress from, int64_t bytes) override {
    if (bytes == 0) return;
    Enter();
    VQLLM_CUDA(api_, cuMemcpyDtoHAsync_v2, fmt::format("{} bytes", bytes), to, from,
               static_cast<size_t>(bytes), stream_);
    Synchronise();
  }

  std::unique_ptr<GpuModule> Load(const CompiledKernel& kernel, const std::string& name) override {
    Enter();
    CudaApi::Module module = nullptr;
    CudaApi::Result result = api_.cuModuleLoadData(&module, kernel.cubin.data());
    // A GPU of the family but of another number runs the PTX, which the driver compiles.
    if (result == CudaApi::kNoBinaryForGpu) result = api_.cuModuleLoadData(&module, kernel.ptx.c_str());
    api_.Check(result, "cuModuleLoadData", name);
    return std::make_unique<CudaModuleHandle>(api_, module, name);
  }

  LaunchCounts Launch(const GpuModule& module, const std::string& kernel, const LaunchSize& size,
                      std::span<const void* const> arguments) override {
    Enter();
    const auto& handle = static_cast<const CudaModuleHandle&>(module);
    const CudaApi::Function function = handle.Function(kernel, size.shared_bytes);
    const std::string what =
        fmt::format("{} {} <<<({}, {}, {}), {}, {}>>>", handle.name(), kernel, size.blocks_x, size.blocks_y,
                    size.blocks_z, size.threads, size.shared_bytes);
    VQLLM_CUDA(api_, cuLaunchKernel, what, function, static_cast<unsigned>(size.blocks_x),
               static_cast<unsigned>(size.blocks_y), static_cast<unsigned>(size.blocks_z),
               static_cast<unsigned>(size.threads), 1, 1, static_cast<unsigned>(size.shared_bytes), stream_,
               const_cast<void**>(arguments.data()), nullptr);
    return {};
  }
  void Synchronise() override {
    Enter();
    VQLLM_CUDA(api_, cuStreamSynchronize, "kernels launched before", stream_);
  }

  std::unique_ptr<GpuGraph> Record(const std::function<void()>& launches) override {
    Enter();
    VQLLM_CUDA(api_, cuStreamBeginCapture_v2, "decode step", stream_, CudaApi::kCaptureThreadLocal);
    CudaApi::Graph graph = nullptr;
    try {
      launches();
    } catch (...) {
      api_.cuStreamEndCapture(stream_,
                              &graph);  // leaves the stream usable; the first error is the one to tell
      if (graph != nullptr) api_.cuGraphDestroy(graph);
      throw;
    }
    VQLLM_CUDA(api_, cuStreamEndCapture, "decode step", stream_, &graph);
    CudaApi::GraphExec exec = nullptr;
    const CudaApi::Result result = api_.cuGraphInstantiateWithFlags(&exec, graph, 0);
    api_.cuGraphDestroy(graph);
    api_.Check(result, "cuGraphInstantiateWithFlags", "decode step");
    return std::make_unique<CudaGraphHandle>(api_, exec);
  }
  void Replay(const GpuGraph& graph) override {
    Enter();
    VQLLM_CUDA(api_, cuGraphLaunch, "decode step", static_cast<const CudaGraphHandle&>(graph).exec, stream_);
  }

 private:
  /// The calling thread may be another one than at the last call.
  void Enter() const { VQLLM_CUDA(api_, cuCtxSetCurrent, gpu_.title, context_); }

  int Attribute(int attribute) const {
    int value = 0;
    VQLLM_CUDA(api_, cuDeviceGetAttribute, fmt::format("attribute {}", attribute), &value, attribute,
               device_);
    return value;
  }

  /// The row of the table that the GPU's name points to; else what the driver tells of it.
  GpuSpec ReadSpec() const {
    char title[256] = {};
    VQLLM_CUDA(api_, cuDeviceGetName, "GPU 0", title, static_cast<int>(sizeof(title)) - 1, device_);
    const int arch = 10 * Attribute(CudaApi::kMajor) + Attribute(CudaApi::kMinor);
    const int sms = Attribute(CudaApi::kMultiprocessors);
    for (const GpuSpec& known : KnownGpus()) {
      if (known.arch == arch && static_cast<int>(known.sms.value) == sms) {
        GpuSpec spec = known;
        spec.title = title;
        return spec;
      }
    }
    // Two transfers a clock on a bus of so many bits. CUDA 13 reports no clock of memory (0) on some GPUs.
    const double memory =
        2e3 * Attribute(CudaApi::kMemoryClockKhz) * Attribute(CudaApi::kMemoryBusBits) / 8 / 1e9;
    GpuSpec spec = ParseGpu(
        fmt::format(R"({{"name":"gpu0","arch":{},"sms":{},"clock_ghz":{},"dram_gb_per_s":{},"l2_mib":{}}})",
                    arch, sms, std::max(0.1, Attribute(CudaApi::kClockKhz) / 1e6), std::max(1.0, memory),
                    std::max(0.25, Attribute(CudaApi::kL2Bytes) / 1048576.0)));
    spec.title = title;
    return spec;
  }

  const CudaApi& api_;
  CudaApi::Device device_ = 0;
  CudaApi::Context context_ = nullptr;
  CudaApi::Stream stream_ = nullptr;
  GpuSpec gpu_;
};

}  // namespace

std::unique_ptr<GpuDriver> NewCudaDriver(const std::string& library) {
  return std::make_unique<CudaDriver>(library);
}

}  // namespace vqllm
