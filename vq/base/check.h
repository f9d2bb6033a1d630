#pragma once

#include <string_view>

#include "vq/base/error.h"

namespace vqllm::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, std::string_view message);
}  // namespace vqllm::internal

/// Our fault: a broken promise inside the library. Prints the place, the condition and the message, and
/// aborts. Kept in release builds; do not put it in inner loops.
#define VQLLM_CHECK(condition, ...) \
  (static_cast<bool>(condition)     \
       ? void(0)                    \
       : ::vqllm::internal::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)))
