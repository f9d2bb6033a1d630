#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/kv_layer.h"
#include "vq/format.h"

// How keys and values lie in the memory of a GPU. The emitted kernels attention, kv_append and
// attention_prefill share these buffers; words are 32 bits, little-endian.
//
//   keys    [page][kv head][token of the page][key record words]
//   values  [page][kv head][token of the page][value record words]
//   exact   fp16 [slot][kv head][sinks + ring][2: key, value][head_dim]: the copies of the first and the most
//           recent tokens; a position p below `sinks` is at p, a later one at sinks + p % ring
//   key_books, value_books [stage][kv head][entry][unit][entry words]: one table side's codebooks. All units
//           of an entry number stand together, so that the hot (low) entries of a head are one run of bytes,
//           and lanes that read different units meet different banks
//   rope    float2 {cos, sin} [position][rope_dim / 2]
//   pages   int32 [row][pages of a row]: page of each page_tokens positions
//   rows    int4 [row] {begin, count, length, slot}: rows [begin, begin + count) of the activations are the
//           last `count` of the `length` tokens of a sequence, of which some may lie before its beginning:
//           a row of length 0 has no visible token and gives 0. `slot` picks the exact copies
//
// A *unit* is what is decoded at once: a subvector with the codes of all of its stages, or a run of
// neighbouring channels of the other kinds. A *slice* is what one lane decodes of a token: units l, l +
// slices, l + 2 slices, ..., so that in each step neighbouring lanes read neighbouring units. A record holds
// the codes of slice after slice, unit after unit, without gaps, up to a whole word; then the numbers of
// integer formats.
namespace vqllm {

/// The record of one token of one KV head on one side.
struct KvSideLayout {
  Format format;
  int head_dim = 0;
  int unit_channels = 8;  ///< the subvector; 8 channels of integers; 8, 4 or 2 of dense formats
  int units = 0;          ///< of a head; the last one of integers may be cut
  int slice_units = 1;
  int slices = 0;
  int unit_bits = 0;
  int code_words = 0;
  int groups = 0;        ///< integers: groups of a head
  int number_words = 0;  ///< integers: {scale, offset} as fp16 a group; symmetric: two scales a word
  int entry_words = 0;   ///< table: an entry as fp16, padded with zeros
  int64_t RecordWords() const { return code_words + number_words; }
  int SliceChannels() const { return slice_units * unit_channels; }
  int SliceBits() const { return slice_units * unit_bits; }
  /// First channel of unit `u` of a slice; head_dim or more where there is none.
  int UnitChannel(int slice, int u) const { return (u * slices + slice) * unit_channels; }
  bool operator==(const KvSideLayout&) const = default;
};

/// The layout of a format that a KV cache can have on a GPU: fp16, bf16, int8, int4, VQ with scope
/// head-channel. Throws Error for others, and for a subvector that does not divide head_dim.
KvSideLayout MakeKvSideLayout(const Format& format, int head_dim);

/// One token of one head in plain numbers.
struct KvToken {
  std::vector<uint32_t>
      codes;  ///< table: [unit][stage]; integers: [channel]; dense: the 16 bits of [channel]
  std::vector<uint16_t> scales;   ///< integers: fp16 bits of each group
  std::vector<uint16_t> offsets;  ///< the same, asymmetric only
};
void PackKvToken(const KvSideLayout& layout, const KvToken& token, std::span<uint32_t> record);
KvToken UnpackKvToken(const KvSideLayout& layout, std::span<const uint32_t> record);

/// The record bytes of cpu::KvLayer's codecs (kernels/cpu/kv_codec.h) in plain numbers.
KvToken FromCpuRecord(const KvSideLayout& layout, const uint8_t* record);

/// The values of a token of a head [head_dim], as the CPU's codecs decode them: sums of stages and
/// scale * code + offset in fp32.
std::vector<float> DecodeKvToken(const KvSideLayout& layout, const cpu::KvSide& side, int head,
                                 const KvToken& token);

/// Buffer key_books or value_books of a side; empty for other kinds.
std::vector<uint32_t> PackKvCodebooks(const KvSideLayout& layout, const cpu::KvSide& side, int kv_heads);

/// Everything that the ops on one KV cache must agree on.
struct KvShape {
  Format key;
  Format value;
  int kv_heads = 1;
  int head_dim = 0;
  int page_tokens = 32;
  int sinks = 0;           ///< the first `sinks` tokens are read from the exact copies
  int window = 0;          ///< the query at t reads positions > t - window from the exact copies
  int sliding_window = 0;  ///< the query at t sees positions > t - sliding_window, and the sinks; 0: all
  bool keys_before_rope = false;  ///< keys are stored unrotated and rotated when read
  int rope_dim = 0;               ///< rotated channels of a head; the rest pass through
  int context = 0;                ///< longest sequence, in tokens
  int chunk = 1;                  ///< most tokens of one sequence in one call of kv_append

  /// attention_prefill reads the tokens of the running chunk from the exact copies: flash attention over
  /// fresh keys and values. Without it what a query reads depends on its position alone.
  bool exact_chunk = false;

  /// Exact copies of recent tokens: those that some query of a chunk still reads.
  int Ring() const {
    const int reach = window == 0 ? 0 : window + chunk - 1;
    return exact_chunk && chunk > reach ? chunk : reach;
  }
  int ExactTokens() const { return sinks + Ring(); }
  int Pages() const { return (context + page_tokens - 1) / page_tokens; }
  bool operator==(const KvShape&) const = default;
};

/// Throws Error that names the field out of range.
void Validate(const KvShape& shape);

}  // namespace vqllm
