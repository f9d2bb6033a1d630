#include "vq/base/check.h"
#include "vq/format.h"

namespace vqllm {
namespace {

Format Dense(const char* name, DType dtype) {
  Format f;
  f.name = name;
  f.kind = FormatKind::kDense;
  f.dtype = dtype;
  return f;
}

/// group 0: one scale a row.
Format Int(const char* name, int bits, int group, bool symmetric = false) {
  Format f;
  f.name = name;
  f.kind = FormatKind::kInt;
  f.bits = bits;
  f.symmetric = symmetric;
  f.scale = group > 0 ? ScaleKind::kGroup : ScaleKind::kPerOutput;
  f.group = group;
  return f;
}

Format Lattice(const char* name, int stages) {
  Format f;
  f.name = name;
  f.kind = FormatKind::kLattice;
  f.subvector = 8;
  f.entries.assign(static_cast<size_t>(stages), 65536);
  f.scale = ScaleKind::kPerTensor;
  f.rotation = true;
  return f;
}

constexpr Scope kTensor{ScopeKind::kTensor, 0, 0};
constexpr Scope kHeadChannel{ScopeKind::kHeadChannel, 0, 0};

constexpr Scope Tile(int rows, int cols) { return {ScopeKind::kTile, rows, cols}; }

/// VQ<v, code_bits, stages>; group > 0: a scale a group, -1: a scale a row, 0: none.
Format Vq(const char* name, int v, int code_bits, int stages, Scope scope, int group) {
  Format f;
  f.name = name;
  f.kind = FormatKind::kTable;
  f.subvector = v;
  f.entries.assign(static_cast<size_t>(stages), 1 << code_bits);
  f.scope = scope;
  f.scale = group > 0 ? ScaleKind::kGroup : group < 0 ? ScaleKind::kPerOutput : ScaleKind::kNone;
  f.group = group > 0 ? group : 0;
  return f;
}

}  // namespace

const std::vector<Format>& NamedFormats() {
  static const std::vector<Format> formats = [] {
    std::vector<Format> table = {
        Dense("fp32", DType::kF32),
        Dense("fp16", DType::kF16),
        Dense("bf16", DType::kBF16),
        // Element-wise integers: the opponent.
        Int("int8-g32", 8, 32),
        Int("int8-g64", 8, 64),
        Int("int8-g128", 8, 128),
        Int("int8-row", 8, 0),
        Int("int4-g32", 4, 32),
        Int("int4-g64", 4, 64),
        Int("int4-g128", 4, 128),
        Int("int4-row", 4, 0),
        Int("int4-g32-sym", 4, 32, true),
        Int("int4-g64-sym", 4, 64, true),
        Int("int4-g128-sym", 4, 128, true),
        Int("int3-g64", 3, 64),
        Int("int3-g128", 3, 128),
        Int("int3-row", 3, 0),
        Int("int2-g64", 2, 64),
        Int("int2-g128", 2, 128),
        Int("int2-row", 2, 0),
        // QuIP# (arXiv 2402.04396).
        Lattice("quip-2", 1),
        Lattice("quip-4", 2),
        // AQLM (arXiv 2401.06118): one scale an output.
        Vq("aqlm-1x16", 8, 16, 1, kTensor, -1),
        Vq("aqlm-2x8", 8, 8, 2, kTensor, -1),
        Vq("aqlm-1x8", 8, 8, 1, kTensor, -1),
        Vq("aqlm-3", 8, 12, 2, kTensor, -1),
        // GPTVQ as the VQ-LLM paper runs it (table II).
        Vq("gptvq-2", 4, 8, 1, Tile(256, 256), 0),
        // Stages of 16 entries: a CPU looks them up with byte shuffles.
        Vq("VQ<2,4,1>", 2, 4, 1, kTensor, 0),
        Vq("VQ<2,4,2>", 2, 4, 2, kTensor, 0),
        Vq("VQ<4,4,2>", 4, 4, 2, kTensor, 0),
        Vq("VQ<4,4,3>", 4, 4, 3, kTensor, 0),
        Vq("VQ<4,4,4>", 4, 4, 4, kTensor, 0),
        Vq("VQ<8,4,4>", 8, 4, 4, kTensor, 0),
        Vq("VQ<8,4,6>", 8, 4, 6, kTensor, 0),
        Vq("VQ<8,4,8>", 8, 4, 8, kTensor, 0),
        Vq("VQ<16,4,8>", 16, 4, 8, kTensor, 0),
        Vq("VQ<2,4,1>-g128", 2, 4, 1, kTensor, 128),
        Vq("VQ<2,4,2>-g128", 2, 4, 2, kTensor, 128),
        Vq("VQ<4,4,2>-g128", 4, 4, 2, kTensor, 128),
        Vq("VQ<4,4,3>-g128", 4, 4, 3, kTensor, 128),
        Vq("VQ<4,4,4>-g128", 4, 4, 4, kTensor, 128),
        Vq("VQ<8,4,4>-g128", 8, 4, 4, kTensor, 128),
        Vq("VQ<8,4,6>-g128", 8, 4, 6, kTensor, 128),
        Vq("VQ<8,4,8>-g128", 8, 4, 8, kTensor, 128),
        Vq("VQ<16,4,8>-g128", 16, 4, 8, kTensor, 128),
        // KV caches: rows are tokens, columns the channels of all KV heads. CQ (arXiv 2405.03917): one
        // codebook a head and channel group.
        Dense("kv-fp32", DType::kF32),
        Dense("kv-fp16", DType::kF16),
        Dense("kv-bf16", DType::kBF16),
        Int("kv-int8", 8, 64),
        Int("kv-int4", 4, 64),
        Vq("cq-4", 2, 8, 1, kHeadChannel, 0),
        Vq("cq-2", 4, 8, 1, kHeadChannel, 0),
        Vq("cq-1", 8, 8, 1, kHeadChannel, 0),
    };
    for (const Format& format : table) Validate(format);
    return table;
  }();
  return formats;
}

}  // namespace vqllm
