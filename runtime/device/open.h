#pragma once

#include <memory>
#include <string>

#include "runtime/device/device.h"

namespace vqllm {

struct DeviceOptions {
  /// "cpu"; "cuda": the first GPU; "ptx": the kernels of a GPU in the PTX interpreter; "auto": cuda where a
  /// GPU and a compiler are there, else cpu.
  std::string kind = "auto";
  bool exact = false;        ///< cpu: see NewCpuDevice
  std::string gpu = "a100";  ///< ptx: what kernels are made for, see ParseGpu
  bool hazards = true;       ///< ptx: check every launch
};

/// Throws Error that says what is missing: a GPU, its driver, the CUDA compiler.
std::shared_ptr<Device> OpenDevice(const DeviceOptions& options);

}  // namespace vqllm
