#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vq/base/view.h"
#include "vq/quantizer.h"

// A matrix as the codebooks of a table format see it: cut into subvectors along the axis of the format,
// divided by its scales, padded with zeros that weigh nothing.
namespace vqllm::internal {

/// The code positions of one codebook: a rectangle of code rows and columns.
struct Region {
  int64_t row_begin, row_end, col_begin, col_end;
  int64_t width() const { return col_end - col_begin; }
  int64_t size() const { return (row_end - row_begin) * width(); }
};

class SubvectorMatrix {
 public:
  /// `scaled` is a tensor of the format with its scales in place; importance as in QuantizeOptions. Throws
  /// Error where a value is out of the range of fp16 codebooks.
  SubvectorMatrix(const Tensor& scaled, MatrixView<const float> weights, std::span<const float> importance,
                  const std::string& what);

  int64_t code_rows() const { return code_rows_; }
  int64_t code_cols() const { return code_cols_; }
  int64_t v() const { return v_; }
  Region RegionOf(int64_t book) const;

  /// The subvectors of one code row of a region [width, v], in place.
  MatrixView<const float> Row(const Region& region, int64_t code_row) const;
  /// Their weights, same shape; no data where all weigh 1.
  MatrixView<const float> RowWeights(const Region& region, int64_t code_row) const;

  /// Up to `limit` subvectors of a region, spread evenly over it and drawn by the seed, and their weights.
  struct Sample {
    std::vector<float> points;   // [n, v]
    std::vector<float> weights;  // [n, v], or empty where all weigh 1
  };
  Sample Draw(const Region& region, int64_t limit, uint64_t seed) const;

 private:
  void SetWeights(std::span<const float> importance);

  Format format_;
  int64_t rows_;
  int64_t cols_;
  int64_t v_;
  int64_t code_rows_;
  int64_t code_cols_;
  std::vector<float> values_;   // [code_rows, code_cols, v]
  std::vector<float> weights_;  // of every code row but the last: [code_cols, v]; empty where all weigh 1
  std::vector<float> last_weights_;  // of the last code row, which axis kOut may pad
};

/// The scales of W, one for each output, group or the whole: root mean squares, so that codebooks see values
/// near 1. Counts those that come out 0.
std::vector<Half> FitScales(const Format& format, MatrixView<const float> weights, const std::string& what,
                            int64_t* zero_groups);

}  // namespace vqllm::internal
