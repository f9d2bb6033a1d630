#include "runtime/ptx/cpu_support.h"

#include "vq/base/error.h"

namespace vqllm::ptx {

void RequireCpuSupport() {
#if defined(VQLLM_PTX_AVX2)
  static const bool supported =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (!supported) Fail("PTX interpreter: this CPU lacks AVX2, FMA or BMI2, which this build needs");
#endif
}

}  // namespace vqllm::ptx
