#pragma once

namespace vqllm::ptx {

/// Throws Error where the library was compiled for AVX2, FMA and F16C and this CPU lacks one of them.
void RequireCpuSupport();

}  // namespace vqllm::ptx
