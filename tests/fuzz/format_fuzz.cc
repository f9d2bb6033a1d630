// Any text is a format or an Error; a format that was accepted is valid, has a size, and survives its own
// JSON.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.ends_with(".json")) return 0;  // would read files
  try {
    const vqllm::Format format = vqllm::ParseFormat(text);
    vqllm::Validate(format);
    VQLLM_CHECK(vqllm::ParseFormat(vqllm::ToJson(format)) == format);
    const double bits = vqllm::EffectiveBits(format, 129, 67);
    VQLLM_CHECK(std::isfinite(bits) && bits > 0);
  } catch (const vqllm::Error&) {
  }
  return 0;
}
