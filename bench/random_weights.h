#pragma once

#include <cstdint>
#include <vector>

#include "vq/tensor.h"

namespace vqllm::bench {

/// A tensor with random codes, entries and scales: kernels do the same work on it as on trained weights, and
/// no benchmark waits for a quantiser.
inline Tensor RandomWeights(const Format& f, int64_t rows, int64_t cols) {
  uint64_t state = 12345;
  const auto next = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 32);
  };
  const auto halves = [&](int64_t count) {
    std::vector<Half> values(static_cast<size_t>(count));
    for (Half& value : values) value = Half(static_cast<float>(next() % 2001) / 1000.0f - 1.0f);
    return values;
  };
  if (f.kind == FormatKind::kDense) {
    // Of ordinary size: a denormal product takes a hundred times as long as another.
    std::vector<uint32_t> words(static_cast<size_t>(rows * cols * BytesPerElement(f.dtype) / 4));
    const uint32_t one = f.dtype == DType::kF32   ? 0x3f800000
                         : f.dtype == DType::kF16 ? 0x3c003c00
                                                  : 0x3f803f80;
    const uint32_t random = f.dtype == DType::kF32   ? 0x807fffff
                            : f.dtype == DType::kF16 ? 0x83ff83ff
                                                     : 0x807f807f;
    for (uint32_t& word : words) word = one | (next() & random);
    return DenseTensor(f.dtype, rows, cols, Bytes::Own(std::move(words)));
  }
  Tensor t;
  t.format = f;
  t.rows = rows;
  t.cols = cols;
  const bool along_out = f.kind == FormatKind::kTable && f.axis == Axis::kOut;
  const int stages = f.kind == FormatKind::kInt ? 1 : f.stages();
  for (int stage = 0; stage < stages; ++stage) {
    const int64_t count = f.kind == FormatKind::kInt || along_out ? cols : Subvectors(f, cols);
    t.codes.emplace_back(along_out ? Subvectors(f, rows) : rows, count, f.CodeBits(stage));
    for (uint32_t& word : t.codes.back().words()) word = next();  // entry counts that are powers of two
    if (f.kind == FormatKind::kTable) {
      t.codebooks.push_back(
          halves(CodebookCount(f, rows, cols) * f.entries[static_cast<size_t>(stage)] * f.subvector));
    }
    if (f.kind == FormatKind::kLattice) t.stage_scales.push_back(stage == 0 ? 1.0f : 0.3f);
  }
  const int64_t scales = f.scale == ScaleKind::kNone        ? 0
                         : f.scale == ScaleKind::kPerTensor ? 1
                                                            : rows * ScaleGroups(f, cols);
  t.scales = halves(scales);
  if (f.kind == FormatKind::kInt && !f.symmetric)
    t.zeros.assign(static_cast<size_t>(scales), static_cast<uint8_t>(1 << (f.bits - 1)));
  if (f.rotation) {
    t.sign_in.assign(static_cast<size_t>(cols), Half(1.0f));
    t.sign_out.assign(static_cast<size_t>(rows), Half(1.0f));
  }
  return t;
}

/// The same tensor over bytes of its own, so that dense copies lie apart in memory.
inline Tensor OwnCopy(const Tensor& t) {
  Tensor copy = t;
  if (!t.values.empty()) {
    copy.values = Bytes::Own(std::vector<uint8_t>(t.values.data(), t.values.data() + t.values.size()));
  }
  return copy;
}

}  // namespace vqllm::bench
