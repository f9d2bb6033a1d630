#include <algorithm>
#include <vector>

#include "vq/base/check.h"
#include "vq/base/parallel.h"
#include "vq/hadamard.h"
#include "vq/lattice.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

void DenseRow(const Tensor& t, int64_t row, float* out) {
  for (int64_t c = 0; c < t.cols; ++c) {
    const size_t at = static_cast<size_t>(row * t.cols + c);
    switch (t.format.dtype) {
      case DType::kF32:
        out[c] = t.values.Load<float>(at);
        break;
      case DType::kF16:
        out[c] = HalfBitsToFloat(t.values.Load<uint16_t>(at));
        break;
      case DType::kBF16:
        out[c] = BFloat16BitsToFloat(t.values.Load<uint16_t>(at));
        break;
    }
  }
}

void IntRow(const Tensor& t, int64_t row, float* out) {
  std::vector<uint16_t> codes(static_cast<size_t>(t.cols));
  t.codes[0].UnpackRow(row, 0, t.cols, codes.data());
  const int64_t groups = ScaleGroups(t.format, t.cols);
  for (int64_t c = 0; c < t.cols; ++c) {
    const int64_t group = t.format.scale == ScaleKind::kGroup ? c / t.format.group : 0;
    const int zero =
        t.format.symmetric ? 1 << (t.format.bits - 1) : t.zeros[static_cast<size_t>(row * groups + group)];
    out[c] = ScaleOf(t, row, c) * static_cast<float>(codes[static_cast<size_t>(c)] - zero);
  }
}

void TableRow(const Tensor& t, int64_t row, float* out) {
  const Format& f = t.format;
  const bool along_in = f.axis == Axis::kIn;
  const int64_t code_row = along_in ? row : row / f.subvector;
  std::vector<double> sums(static_cast<size_t>(t.cols));
  std::vector<uint16_t> codes;
  for (size_t stage = 0; stage < t.codes.size(); ++stage) {
    const int64_t count = t.codes[stage].count();
    codes.resize(static_cast<size_t>(count));
    t.codes[stage].UnpackRow(code_row, 0, count, codes.data());
    for (int64_t c = 0; c < t.cols; ++c) {
      const int64_t code_col = along_in ? c / f.subvector : c;
      const int64_t element = along_in ? c % f.subvector : row % f.subvector;
      const int64_t book = CodebookIndex(f, t.rows, t.cols, code_row, code_col);
      const int64_t entry = book * f.entries[stage] + codes[static_cast<size_t>(code_col)];
      sums[static_cast<size_t>(c)] +=
          static_cast<float>(t.codebooks[stage][static_cast<size_t>(entry * f.subvector + element)]);
    }
  }
  for (int64_t c = 0; c < t.cols; ++c)
    out[c] = ScaleOf(t, row, c) * static_cast<float>(sums[static_cast<size_t>(c)]);
}

void LatticeRow(const Tensor& t, int64_t row, float* out) {
  for (int64_t s = 0; s < Subvectors(t.format, t.cols); ++s) {
    double sums[8] = {};
    for (size_t stage = 0; stage < t.codes.size(); ++stage) {
      const e8p::Vector point = e8p::Decode(static_cast<uint16_t>(t.codes[stage].Get(row, s)));
      for (size_t i = 0; i < 8; ++i) sums[i] += static_cast<double>(t.stage_scales[stage]) * point[i];
    }
    for (int64_t i = 0; i < std::min<int64_t>(8, t.cols - 8 * s); ++i) {
      out[8 * s + i] = ScaleOf(t, row, 8 * s + i) * static_cast<float>(sums[i]);
    }
  }
}

/// Undoes both rotations of all rows: W = S_out H_out^T W' H_in S_in.
void UndoRotation(const Tensor& t, MatrixView<float> w) {
  const Hadamard in(t.cols);
  const Hadamard out(t.rows);
  ParallelFor(t.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) in.ApplyTransposed(w.Row(r));
  });
  ParallelFor(t.cols, 64, [&](int64_t begin, int64_t end) {
    std::vector<float> column(static_cast<size_t>(t.rows));
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t r = 0; r < t.rows; ++r) column[static_cast<size_t>(r)] = w(r, c);
      out.ApplyTransposed(column.data());
      for (int64_t r = 0; r < t.rows; ++r) {
        w(r, c) = column[static_cast<size_t>(r)] * t.sign_out[static_cast<size_t>(r)] *
                  t.sign_in[static_cast<size_t>(c)];
      }
    }
  });
}

}  // namespace

void DequantizeStored(const Tensor& t, int64_t begin, MatrixView<float> out) {
  VQLLM_CHECK(begin >= 0 && begin + out.rows <= t.rows && out.cols == t.cols, "rows {} + {} of {}", begin,
              out.rows, t.rows);
  ParallelFor(out.rows, 16, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      switch (t.format.kind) {
        case FormatKind::kDense:
          DenseRow(t, begin + r, out.Row(r));
          break;
        case FormatKind::kInt:
          IntRow(t, begin + r, out.Row(r));
          break;
        case FormatKind::kTable:
          TableRow(t, begin + r, out.Row(r));
          break;
        case FormatKind::kLattice:
          LatticeRow(t, begin + r, out.Row(r));
          break;
      }
    }
  });
}

void Dequantize(const Tensor& t, int64_t begin, MatrixView<float> out) {
  if (t.format.rotation && out.rows < t.rows) {  // an output depends on all rows
    std::vector<float> all(static_cast<size_t>(t.rows * t.cols));
    const MatrixView<float> view(all.data(), t.rows, t.cols);
    DequantizeStored(t, 0, view);
    UndoRotation(t, view);
    for (int64_t r = 0; r < out.rows; ++r) std::copy_n(view.Row(begin + r), t.cols, out.Row(r));
  } else {
    DequantizeStored(t, begin, out);
    if (t.format.rotation) UndoRotation(t, out);
  }
  if (!t.format.permutation && !t.format.input_affine) return;
  std::vector<float> stored(static_cast<size_t>(t.cols));
  for (int64_t r = 0; r < out.rows; ++r) {
    float* row = out.Row(r);
    if (t.format.permutation) {
      std::copy_n(row, t.cols, stored.data());
      for (int64_t c = 0; c < t.cols; ++c)
        row[t.permutation[static_cast<size_t>(c)]] = stored[static_cast<size_t>(c)];
    }
    if (t.format.input_affine) {
      for (int64_t c = 0; c < t.cols; ++c) {
        row[c] = row[c] * t.input_scale[static_cast<size_t>(c)] + t.input_offset[static_cast<size_t>(c)];
      }
    }
  }
}

}  // namespace vqllm
