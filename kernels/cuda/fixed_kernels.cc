#include "kernels/cuda/fixed_kernels.h"

#include <vqllm_fixed_kernels.h>

#include "vq/base/check.h"

namespace vqllm {

std::string_view FixedKernelText(std::string_view name) {
  for (const internal::EmbeddedText& kernel : internal::kFixedKernels) {
    if (name == kernel.name) return kernel.text;
  }
  VQLLM_CHECK(false, "no fixed kernel {}", name);
}

}  // namespace vqllm
