#pragma once

#include <concepts>

namespace vqllm {

/// a / b rounded up; a >= 0, b > 0.
template <std::integral A, std::integral B>
constexpr auto CeilDiv(A a, B b) {
  return (a + b - 1) / b;
}

/// The smallest multiple of b that is at least a.
template <std::integral A, std::integral B>
constexpr auto RoundUp(A a, B b) {
  return CeilDiv(a, b) * b;
}

}  // namespace vqllm
