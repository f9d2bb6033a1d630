#include <algorithm>
#include <atomic>
#include <vector>

#include "vq/additive.h"
#include "vq/base/parallel.h"
#include "vq/hessian_refine.h"
#include "vq/kmeans.h"
#include "vq/quantize_methods.h"
#include "vq/subvector_matrix.h"

namespace vqllm::internal {
namespace {

struct EffortRow {
  int rounds;  // of beam search and joint least squares, on the training sample
  int train_beam;
  int encode_beam;  // of the final codes
  int sweeps;       // over all codes where there is a Hessian
};
// By Effort. On 16 M Gaussian weights kNormal gives relative errors of .0995 for VQ<8,4,4>-g128 and .0949 for
// aqlm-2x8; residual start alone .132 and .107.
constexpr EffortRow kEfforts[] = {{0, 1, 1, 1}, {5, 4, 8, 2}, {30, 16, 32, 4}};

/// Trains the codebooks of one region, writes them to `books` (one a stage) and encodes the region. Returns
/// how many entries no code points at.
int64_t CodeRegion(const SubvectorMatrix& matrix, const Region& region, const Format& f,
                   const EffortRow& effort, const AdditiveOptions& options, const std::vector<Half*>& books,
                   StageCodes& codes) {
  const int64_t v = matrix.v();
  const int64_t stages = f.stages();
  const int64_t limit = EnoughPoints(*std::max_element(f.entries.begin(), f.entries.end()));
  std::vector<std::vector<float>> trained;
  {
    const SubvectorMatrix::Sample sample = matrix.Draw(region, limit, options.seed);
    const int64_t n = static_cast<int64_t>(sample.points.size()) / v;
    MatrixView<const float> weights;
    if (!sample.weights.empty()) weights = {sample.weights.data(), n, v};
    trained = TrainAdditive({sample.points.data(), n, v}, weights, f.entries, options);
  }
  std::vector<std::vector<std::atomic<bool>>> used;
  for (size_t m = 0; m < trained.size(); ++m) {
    std::transform(trained[m].begin(), trained[m].end(), books[m], [](float value) { return Half(value); });
    used.emplace_back(static_cast<size_t>(f.entries[m]));
  }
  const AdditiveEncoder encoder(trained, v, effort.encode_beam);
  ParallelFor(region.row_end - region.row_begin, 1 + 256 / region.width(), [&](int64_t first, int64_t last) {
    std::vector<uint16_t> found(static_cast<size_t>(region.width() * stages));
    for (int64_t r = region.row_begin + first; r < region.row_begin + last; ++r) {
      encoder.Encode(matrix.Row(region, r), matrix.RowWeights(region, r), found.data(), nullptr);
      const int64_t at = r * matrix.code_cols() + region.col_begin;
      for (int64_t i = 0; i < region.width() * stages; ++i) {
        const size_t m = static_cast<size_t>(i % stages);
        const uint16_t code = found[static_cast<size_t>(i)];
        codes[m][static_cast<size_t>(at + i / stages)] = code;
        used[m][code].store(true, std::memory_order_relaxed);
      }
    }
  });
  int64_t unused = 0;
  for (const auto& stage : used) unused += std::count(stage.begin(), stage.end(), false);
  return unused;
}

}  // namespace

Tensor QuantizeTable(const Format& f, MatrixView<const float> w, const QuantizeOptions& options,
                     const std::string& what, QuantizeReport& report) {
  Tensor t;
  t.format = f;
  t.rows = w.rows;
  t.cols = w.cols;
  t.scales = FitScales(f, w, what, &report.zero_groups);
  std::vector<float> diagonal;
  if (options.importance.empty() && !options.hessian.empty()) {
    for (int64_t c = 0; c < w.cols; ++c)
      diagonal.push_back(options.hessian[static_cast<size_t>(c * w.cols + c)]);
  }
  const SubvectorMatrix matrix(t, w, options.importance.empty() ? diagonal : options.importance, what);
  const int64_t books = CodebookCount(f, t.rows, t.cols);
  const size_t size = static_cast<size_t>(matrix.code_rows() * matrix.code_cols());
  StageCodes codes(static_cast<size_t>(f.stages()), std::vector<uint16_t>(size));
  for (const int entries : f.entries)
    t.codebooks.emplace_back(static_cast<size_t>(books * entries * matrix.v()));
  const EffortRow& effort = kEfforts[static_cast<size_t>(options.effort)];
  std::atomic<int64_t> unused{0};
  ParallelFor(books, 1, [&](int64_t book, int64_t) {
    std::vector<Half*> out;
    for (size_t m = 0; m < t.codebooks.size(); ++m)
      out.push_back(t.codebooks[m].data() + book * f.entries[m] * matrix.v());
    const AdditiveOptions additive{.iterations = options.iterations,
                                   .rounds = effort.rounds,
                                   .beam = effort.train_beam,
                                   .seed = options.seed + static_cast<uint64_t>(book * f.stages())};
    unused += CodeRegion(matrix, matrix.RegionOf(book), f, effort, additive, out, codes);
  });
  const bool refine = std::any_of(diagonal.begin(), diagonal.end(), [](float x) { return x > 0; });
  if (refine) RefineCodes(t, matrix, w, options.hessian, effort.encode_beam, effort.sweeps, what, codes);
  for (int stage = 0; stage < f.stages(); ++stage) {
    PackedCodes& packed = t.codes.emplace_back(matrix.code_rows(), matrix.code_cols(), f.CodeBits(stage));
    std::vector<uint16_t>& from = codes[static_cast<size_t>(stage)];
    ParallelFor(matrix.code_rows(), 64, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) packed.PackRow(r, from.data() + r * matrix.code_cols());
    });
    from = {};
  }
  report.unused_entries = unused;
  return t;
}

}  // namespace vqllm::internal
