#pragma once

#include <cstdint>
#include <span>

namespace vqllm {

/// A row-major matrix that somebody else owns: [rows, cols], consecutive rows `stride` elements apart.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  MatrixView() = default;
  MatrixView(T* data_in, int64_t rows_in, int64_t cols_in) : MatrixView(data_in, rows_in, cols_in, cols_in) {}
  MatrixView(T* data_in, int64_t rows_in, int64_t cols_in, int64_t stride_in)
      : data(data_in), rows(rows_in), cols(cols_in), stride(stride_in) {}

  T* Row(int64_t row) const { return data + row * stride; }
  T& operator()(int64_t row, int64_t col) const { return data[row * stride + col]; }
  std::span<T> RowSpan(int64_t row) const { return {Row(row), static_cast<size_t>(cols)}; }
  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }
};

}  // namespace vqllm
