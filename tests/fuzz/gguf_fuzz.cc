// Any bytes as a GGUF file: either an Error, or metadata and tensors that can be read to the last element.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "vq/base/error.h"
#include "vq/checkpoint/gguf.h"
#include "vq/checkpoint/gguf_tensor.h"

namespace {

template <typename Action>
void Try(Action&& action) {
  try {
    action();
  } catch (const vqllm::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vqllm;
  Try([&] {
    const GgufFile file(Bytes::Own(std::vector<uint8_t>(data, data + size)), "fuzz");
    for (const std::string& key : file.Keys()) {
      Try([&] { file.Int(key, -1000, 1000); });
      Try([&] { file.Number(key); });
      Try([&] { file.BoolOr(key, false); });
      Try([&] { file.String(key); });
      Try([&] { file.Ints(key); });
      Try([&] { file.Floats(key); });
      Try([&] { file.Strings(key); });
    }
    for (const GgufTensor& tensor : file.tensors()) {
      if (file.Find(tensor.name) != &tensor) __builtin_trap();
      Try([&] { ReadGgufFloats(tensor); });
      Try([&] { ValidateTensor(ReadGgufMatrix(tensor), "fuzz"); });
    }
  });
  return 0;
}
