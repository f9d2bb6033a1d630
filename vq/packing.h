#pragma once

#include <cstdint>
#include <vector>

namespace vqllm {

/// Codes of one stage: rows of `count` codes, each `bits` wide (1..16), packed LSB first into 32-bit words
/// with no gap inside a row; every row begins at a word. The canonical form in memory; kernels repack it once
/// at load into the order they read.
class PackedCodes {
 public:
  PackedCodes() = default;
  PackedCodes(int64_t rows, int64_t count, int bits);

  int64_t rows() const { return rows_; }
  int64_t count() const { return count_; }
  int bits() const { return bits_; }
  int64_t row_words() const { return row_words_; }
  const std::vector<uint32_t>& words() const { return words_; }
  std::vector<uint32_t>& words() { return words_; }

  uint32_t Get(int64_t row, int64_t index) const;
  void Set(int64_t row, int64_t index, uint32_t code);
  /// Codes [begin, begin + n) of a row.
  void UnpackRow(int64_t row, int64_t begin, int64_t n, uint16_t* codes) const;
  /// A whole row; codes[count]. Rows may be packed by several threads at once.
  void PackRow(int64_t row, const uint16_t* codes);

 private:
  int64_t rows_ = 0;
  int64_t count_ = 0;
  int bits_ = 0;
  int64_t row_words_ = 0;
  std::vector<uint32_t> words_;
};

/// ceil(log2(entries)), at least 1.
int BitsFor(int64_t entries);

}  // namespace vqllm
