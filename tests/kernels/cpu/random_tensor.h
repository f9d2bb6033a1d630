#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "vq/base/rng.h"
#include "vq/hadamard.h"
#include "vq/packing.h"
#include "vq/tensor.h"

namespace vqllm::testing {

/// Numbers for tests of the matrix kernels: any format and shape, without the time of a quantiser.
class TensorMaker {
 public:
  explicit TensorMaker(uint64_t seed) : state_(seed * 2 + 1) {}

  uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  float Uniform() { return static_cast<float>(Next() % 20001) / 10000.0f - 1.0f; }

  std::vector<float> Values(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = Uniform();
    return values;
  }

  /// Every code, entry, scale, zero, sign and offset random.
  Tensor Make(const Format& f, int64_t rows, int64_t cols) {
    if (f.kind == FormatKind::kDense) {
      Tensor t = DenseTensor(f.dtype, rows, cols, Values(rows * cols).data());
      t.format = f;
      AddTurns(t);
      return t;
    }
    Tensor t;
    t.format = f;
    t.rows = rows;
    t.cols = cols;
    const bool out = f.axis == Axis::kOut;
    const int stages = f.kind == FormatKind::kInt ? 1 : f.stages();
    for (int stage = 0; stage < stages; ++stage) {
      const int64_t code_rows = f.kind != FormatKind::kInt && out ? Subvectors(f, rows) : rows;
      const int64_t count = f.kind == FormatKind::kInt || out ? cols : Subvectors(f, cols);
      const int64_t entries =
          f.kind == FormatKind::kInt ? 1 << f.bits : f.entries[static_cast<size_t>(stage)];
      t.codes.emplace_back(code_rows, count, f.CodeBits(stage));
      std::vector<uint16_t> row(static_cast<size_t>(count));
      for (int64_t r = 0; r < code_rows; ++r) {
        for (uint16_t& code : row) code = static_cast<uint16_t>(Next() % entries);
        t.codes.back().PackRow(r, row.data());
      }
      if (f.kind == FormatKind::kTable)
        t.codebooks.push_back(Halves(CodebookCount(f, rows, cols) * entries * f.subvector));
      if (f.kind == FormatKind::kLattice) t.stage_scales.push_back(stage == 0 ? 1.0f : 0.25f);
    }
    const int64_t scales = f.scale == ScaleKind::kNone        ? 0
                           : f.scale == ScaleKind::kPerTensor ? 1
                                                              : rows * ScaleGroups(f, cols);
    t.scales = Halves(scales);
    if (f.kind == FormatKind::kInt && !f.symmetric) {
      t.zeros.resize(static_cast<size_t>(scales));
      for (uint8_t& zero : t.zeros) zero = static_cast<uint8_t>(Next() % (1u << f.bits));
    }
    AddTurns(t);
    ValidateTensor(t, "test");
    return t;
  }

 private:
  std::vector<Half> Halves(int64_t count) {
    std::vector<Half> halves(static_cast<size_t>(count));
    for (Half& half : halves) half = Half(Uniform());
    return halves;
  }

  void AddTurns(Tensor& t) {
    if (t.format.rotation) {
      for (int64_t i = 0; i < t.cols; ++i) t.sign_in.push_back(Half(Next() % 2 ? 1.0f : -1.0f));
      for (int64_t i = 0; i < t.rows; ++i) t.sign_out.push_back(Half(Next() % 2 ? 1.0f : -1.0f));
    }
    if (t.format.permutation) {
      t.permutation.resize(static_cast<size_t>(t.cols));
      std::iota(t.permutation.begin(), t.permutation.end(), 0);
      for (size_t i = t.permutation.size(); i > 1; --i)
        std::swap(t.permutation[i - 1], t.permutation[Next() % i]);
    }
    if (t.format.input_affine) {
      t.input_scale = Halves(t.cols);
      t.input_offset = Halves(t.cols);
    }
  }

  uint64_t state_;
};

}  // namespace vqllm::testing
