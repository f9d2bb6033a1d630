#include "kernels/cpu/linear_kernel.h"

#include <cblas.h>

#include <algorithm>
#include <mutex>

#include "kernels/cpu/aligned.h"
#include "vq/base/check.h"
#include "vq/base/parallel.h"

namespace vqllm::cpu {
namespace {

// A thread takes about this much of the weights at once: a microsecond's worth of atomics to tens of
// microseconds of work.
constexpr int64_t kGrainBytes = 64 << 10;
// Operands of more rows than fit here would fall out of L2 and L3 between two rows of W.
constexpr int64_t kPanelBytes = 4 << 20;
// Rows of x of which BLAS needs no more than this many at once.
constexpr int64_t kAnyRows = int64_t{1} << 40;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Outputs of one tile for BLAS: many enough that packing x, which BLAS does anew for every tile, is hidden,
/// and few enough that the fp32 tile stays in L2.
int64_t BlasGrain(const Tensor& weights, int64_t tile_rows) {
  constexpr int64_t kTileBytes = 2 << 20;
  const int64_t by_bytes = std::max<int64_t>(64, kTileBytes / 4 / std::max<int64_t>(1, weights.cols));
  return CeilDiv(std::min<int64_t>(by_bytes, 256), tile_rows) * tile_rows;
}

int64_t FusedGrain(const Tensor& weights, int64_t tile_rows) {
  const int64_t row_bytes = std::max<int64_t>(1, StoredBytes(weights) / std::max<int64_t>(1, weights.rows));
  const int64_t by_bytes = CeilDiv(kGrainBytes, row_bytes);
  const int64_t by_balance = CeilDiv(weights.rows, 8);  // small matrices still feed several threads
  return CeilDiv(std::min(by_bytes, by_balance), tile_rows) * tile_rows;
}

void TileProduct(MatrixView<const float> x, const float* tile, int64_t n, bool by_columns, float* y,
                 int64_t y_stride) {
  // Our pool cuts the work into tiles; a second pool inside BLAS would only fight with it over the cores.
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
  cblas_sgemm(CblasRowMajor, CblasNoTrans, by_columns ? CblasNoTrans : CblasTrans, static_cast<int>(x.rows),
              static_cast<int>(n), static_cast<int>(x.cols), 1.0f, x.data, static_cast<int>(x.stride), tile,
              static_cast<int>(by_columns ? n : x.cols), 0.0f, y, static_cast<int>(y_stride));
}

/// Consecutive numbers cut into ranges of several owners: where `index` lies.
struct Place {
  size_t owner;
  int64_t local;
};
Place Find(const std::vector<int64_t>& ends, int64_t index) {
  const size_t owner = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
  return {owner, index - (owner == 0 ? 0 : ends[owner - 1])};
}

/// Operands of one panel of x, each made once.
class Operands {
 public:
  Operands(MatrixView<const float> x, std::span<const StoredProduct> products) : x_(x) {
    for (const StoredProduct& product : products) {
      const Operand wanted = product.weights->UseFused(x.rows) ? product.weights->FusedOperand() : Operand{};
      size_t i = 0;
      while (i < made_.size() && !(made_[i].operand == wanted)) ++i;
      if (i == made_.size()) {
        made_.push_back({wanted, product.weights, total_bytes_});
        total_bytes_ += wanted.row_bytes * x.rows;
        ends_.push_back((ends_.empty() ? 0 : ends_.back()) + wanted.pieces * x.rows);
      }
      of_product_.push_back(i);
    }
  }

  void Prepare() {
    // Kept between calls: a decode step makes hundreds of these, all of about the same size.
    static thread_local AlignedVector<uint8_t> buffer;
    if (static_cast<int64_t>(buffer.size()) < total_bytes_) buffer.resize(static_cast<size_t>(total_bytes_));
    data_ = buffer.data();
    ParallelFor(ends_.back(), 1, [&](int64_t index, int64_t) {
      const Place place = Find(ends_, index);
      const Made& made = made_[place.owner];
      const int64_t row = place.local / made.operand.pieces;
      made.maker->PrepareOperand(x_.Row(row), place.local % made.operand.pieces,
                                 data_ + made.offset + row * made.operand.row_bytes);
    });
  }

  const uint8_t* Of(size_t product) const { return data_ + made_[of_product_[product]].offset; }

 private:
  struct Made {
    Operand operand;
    const StoredLinear* maker;
    int64_t offset;
  };
  MatrixView<const float> x_;
  std::vector<Made> made_;
  std::vector<int64_t> ends_;
  std::vector<size_t> of_product_;
  int64_t total_bytes_ = 0;
  uint8_t* data_ = nullptr;
};

void MultiplyPanel(MatrixView<const float> x, std::span<const StoredProduct> products) {
  Operands operands(x, products);
  operands.Prepare();
  std::vector<int64_t> ends;
  for (const StoredProduct& product : products) {
    ends.push_back((ends.empty() ? 0 : ends.back()) +
                   CeilDiv(product.weights->rows(), product.weights->row_grain(x.rows)));
  }
  ParallelFor(ends.back(), 1, [&](int64_t index, int64_t) {
    const Place place = Find(ends, index);
    const StoredProduct& product = products[place.owner];
    const int64_t grain = product.weights->row_grain(x.rows);
    const int64_t begin = place.local * grain;
    const int64_t end = std::min(product.weights->rows(), begin + grain);
    product.weights->MultiplyRows(x, operands.Of(place.owner), begin, end, product.y);
  });
}

}  // namespace

StoredLinear::StoredLinear(const Tensor& weights, std::vector<float> bias, std::string fused_name,
                           int64_t fused_max_m, int64_t tile_rows)
    : Linear(weights.rows, weights.cols),
      fused_name_(std::move(fused_name)),
      fused_max_m_(fused_max_m),
      fused_grain_(FusedGrain(weights, tile_rows)),
      blas_grain_(BlasGrain(weights, tile_rows)),
      bias_(std::move(bias)) {}

void StoredLinear::PrepareOperand(const float*, int64_t, uint8_t*) const { VQLLM_CHECK(false); }

void StoredLinear::Multiply(MatrixView<const float> x, MatrixView<float> y) const {
  const StoredProduct product{this, y};
  MultiplyStored(x, {&product, 1});
}

void StoredLinear::MultiplyRows(MatrixView<const float> x, const uint8_t* operand, int64_t begin, int64_t end,
                                MatrixView<float> y) const {
  if (UseFused(x.rows)) {
    Fused(x, operand, begin, end, y);
  } else {
    static thread_local AlignedVector<float> tile;
    const size_t wanted = static_cast<size_t>((end - begin) * cols());
    if (tile.size() < wanted) tile.resize(wanted);
    DecodeTile(begin, end, tile.data());
    TileProduct(x, tile.data(), end - begin, TileByColumns(), y.data + begin, y.stride);
  }
  if (bias_.empty()) return;
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t r = begin; r < end; ++r) y(i, r) += bias_[static_cast<size_t>(r)];
  }
}

void MultiplyStored(MatrixView<const float> x, std::span<const StoredProduct> products) {
  if (products.empty()) return;
  int64_t panel = kAnyRows;
  for (const StoredProduct& product : products) {
    VQLLM_CHECK(x.cols == product.weights->cols() && product.y.rows == x.rows &&
                    product.y.cols == product.weights->rows(),
                "[{}, {}] x [{}, {}] into [{}, {}]", x.rows, x.cols, product.weights->rows(),
                product.weights->cols(), product.y.rows, product.y.cols);
    const int64_t row_bytes =
        product.weights->UseFused(x.rows) ? product.weights->FusedOperand().row_bytes : 0;
    if (row_bytes > 0) panel = std::min(panel, std::max<int64_t>(8, kPanelBytes / row_bytes / 8 * 8));
  }
  for (int64_t begin = 0; begin < x.rows; begin += panel) {
    const int64_t rows = std::min(panel, x.rows - begin);
    std::vector<StoredProduct> part(products.begin(), products.end());
    for (StoredProduct& product : part) {
      product.y = {product.y.Row(begin), rows, product.y.cols, product.y.stride};
    }
    MultiplyPanel({x.Row(begin), rows, x.cols, x.stride}, part);
  }
}

int64_t GroupColumns(const Tensor& weights) {
  return weights.format.scale == ScaleKind::kGroup ? std::min<int64_t>(weights.format.group, weights.cols)
                                                   : weights.cols;
}

float WeightScale(const Tensor& weights, int64_t row, int64_t group) {
  switch (weights.format.scale) {
    case ScaleKind::kNone:
      return 1;
    case ScaleKind::kPerTensor:
      return weights.scales[0];
    case ScaleKind::kPerOutput:
      return weights.scales[static_cast<size_t>(row)];
    case ScaleKind::kGroup:
      return weights.scales[static_cast<size_t>(row * ScaleGroups(weights.format, weights.cols) + group)];
  }
  VQLLM_CHECK(false);
}

}  // namespace vqllm::cpu
