#include "kernels/cpu/rope.h"

#include "vq/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// a, b: the two halves of the turned channels.
void RotateHalves(const float* cos, const float* sin, int64_t half, float* a, float* b) {
  const hn::ScalableTag<float> f;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(f));
  const auto turn = [&](auto d, int64_t j) {
    const auto c = hn::LoadU(d, cos + j), s = hn::LoadU(d, sin + j);
    const auto x = hn::LoadU(d, a + j), y = hn::LoadU(d, b + j);
    hn::StoreU(hn::NegMulAdd(y, s, hn::Mul(x, c)), d, a + j);
    hn::StoreU(hn::MulAdd(x, s, hn::Mul(y, c)), d, b + j);
  };
  int64_t j = 0;
  for (; j + lanes <= half; j += lanes) turn(f, j);
  for (; j < half; ++j) turn(hn::CappedTag<float, 1>(), j);
}

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {

HWY_EXPORT(RotateHalves);

void Rotate(const RopeTable& rope, int64_t position, float* head) {
  const int64_t half = rope.dim / 2;
  if (half == 0) return;
  VQLLM_CHECK(position >= 0 && position < rope.positions(), "position {} of {}", position, rope.positions());
  HWY_DYNAMIC_DISPATCH(RotateHalves)
  (rope.cos.data() + position * half, rope.sin.data() + position * half, half, head, head + half);
}

}  // namespace vqllm::cpu
#endif  // HWY_ONCE
