#include "kernels/cpu/linear_kernel.h"

#include <algorithm>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/gemm.h"
#include "vq/base/check.h"
#include "vq/base/math.h"
#include "vq/base/parallel.h"

namespace vqllm::cpu {
namespace {

// A thread takes about this much of the weights at once: a microsecond's worth of atomics to tens of
// microseconds of work.
constexpr int64_t kGrainBytes = 64 << 10;
// Operands of more rows than fit here would fall out of L2 and L3 between two rows of W.
constexpr int64_t kPanelBytes = 4 << 20;
// Packed x may have as many rows as it likes: gemm.h cuts it into panels that stay in L2.
constexpr int64_t kAnyRows = int64_t{1} << 40;

/// Outputs of one decoded tile: few enough that the fp32 tile stays in L2 while all panels of x pass over it.
int64_t TileGrain(const Tensor& weights, int64_t tile_rows) {
  constexpr int64_t kTileBytes = 1 << 20;
  const int64_t by_bytes = std::max<int64_t>(64, kTileBytes / 4 / std::max<int64_t>(1, weights.cols));
  return RoundUp(std::min<int64_t>(by_bytes, 256), tile_rows);
}

int64_t FusedGrain(const Tensor& weights, int64_t tile_rows) {
  const int64_t row_bytes = std::max<int64_t>(1, StoredBytes(weights) / std::max<int64_t>(1, weights.rows));
  const int64_t by_bytes = CeilDiv(kGrainBytes, row_bytes);
  const int64_t by_balance = CeilDiv(weights.rows, 8);  // small matrices still feed several threads
  return RoundUp(std::min(by_bytes, by_balance), tile_rows);
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
      if (!product.weights->UseFused(x.rows)) {
        of_product_.push_back(kPacked);
        packed_size_ = PackedSize(x.rows, x.cols);
        continue;
      }
      const Operand wanted = product.weights->FusedOperand();
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
    if (packed_size_ > 0) {
      static thread_local AlignedVector<float> packed;
      if (static_cast<int64_t>(packed.size()) < packed_size_)
        packed.resize(static_cast<size_t>(packed_size_));
      packed_ = packed.data();
      PackTokens(x_, packed_);
    }
    if (ends_.empty()) return;
    ParallelFor(ends_.back(), 1, [&](int64_t index, int64_t) {
      const Place place = Find(ends_, index);
      const Made& made = made_[place.owner];
      const int64_t row = place.local / made.operand.pieces;
      made.maker->PrepareOperand(x_.Row(row), place.local % made.operand.pieces,
                                 data_ + made.offset + row * made.operand.row_bytes);
    });
  }

  const void* Of(size_t product) const {
    const size_t made = of_product_[product];
    return made == kPacked ? static_cast<const void*>(packed_) : data_ + made_[made].offset;
  }

 private:
  static constexpr size_t kPacked = ~size_t{0};  // in of_product_: x packed for gemm.h, shared by all
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
  int64_t packed_size_ = 0;
  uint8_t* data_ = nullptr;
  float* packed_ = nullptr;
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

StoredLinear::StoredLinear(const Tensor& weights, std::vector<float> bias, FusedKernel kernel,
                           int64_t tile_rows)
    : Linear(weights.rows, weights.cols),
      kernel_(std::move(kernel)),
      fused_grain_(FusedGrain(weights, tile_rows)),
      tile_grain_(TileGrain(weights, tile_rows)),
      bias_(std::move(bias)) {}

void StoredLinear::PrepareOperand(const float*, int64_t, uint8_t*) const { VQLLM_CHECK(false); }

void StoredLinear::Multiply(MatrixView<const float> x, MatrixView<float> y) const {
  const StoredProduct product{this, y};
  MultiplyStored(x, {&product, 1});
}

void StoredLinear::MultiplyRows(MatrixView<const float> x, const void* operand, int64_t begin, int64_t end,
                                MatrixView<float> y) const {
  if (UseFused(x.rows)) {
    Fused(x, static_cast<const uint8_t*>(operand), begin, end, y);
  } else {
    static thread_local AlignedVector<float> tile;
    const int64_t rows = end - begin;
    const size_t wanted = static_cast<size_t>(rows * cols());
    if (tile.size() < wanted) tile.resize(wanted);
    DecodeTile(begin, end, tile.data());
    const WeightTile decoded =
        TileByColumns() ? WeightTile{tile.data(), rows, 1, rows} : WeightTile{tile.data(), rows, cols(), 1};
    MultiplyTile(static_cast<const float*>(operand), cols(), decoded,
                 {y.data + begin, x.rows, rows, y.stride});
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
