#include "vq/tensor.h"

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/math.h"
#include "vq/base/parallel.h"

namespace vqllm {
namespace {

int64_t ScaleCount(const Format& f, int64_t rows, int64_t cols) {
  switch (f.scale) {
    case ScaleKind::kNone:
      return 0;
    case ScaleKind::kPerTensor:
      return 1;
    default:
      return rows * ScaleGroups(f, cols);
  }
}

/// What a tensor of the format takes on disk, without having one.
int64_t StoredBytesOf(const Format& f, int64_t rows, int64_t cols) {
  if (f.kind == FormatKind::kDense) return rows * cols * BytesPerElement(f.dtype);
  int64_t bytes = 2 * ScaleCount(f, rows, cols);
  const int stages = f.kind == FormatKind::kInt ? 1 : f.stages();
  for (int stage = 0; stage < stages; ++stage) {
    bytes += 4 * CodeRows(f, rows) * CeilDiv(CodesPerRow(f, cols) * f.CodeBits(stage), 32);
    if (f.kind == FormatKind::kTable) {
      bytes += 2 * CodebookCount(f, rows, cols) * f.entries[static_cast<size_t>(stage)] * f.subvector;
    }
  }
  if (f.kind == FormatKind::kInt && !f.symmetric) bytes += CeilDiv(ScaleCount(f, rows, cols) * f.bits, 8);
  if (f.kind == FormatKind::kLattice) bytes += 4 * f.stages();
  if (f.rotation) bytes += CeilDiv(rows, 8) + CeilDiv(cols, 8);  // signs
  if (f.permutation) bytes += 4 * cols;
  if (f.input_affine) bytes += 4 * cols;
  return bytes;
}

void CheckSize(std::string_view where, const char* what, size_t found, int64_t wanted) {
  if (static_cast<int64_t>(found) != wanted)
    Fail("{}: {}: found {} values, allowed: {}", where, what, found, wanted);
}

void CheckCodes(const Tensor& t, int stage, std::string_view where) {
  const PackedCodes& codes = t.codes[static_cast<size_t>(stage)];
  const int64_t rows = CodeRows(t.format, t.rows);
  const int64_t count = CodesPerRow(t.format, t.cols);
  const int bits = t.format.CodeBits(stage);
  if (codes.rows() != rows || codes.count() != count || codes.bits() != bits) {
    Fail("{}: codes of stage {}: found {} x {} of {} bits, allowed: {} x {} of {} bits", where, stage,
         codes.rows(), codes.count(), codes.bits(), rows, count, bits);
  }
  if (t.format.kind != FormatKind::kTable) return;
  const int entries = t.format.entries[static_cast<size_t>(stage)];
  if (entries == 1 << bits) return;
  std::vector<uint16_t> row(static_cast<size_t>(count));
  for (int64_t r = 0; r < rows; ++r) {
    codes.UnpackRow(r, 0, count, row.data());
    for (int64_t c = 0; c < count; ++c) {
      if (row[static_cast<size_t>(c)] >= entries) {
        Fail("{}: code [{}, {}] of stage {}: found {}, allowed: 0 to {}", where, r, c, stage,
             row[static_cast<size_t>(c)], entries - 1);
      }
    }
  }
}

}  // namespace

int64_t CodeRows(const Format& f, int64_t rows) {
  return f.kind == FormatKind::kTable && f.axis == Axis::kOut ? Subvectors(f, rows) : rows;
}

int64_t CodesPerRow(const Format& f, int64_t cols) {
  const bool along_in =
      f.kind == FormatKind::kLattice || (f.kind == FormatKind::kTable && f.axis == Axis::kIn);
  return along_in ? Subvectors(f, cols) : cols;
}

int64_t ScaleGroups(const Format& f, int64_t cols) {
  return f.scale == ScaleKind::kGroup ? CeilDiv(cols, f.group) : 1;
}

float ScaleOf(const Tensor& t, int64_t row, int64_t col) {
  switch (t.format.scale) {
    case ScaleKind::kNone:
      return 1;
    case ScaleKind::kPerTensor:
      return t.scales[0];
    case ScaleKind::kPerOutput:
      return t.scales[static_cast<size_t>(row)];
    case ScaleKind::kGroup:
      return t.scales[static_cast<size_t>(row * ScaleGroups(t.format, t.cols) + col / t.format.group)];
  }
  VQLLM_CHECK(false);
}

int64_t CodebookCount(const Format& f, int64_t rows, int64_t cols) {
  switch (f.scope.kind) {
    case ScopeKind::kTensor:
      return 1;
    case ScopeKind::kTile:
      return CeilDiv(rows, f.scope.rows) * CeilDiv(cols, f.scope.cols);
    case ScopeKind::kInGroup:
      return CeilDiv(cols, f.scope.cols);
    case ScopeKind::kHeadChannel:
      return Subvectors(f, cols);
  }
  VQLLM_CHECK(false);
}

int64_t CodebookIndex(const Format& f, int64_t, int64_t cols, int64_t code_row, int64_t code_col) {
  const int64_t row = f.axis == Axis::kOut ? code_row * f.subvector : code_row;
  const int64_t col = f.axis == Axis::kIn ? code_col * f.subvector : code_col;
  switch (f.scope.kind) {
    case ScopeKind::kTensor:
      return 0;
    case ScopeKind::kTile:
      return row / f.scope.rows * CeilDiv(cols, f.scope.cols) + col / f.scope.cols;
    case ScopeKind::kInGroup:
      return col / f.scope.cols;
    case ScopeKind::kHeadChannel:
      return code_col;
  }
  VQLLM_CHECK(false);
}

Tensor DenseTensor(DType dtype, int64_t rows, int64_t cols, Bytes values) {
  Tensor tensor;
  tensor.format = ParseFormat(ToString(dtype));
  tensor.rows = rows;
  tensor.cols = cols;
  tensor.values = std::move(values);
  VQLLM_CHECK(static_cast<int64_t>(tensor.values.size()) == rows * cols * BytesPerElement(dtype));
  return tensor;
}

Tensor DenseTensor(DType dtype, int64_t rows, int64_t cols, const float* values) {
  const int64_t count = rows * cols;
  if (dtype == DType::kF32)
    return DenseTensor(dtype, rows, cols, Bytes::Own(std::vector<float>(values, values + count)));
  std::vector<uint16_t> stored(static_cast<size_t>(count));
  ParallelFor(count, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      stored[static_cast<size_t>(i)] =
          dtype == DType::kF16 ? FloatToHalfBits(values[i]) : FloatToBFloat16Bits(values[i]);
    }
  });
  return DenseTensor(dtype, rows, cols, Bytes::Own(std::move(stored)));
}

int64_t StoredBytes(const Tensor& tensor) { return StoredBytesOf(tensor.format, tensor.rows, tensor.cols); }

double EffectiveBits(const Format& format, int64_t rows, int64_t cols) {
  return 8.0 * static_cast<double>(StoredBytesOf(format, rows, cols)) /
         (static_cast<double>(rows) * static_cast<double>(cols));
}

void ValidateTensor(const Tensor& t, std::string_view where) {
  const Format& f = t.format;
  Validate(f);
  if (t.rows < 1 || t.cols < 1)
    Fail("{}: shape: found {} x {}, allowed: at least 1 x 1", where, t.rows, t.cols);
  CheckSize(where, "values", t.values.size(),
            f.kind == FormatKind::kDense ? t.rows * t.cols * BytesPerElement(f.dtype) : 0);
  const int stages = f.kind == FormatKind::kDense ? 0 : f.kind == FormatKind::kInt ? 1 : f.stages();
  CheckSize(where, "stages of codes", t.codes.size(), stages);
  for (int stage = 0; stage < stages; ++stage) CheckCodes(t, stage, where);
  CheckSize(where, "stages of codebooks", t.codebooks.size(), f.kind == FormatKind::kTable ? stages : 0);
  for (size_t stage = 0; stage < t.codebooks.size(); ++stage) {
    CheckSize(where, "codebook entries", t.codebooks[stage].size(),
              CodebookCount(f, t.rows, t.cols) * f.entries[stage] * f.subvector);
  }
  CheckSize(where, "scales", t.scales.size(), ScaleCount(f, t.rows, t.cols));
  const bool zeros = f.kind == FormatKind::kInt && !f.symmetric;
  CheckSize(where, "zeros", t.zeros.size(), zeros ? ScaleCount(f, t.rows, t.cols) : 0);
  for (const uint8_t zero : t.zeros) {
    if (zero >> f.bits != 0)
      Fail("{}: zero point: found {}, allowed: 0 to {}", where, zero, (1 << f.bits) - 1);
  }
  CheckSize(where, "stage scales", t.stage_scales.size(), f.kind == FormatKind::kLattice ? stages : 0);
  CheckSize(where, "input signs", t.sign_in.size(), f.rotation ? t.cols : 0);
  CheckSize(where, "output signs", t.sign_out.size(), f.rotation ? t.rows : 0);
  CheckSize(where, "permutation", t.permutation.size(), f.permutation ? t.cols : 0);
  std::vector<bool> seen(static_cast<size_t>(f.permutation ? t.cols : 0));
  for (const int32_t column : t.permutation) {
    if (column < 0 || column >= t.cols || seen[static_cast<size_t>(column)]) {
      Fail("{}: permutation: found column {} twice or out of range, allowed: each of 0 to {} once", where,
           column, t.cols - 1);
    }
    seen[static_cast<size_t>(column)] = true;
  }
  CheckSize(where, "input scales", t.input_scale.size(), f.input_affine ? t.cols : 0);
  CheckSize(where, "input offsets", t.input_offset.size(), f.input_affine ? t.cols : 0);
}

}  // namespace vqllm
