#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/linear.h"
#include "vq/base/math.h"

namespace vqllm::cpu {

/// What a kernel makes of x before rows of W meet it: plain data, so that products with equal operands share
/// one.
struct Operand {
  enum class Kind : uint8_t {
    kNone,     ///< x as it is
    kInt8,     ///< 8-bit activations, one scale a block of columns
    kPadded,   ///< fp32, each subvector padded to the width of a vector
    kTables8,  ///< products of every entry with every subvector, 8 bits, one scale a block of columns
  };
  Kind kind = Kind::kNone;
  int64_t block = 0;            ///< columns of a block, or of a subvector
  const void* owner = nullptr;  ///< the matrix whose codebooks went in; null: made of x alone
  int64_t row_bytes = 0;        ///< bytes for one row of x, a multiple of 64
  int64_t pieces = 0;           ///< pieces of a row that threads may prepare apart

  bool operator==(const Operand&) const = default;
};

/// The fused kernel of a matrix: its name and the largest m that it serves.
struct FusedKernel {
  std::string name;
  int64_t max_m = 0;
};

/// A stored matrix W' with its kernels: a fused one for few rows of x, which reads codes, and for many rows
/// either the same or tiles dequantised for the fp32 product of gemm.h. Subclasses hold weights in the order
/// in which the fused kernel reads them.
class StoredLinear : public Linear {
 public:
  void Multiply(MatrixView<const float> x, MatrixView<float> y) const final;
  std::string Kernel(int64_t m) const final { return UseFused(m) ? kernel_.name : "dequantise-gemm"; }

  bool UseFused(int64_t m) const { return m <= kernel_.max_m; }
  /// What the fused kernel needs of x.
  virtual Operand FusedOperand() const { return {}; }
  /// Prepares one piece of one row of x into operand [row_bytes].
  virtual void PrepareOperand(const float* x, int64_t piece, uint8_t* operand) const;
  /// Outputs [begin, end) of every row of x, bias included; begin is a multiple of row_grain(x.rows).
  /// `operand`: what FusedOperand() asks for, or packed tokens of gemm.h where the fused kernel does not
  /// serve.
  void MultiplyRows(MatrixView<const float> x, const void* operand, int64_t begin, int64_t end,
                    MatrixView<float> y) const;
  /// Outputs that a thread takes at once.
  int64_t row_grain(int64_t m) const { return UseFused(m) ? fused_grain_ : tile_grain_; }

 protected:
  /// `tile_rows`: outputs that lie together in memory.
  StoredLinear(const Tensor& weights, std::vector<float> bias, FusedKernel kernel, int64_t tile_rows);

  /// Outputs [begin, end) for x [m, cols], its operand [m, row_bytes].
  virtual void Fused(MatrixView<const float> x, const uint8_t* operand, int64_t begin, int64_t end,
                     MatrixView<float> y) const = 0;
  /// Rows [begin, end) of W' as fp32: [end - begin][cols] or, where TileByColumns(), [cols][end - begin].
  virtual void DecodeTile(int64_t begin, int64_t end, float* tile) const = 0;
  virtual bool TileByColumns() const { return false; }

 private:
  FusedKernel kernel_;
  int64_t fused_grain_;
  int64_t tile_grain_;
  std::vector<float> bias_;
};

/// A product with a stored matrix.
struct StoredProduct {
  const StoredLinear* weights;
  MatrixView<float> y;
};

/// All products of one x: one job prepares operands, each once, and one job runs over the rows of all
/// matrices.
void MultiplyStored(MatrixView<const float> x, std::span<const StoredProduct> products);

/// How the columns of a row are cut into blocks. A block has one scale of the activations (or of their
/// tables) and lies in one group of the weights; the last block of a group may be short. In memory all blocks
/// are as long, padded with columns that count nothing.
struct Blocks {
  int64_t cols = 0;
  int64_t group = 0;   ///< columns that share a weight scale; cols where there is none
  int64_t size = 0;    ///< columns of a full block, <= group
  int64_t padded = 0;  ///< columns of a block in memory

  Blocks() = default;
  Blocks(int64_t cols_in, int64_t group_in, int64_t size_in, int64_t multiple)
      : cols(cols_in), group(group_in), size(size_in), padded(RoundUp(size_in, multiple)) {}

  int64_t per_group() const { return CeilDiv(group, size); }
  int64_t groups() const { return CeilDiv(cols, group); }
  int64_t count() const {
    return (groups() - 1) * per_group() + CeilDiv(cols - (groups() - 1) * group, size);
  }
  int64_t Group(int64_t b) const { return b / per_group(); }
  int64_t Begin(int64_t b) const { return Group(b) * group + b % per_group() * size; }
  int64_t End(int64_t b) const {
    const int64_t group_end = Group(b) * group + group;
    const int64_t end = Begin(b) + size;
    return end < group_end ? (end < cols ? end : cols) : (group_end < cols ? group_end : cols);
  }
};

/// Columns that share a weight scale.
int64_t GroupColumns(const Tensor& weights);

/// The factor of a row in a group, whatever the kind of scale.
float WeightScale(const Tensor& weights, int64_t row, int64_t group);

}  // namespace vqllm::cpu
