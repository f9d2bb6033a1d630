#pragma once

#include "kernels/cpu/attention_rows.h"

// The loops of attention_rows.h in plain C++: for processors without vectors of 128 bits, and what the others
// are tested against.
namespace vqllm::cpu::scalar {

/// Element c of a row.
float RowElement(const RowLayout& layout, const uint8_t* row, int64_t c);

void RowScores(const RowLayout& layout, const QueryQuad& quad, const uint8_t* const* rows, int64_t n,
               float* scores);
void RowValues(const RowLayout& layout, const float* weights, int heads, const uint8_t* const* rows,
               int64_t n, float* out);
void SoftmaxTile(float* scores, int64_t n, float* largest, float* sums, float* keep);

}  // namespace vqllm::cpu::scalar
