#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/attention_rows.h"

// Decode attention on codes of codebooks (scope head-channel).
namespace vqllm::cpu {

/// One stage of the codebooks of one KV head.
struct TableStage {
  const uint16_t* rows = nullptr;  ///< fp16 [subvectors][entries][v]
  const float* columns = nullptr;  ///< [subvectors][v][padded]
  int64_t entries = 0;
  int64_t padded = 0;  ///< a multiple of 16
  int64_t offset = 0;  ///< byte of a record at which the codes of the stage begin
  int code_bytes = 1;
};

struct TableLayout {
  int64_t subvector = 0;
  int64_t subvectors = 0;
  int64_t bytes = 0;  ///< of a record
  std::span<const TableStage> stages;
};

/// Floats of the lookup tables of a quad.
int64_t LookupFloats(const TableLayout& layout);

/// tables[stage][subvector][entry][h] = q[h] . entry (VQ-LLM's psum book, ADC): four heads side by side, so
/// that a code costs one load of 128 bits and one add.
void BuildLookup(const TableLayout& layout, const QueryQuad& quad, float* tables);

/// scores[t][h] = the sum over the codes of row t of their table entries. `rows` holds n + kRowsAhead
/// addresses.
void LookupScores(const TableLayout& layout, const float* tables, const uint8_t* const* rows, int64_t n,
                  float* scores);

/// True where TableDecode and TableValues can read the layout on this machine: one-byte codes, subvectors of
/// 2, 4, 8 or 16 channels and heads that are whole pairs of vectors.
bool TableDecodable(const TableLayout& layout);

/// out[t] = what row t stands for; out is [n, stride].
void TableDecode(const TableLayout& layout, const uint8_t* const* rows, int64_t n, int64_t stride,
                 float* out);

/// As RowValues; out is [kQuad][subvectors * subvector].
void TableValues(const TableLayout& layout, const float* weights, int heads, const uint8_t* const* rows,
                 int64_t n, float* out);

}  // namespace vqllm::cpu
