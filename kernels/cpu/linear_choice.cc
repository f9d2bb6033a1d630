#include "kernels/cpu/linear_choice.h"

#define HWY_WANT_AVX3_DL  // as the kernels that are dispatched to
#include <hwy/targets.h>

#include <algorithm>

#include "kernels/cpu/linear_dense.h"
#include "kernels/cpu/linear_int.h"
#include "kernels/cpu/linear_shuffle.h"
#include "kernels/cpu/linear_table.h"
#include "kernels/cpu/linear_tile.h"

namespace vqllm::cpu {
namespace {

struct Candidate {
  bool (*serves)(const Tensor&, const LinearOptions&);
  std::unique_ptr<StoredLinear> (*prepare)(const Tensor&, std::vector<float>, const LinearOptions&);
};

/// Columns of blocks of int codes are padded to a multiple of 32.
bool ServesInt(const Tensor& t) {
  const int64_t group = GroupColumns(t);
  const Blocks blocks(t.cols, group, std::min<int64_t>(group, 128), 32);
  return static_cast<double>(blocks.count() * blocks.padded) <=
         kMaxPadding * static_cast<double>(t.cols) + 32;
}

// From the most special on; the first that serves is taken.
const Candidate kCandidates[] = {
    {[](const Tensor& t, const LinearOptions&) { return t.format.kind == FormatKind::kDense; },
     [](const Tensor& t, std::vector<float> bias, const LinearOptions&) {
       return PrepareDense(t, std::move(bias));
     }},
    {[](const Tensor& t, const LinearOptions&) { return t.format.kind == FormatKind::kInt && ServesInt(t); },
     [](const Tensor& t, std::vector<float> bias, const LinearOptions& options) {
       return PrepareInt(t, std::move(bias), options.exact);
     }},
    {[](const Tensor& t, const LinearOptions& options) { return !options.exact && ServesShuffle(t); },
     [](const Tensor& t, std::vector<float> bias, const LinearOptions&) {
       return PrepareShuffle(t, std::move(bias));
     }},
    {[](const Tensor& t, const LinearOptions&) { return ServesTable(t); },
     [](const Tensor& t, std::vector<float> bias, const LinearOptions&) {
       return PrepareTable(t, std::move(bias));
     }},
};

/// Whether Highway's dispatch will run vector code: below AVX2 on x86 it has one lane.
bool HaveVectors() {
  constexpr int64_t kOneLane = HWY_SCALAR | HWY_EMU128;
  return (hwy::SupportedTargets() & HWY_TARGETS & ~kOneLane) != 0;
}

}  // namespace

std::unique_ptr<StoredLinear> PrepareStored(const Tensor& weights, std::vector<float> bias,
                                            const LinearOptions& options) {
  for (const Candidate& candidate : kCandidates) {
    if (HaveVectors() && candidate.serves(weights, options))
      return candidate.prepare(weights, std::move(bias), options);
  }
  return PrepareTiles(weights, std::move(bias));
}

}  // namespace vqllm::cpu
