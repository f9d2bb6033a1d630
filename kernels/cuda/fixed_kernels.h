#pragma once

#include <string_view>

namespace vqllm {

/// The text of kernels/cuda/<name>.cu, which the library carries: the kernels round the generated ones, the
/// same for every model. Each file stands alone and compiles with NVRTC; its head says what it computes and
/// how it is launched. `name` is one of add, embed, gather, rms_norm, rope, sample, silu_mul, turn.
std::string_view FixedKernelText(std::string_view name);

}  // namespace vqllm
