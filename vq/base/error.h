#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace vqllm {

/// The user's fault: a damaged file, a value out of range, a request that cannot be met. The message is one
/// line that names the file, the field, what was found and what is allowed. Nothing in the library catches it
/// and goes on.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace vqllm
