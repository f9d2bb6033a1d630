#include <iterator>

#include "codegen/op.h"
#include "vq/base/check.h"

namespace vqllm {
namespace {

constexpr Op kOps[] = {
    {OpKind::kDequant, "w[n][k] = scale * decode(codes)[n][k]", internal::EmitDequant,
     internal::DequantTraffic},
    {OpKind::kGemv, "y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]", internal::EmitLinear,
     internal::LinearTraffic},
    {OpKind::kGemm, "y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]", internal::EmitLinear,
     internal::LinearTraffic},
};

}  // namespace

const Op& OpOf(OpKind kind) {
  for (const Op& op : kOps) {
    if (op.kind == kind) return op;
  }
  VQLLM_CHECK(false);
}

}  // namespace vqllm
