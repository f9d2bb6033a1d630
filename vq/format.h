#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vqllm {

/// Element type of dense tensors.
enum class DType : uint8_t { kF32, kF16, kBF16 };

enum class FormatKind : uint8_t {
  kDense,    ///< every weight stored as `dtype`
  kInt,      ///< code - zero_point, times a scale: the element-wise opponent (GPTQ, AWQ, int8)
  kTable,    ///< VQ<v,b,R>: a code picks an entry of a codebook, the entries of all stages add up
  kLattice,  ///< E8P of QuIP#: a 16-bit code is computed into 8 values; stage 2 refines stage 1
};

/// Which weights share a codebook. W is [rows = outputs, cols = inputs]; for a KV cache rows = tokens, cols =
/// channels.
enum class ScopeKind : uint8_t {
  kTensor,       ///< one codebook a stage for the whole tensor
  kTile,         ///< one for each `rows` x `cols` tile (the last ones may be cut)
  kInGroup,      ///< one for each `cols` consecutive columns (VPTQ's group_num)
  kHeadChannel,  ///< one for each subvector position: KV head x channel group (CQ)
};

struct Scope {
  ScopeKind kind = ScopeKind::kTensor;
  int rows = 0;  ///< kTile only
  int cols = 0;  ///< kTile and kInGroup
  bool operator==(const Scope&) const = default;
};

/// The direction in which the `subvector` weights of one code lie: along a row of W (inputs; channels of a KV
/// token) or along a column (outputs; VPTQ).
enum class Axis : uint8_t { kIn, kOut };

enum class ScaleKind : uint8_t {
  kNone,
  kPerTensor,
  kPerOutput,  ///< one a row
  kGroup,      ///< one for each `group` consecutive columns of a row; the last group may be short
};

/// How a tensor is stored: plain data, no codes. Named formats stand in formats.cc, one row each; every other
/// VQ<v,b,R> x scope is legal with no new code. JSON keys are the member names; see ParseFormat.
struct Format {
  std::string name;  ///< [A-Za-z0-9_.<>,x-]{1,48}; never reaches emitted text other than through a whitelist
  FormatKind kind = FormatKind::kDense;

  DType dtype = DType::kF16;  ///< kDense

  int bits = 0;            ///< kInt: 2, 3, 4 or 8
  bool symmetric = false;  ///< kInt: zero point fixed at 2^(bits-1)

  int subvector = 0;         ///< kTable: 1..16; kLattice: 8
  Axis axis = Axis::kIn;     ///< kTable
  std::vector<int> entries;  ///< kTable: entries of each stage, 2..65536, any number of them need be a power
                             ///< of two; 1..8 stages. kLattice: one 65536 a stage, 1..2 stages
  Scope scope;               ///< kTable

  ScaleKind scale = ScaleKind::kNone;  ///< kInt: kPerOutput or kGroup; scales are fp16
  int group = 0;                       ///< columns that share a scale; scale == kGroup only

  bool rotation = false;      ///< W = S_out H_out W' H_in S_in: signs and Hadamard on both sides (QuIP#)
  bool permutation = false;   ///< stored columns are permuted (GPTQ act-order, VPTQ)
  bool input_affine = false;  ///< a scale and an offset a column on top (VPTQ)

  int stages() const { return static_cast<int>(entries.size()); }
  /// ceil(log2(entries[stage])): the width of a stored code.
  int CodeBits(int stage) const;
  bool operator==(const Format&) const = default;
};

/// A named format ("int4-g128", "aqlm-2x8", "quip-2"), integers with any group ("int3-g96", "int8-row-sym"),
/// the notation VQ<v,b,R> with an optional scope and scale behind it ("VQ<4,8,1>", "VQ<4,8,1>-tile256x256",
/// "VQ<8,4,4>-g128", "VQ<8,8,2>-row"), a JSON object in text, or the path of a .json file. Throws Error that
/// names the field, what was found and what is allowed.
Format ParseFormat(std::string_view text);

/// All named formats, in the order of the table in formats.cc.
const std::vector<Format>& NamedFormats();

/// Throws Error that names the first field that is out of range or contradicts another.
void Validate(const Format& format);

/// One JSON object on one line; ParseFormat(ToJson(f)) == f.
std::string ToJson(const Format& format);

/// Bits stored for one weight of a [rows, cols] tensor: codes, codebooks, scales, zeros and padding all
/// counted, as written to disk with fp16 codebooks and scales.
double EffectiveBits(const Format& format, int64_t rows, int64_t cols);

const char* ToString(DType dtype);
int BytesPerElement(DType dtype);

}  // namespace vqllm
