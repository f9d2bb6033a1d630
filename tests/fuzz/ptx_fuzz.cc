// Any bytes as PTX: either an Error, or a module whose kernels run within a budget, with every check on.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/ptx/interpreter.h"
#include "vq/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vqllm;
  try {
    const ptx::Module module =
        ptx::Module::Parse(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    for (const ptx::KernelInfo& kernel : module.Kernels()) {
      ptx::Memory memory(uint64_t{1} << 24);
      const uint64_t buffer = memory.Allocate(4096, "buffer");
      memory.Fill(buffer, 1, 2048);
      // Every parameter gets the address of the buffer, as often as it has room for.
      std::vector<std::vector<uint64_t>> values;
      for (const uint32_t bytes : kernel.parameter_bytes) values.emplace_back(bytes / 8 + 1, buffer);
      std::vector<const void*> arguments;
      for (const std::vector<uint64_t>& value : values) arguments.push_back(value.data());
      ptx::LaunchOptions options;
      options.uninitialised_global = true;
      options.lines = true;
      options.instruction_budget = 20000;
      try {
        ptx::Launch(memory, module, kernel.name, {2}, {48}, 64, arguments, options);
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
