#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace vqllm::internal {

/// What we use of libcuda, opened at run time. The C interface of cuda.h is declared here, so that no toolkit
/// is needed to build; the names are those of the symbols, which carry the version of the interface.
struct CudaApi {
  using Result = int;
  using Device = int;
  using Address = unsigned long long;
  using Context = struct CudaContext*;
  using Module = struct CudaModule*;
  using Function = struct CudaFunction*;
  using Stream = struct CudaStream*;
  using Graph = struct CudaGraph*;
  using GraphExec = struct CudaGraphExec*;

  static constexpr Result kSuccess = 0;
  static constexpr Result kNoDevice = 100;
  static constexpr Result kNoBinaryForGpu = 209;
  static constexpr int kMaxDynamicShared = 8;    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  static constexpr int kCaptureThreadLocal = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
  // CUdevice_attribute
  static constexpr int kClockKhz = 13;
  static constexpr int kMultiprocessors = 16;
  static constexpr int kMemoryClockKhz = 36;
  static constexpr int kMemoryBusBits = 37;
  static constexpr int kL2Bytes = 38;
  static constexpr int kMajor = 75;
  static constexpr int kMinor = 76;

  Result (*cuGetErrorName)(Result, const char**);
  Result (*cuGetErrorString)(Result, const char**);
  Result (*cuInit)(unsigned);
  Result (*cuDriverGetVersion)(int*);
  Result (*cuDeviceGetCount)(int*);
  Result (*cuDeviceGet)(Device*, int);
  Result (*cuDeviceGetName)(char*, int, Device);
  Result (*cuDeviceGetAttribute)(int*, int, Device);
  Result (*cuDevicePrimaryCtxRetain)(Context*, Device);
  Result (*cuDevicePrimaryCtxRelease_v2)(Device);
  Result (*cuCtxSetCurrent)(Context);
  Result (*cuMemAlloc_v2)(Address*, size_t);
  Result (*cuMemFree_v2)(Address);
  Result (*cuMemsetD8Async)(Address, unsigned char, size_t, Stream);
  Result (*cuMemcpyHtoDAsync_v2)(Address, const void*, size_t, Stream);
  Result (*cuMemcpyDtoHAsync_v2)(void*, Address, size_t, Stream);
  Result (*cuModuleLoadData)(Module*, const void*);
  Result (*cuModuleUnload)(Module);
  Result (*cuModuleGetFunction)(Function*, Module, const char*);
  Result (*cuFuncSetAttribute)(Function, int, int);
  Result (*cuLaunchKernel)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           Stream, void**, void**);
  Result (*cuStreamCreate)(Stream*, unsigned);
  Result (*cuStreamSynchronize)(Stream);
  Result (*cuStreamDestroy_v2)(Stream);
  Result (*cuStreamBeginCapture_v2)(Stream, int);
  Result (*cuStreamEndCapture)(Stream, Graph*);
  Result (*cuGraphInstantiateWithFlags)(GraphExec*, Graph, unsigned long long);
  Result (*cuGraphDestroy)(Graph);
  Result (*cuGraphExecDestroy)(GraphExec);
  Result (*cuGraphLaunch)(GraphExec, Stream);

  /// Opens the library; it stays open until the process ends. Throws Error where it or a symbol is missing.
  static const CudaApi& Open(const std::string& library);

  /// Throws Error "cuda: <call> (<what>): <name>, <text>" unless the result is success.
  void Check(Result result, const char* call, const std::string& what) const;
};

}  // namespace vqllm::internal
