#include "vq/packing.h"

#include <algorithm>
#include <bit>

#include "vq/base/check.h"

namespace vqllm {

PackedCodes::PackedCodes(int64_t rows, int64_t count, int bits)
    : rows_(rows), count_(count), bits_(bits), row_words_((count * bits + 31) / 32) {
  VQLLM_CHECK(rows >= 0 && count >= 0 && bits >= 1 && bits <= 16, "{} x {} codes of {} bits", rows, count,
              bits);
  words_.resize(static_cast<size_t>(rows_ * row_words_));
}

uint32_t PackedCodes::Get(int64_t row, int64_t index) const {
  uint16_t code = 0;
  UnpackRow(row, index, 1, &code);
  return code;
}

void PackedCodes::Set(int64_t row, int64_t index, uint32_t code) {
  VQLLM_CHECK(row >= 0 && row < rows_ && index >= 0 && index < count_ && (code >> bits_) == 0,
              "[{}, {}] = {}", row, index, code);
  const int64_t bit = index * bits_;
  uint32_t* word = words_.data() + row * row_words_ + bit / 32;
  const int shift = static_cast<int>(bit % 32);
  const uint64_t mask = ((uint64_t{1} << bits_) - 1) << shift;
  const uint64_t value = static_cast<uint64_t>(code) << shift;
  word[0] = (word[0] & ~static_cast<uint32_t>(mask)) | static_cast<uint32_t>(value);
  if (shift + bits_ > 32) {
    word[1] = (word[1] & ~static_cast<uint32_t>(mask >> 32)) | static_cast<uint32_t>(value >> 32);
  }
}

void PackedCodes::UnpackRow(int64_t row, int64_t begin, int64_t n, uint16_t* codes) const {
  VQLLM_CHECK(row >= 0 && row < rows_ && begin >= 0 && n >= 0 && begin + n <= count_, "row {}, codes {} + {}",
              row, begin, n);
  if (n == 0) return;
  const uint32_t mask = (uint32_t{1} << bits_) - 1;
  const uint32_t* word = words_.data() + row * row_words_ + begin * bits_ / 32;
  const uint32_t* const end = words_.data() + (row + 1) * row_words_;
  int have = 32 - static_cast<int>(begin * bits_ % 32);
  uint64_t pending = *word++ >> (32 - have);
  for (int64_t i = 0; i < n; ++i) {
    if (have < bits_) {
      // The last code of a row may end with its last word; nothing is read behind it.
      if (word < end) pending |= static_cast<uint64_t>(*word++) << have;
      have += 32;
    }
    codes[i] = static_cast<uint16_t>(pending & mask);
    pending >>= bits_;
    have -= bits_;
  }
}

void PackedCodes::PackRow(int64_t row, const uint16_t* codes) {
  VQLLM_CHECK(row >= 0 && row < rows_, "row {}", row);
  uint32_t* word = words_.data() + row * row_words_;
  uint64_t pending = 0;
  int have = 0;
  for (int64_t i = 0; i < count_; ++i) {
    pending |= static_cast<uint64_t>(codes[i]) << have;
    have += bits_;
    if (have >= 32) {
      *word++ = static_cast<uint32_t>(pending);
      pending >>= 32;
      have -= 32;
    }
  }
  if (have > 0) *word = static_cast<uint32_t>(pending);
}

int BitsFor(int64_t entries) {
  return std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(entries - 1))));
}

}  // namespace vqllm
