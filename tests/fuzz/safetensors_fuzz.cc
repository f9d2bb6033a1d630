// Any bytes as a safetensors file: either an Error, or tensors that can be read to the last element.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "vq/base/error.h"
#include "vq/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vqllm;
  try {
    const SafetensorsFile file(Bytes::Own(std::vector<uint8_t>(data, data + size)), "fuzz");
    uint64_t sum = 0;
    for (const StoredTensor& tensor : file.tensors()) {
      for (size_t i = 0; i < tensor.bytes.size(); ++i) sum += tensor.bytes.data()[i];
      if (file.Find(tensor.name) != &tensor) __builtin_trap();
      try {
        sum += ReadFloats(tensor).size();
      } catch (const Error&) {
      }
    }
    volatile uint64_t sink = sum;
    (void)sink;
  } catch (const Error&) {
  }
  return 0;
}
