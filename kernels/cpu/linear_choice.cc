#include "kernels/cpu/linear_choice.h"

#define HWY_WANT_AVX3_DL  // as the kernels that are dispatched to
#include <fmt/format.h>
#include <hwy/targets.h>

#include <algorithm>

#include "kernels/cpu/linear_dense.h"
#include "kernels/cpu/linear_int.h"
#include "kernels/cpu/linear_shuffle.h"
#include "kernels/cpu/linear_table.h"
#include "kernels/cpu/linear_tile.h"
#include "vq/base/check.h"

namespace vqllm::cpu {
namespace {

/// One row of the table of candidates. What decides looks at format and shape alone, never at values.
struct Candidate {
  const char* serves_what;
  /// Why it cannot serve the matrix; empty: it can.
  std::string (*refusal)(const Tensor&, const LinearOptions&);
  std::string (*kernel)(const Tensor&);
  int64_t max_m;  ///< the largest m that the fused kernel serves
  std::unique_ptr<StoredLinear> (*prepare)(const Tensor&, std::vector<float>, FusedKernel);
};

std::string RefuseUnless(bool serves, const char* why) { return serves ? "" : why; }

std::string RefuseInt(const Tensor& t) {
  if (t.format.kind != FormatKind::kInt) return "not an integer format";
  // Columns of blocks of int codes are padded to a multiple of 32.
  const int64_t group = GroupColumns(t);
  const Blocks blocks(t.cols, group, std::min<int64_t>(group, 128), 32);
  const bool serves =
      static_cast<double>(blocks.count() * blocks.padded) <= kMaxPadding * static_cast<double>(t.cols) + 32;
  return RefuseUnless(serves, "groups padded to 32 columns would grow too much");
}

// From the most special on; the first that serves is taken.
const Candidate kCandidates[] = {
    {"dense rows, fp32 activations",
     [](const Tensor& t, const LinearOptions&) {
       return RefuseUnless(t.format.kind == FormatKind::kDense, "not a dense format");
     },
     [](const Tensor& t) { return fmt::format("{}-fma", ToString(t.format.dtype)); }, kDenseFusedMaxM,
     [](const Tensor& t, std::vector<float> bias, FusedKernel kernel) {
       return PrepareDense(t, std::move(bias), std::move(kernel));
     }},
    {"integers, 8-bit activations",
     [](const Tensor& t, const LinearOptions& options) {
       return options.exact ? "activations are not to be rounded (exact)" : RefuseInt(t);
     },
     [](const Tensor& t) { return fmt::format("int{}-dot8", t.format.bits); }, kInt8FusedMaxM,
     [](const Tensor& t, std::vector<float> bias, FusedKernel kernel) {
       return PrepareInt(t, std::move(bias), /*exact=*/false, std::move(kernel));
     }},
    {"integers, fp32 activations", [](const Tensor& t, const LinearOptions&) { return RefuseInt(t); },
     [](const Tensor& t) { return fmt::format("int{}-fp32", t.format.bits); }, kIntExactFusedMaxM,
     [](const Tensor& t, std::vector<float> bias, FusedKernel kernel) {
       return PrepareInt(t, std::move(bias), /*exact=*/true, std::move(kernel));
     }},
    {"tables of at most 16 entries, looked up by byte shuffles",
     [](const Tensor& t, const LinearOptions& options) {
       return options.exact ? "tables are not to be rounded (exact)" : RefuseShuffle(t);
     },
     [](const Tensor&) { return std::string("shuffle16-tables8"); }, kTables8FusedMaxM,
     [](const Tensor& t, std::vector<float> bias, FusedKernel kernel) {
       return PrepareShuffle(t, std::move(bias), std::move(kernel));
     }},
    {"any table and E8P, decoded and multiplied with fp32 activations",
     [](const Tensor& t, const LinearOptions&) { return RefuseTable(t); }, TableKernelName, kTableFusedMaxM,
     [](const Tensor& t, std::vector<float> bias, FusedKernel kernel) {
       return PrepareTable(t, std::move(bias), std::move(kernel));
     }},
    {"everything, decoded in scalar code", [](const Tensor&, const LinearOptions&) { return std::string(); },
     [](const Tensor&) { return std::string(); }, 0,
     [](const Tensor& t, std::vector<float> bias, FusedKernel) { return PrepareTiles(t, std::move(bias)); }},
};

/// Whether Highway's dispatch will run vector code: below AVX2 on x86 it has one lane.
bool HaveVectors() {
  constexpr int64_t kOneLane = HWY_SCALAR | HWY_EMU128;
  return (hwy::SupportedTargets() & HWY_TARGETS & ~kOneLane) != 0;
}

std::string Refusal(const Candidate& candidate, const Tensor& weights, const LinearOptions& options) {
  if (candidate.max_m > 0 && !HaveVectors())
    return "this machine has no vectors that the kernels are built for";
  return candidate.refusal(weights, options);
}

}  // namespace

std::unique_ptr<StoredLinear> PrepareStored(const Tensor& weights, std::vector<float> bias,
                                            const LinearOptions& options) {
  for (const Candidate& candidate : kCandidates) {
    if (Refusal(candidate, weights, options).empty())
      return candidate.prepare(weights, std::move(bias), {candidate.kernel(weights), candidate.max_m});
  }
  VQLLM_CHECK(false, "the last candidate serves everything");
}

std::vector<KernelOption> KernelOptions(const Format& format, int64_t rows, int64_t cols,
                                        const LinearOptions& options) {
  Tensor weights;
  weights.format = format;
  weights.rows = rows;
  weights.cols = cols;
  std::vector<KernelOption> list;
  for (const Candidate& candidate : kCandidates) {
    KernelOption& option = list.emplace_back();
    option.serves_what = candidate.serves_what;
    option.max_m = candidate.max_m;
    option.refusal = Refusal(candidate, weights, options);
    if (option.refusal.empty()) option.kernel = candidate.kernel(weights);
  }
  return list;
}

}  // namespace vqllm::cpu
