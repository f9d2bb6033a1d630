#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/model/tokenizer.h"
#include "vq/base/error.h"

/// The input is a tokenizer.json, a NUL byte, and a text. What loads must encode the text or refuse it, and
/// a stream must decode it as a whole does.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view json = input.substr(0, end);
  const std::string_view text = end == std::string_view::npos ? "a b\xc4 12" : input.substr(end + 1);
  try {
    const auto tokenizer = vqllm::ParseTokenizerJson(json, "fuzz");
    for (const bool special : {false, true}) {
      const auto ids = tokenizer->Encode(text, {.add_bos = special, .parse_special = special});
      vqllm::StreamDecoder stream(*tokenizer, false);
      std::string pieces;
      for (const int32_t id : ids) pieces += stream.Push(id);
      pieces += stream.Finish();
      if (pieces != tokenizer->Decode(ids)) std::abort();
    }
  } catch (const vqllm::Error&) {
  }
  return 0;
}
