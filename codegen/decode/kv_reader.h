#pragma once

#include <set>
#include <string>

#include "codegen/kv/plan.h"

namespace vqllm::internal {

/// The parts of an emitted file that read the records of one side of a KV cache.
struct KvReaderText {
  std::set<std::string> blocks;  ///< device blocks used
  std::string constants;
  std::string functions;
};

/// What every kernel must know of a record: k<Name>Record, k<Name>Slices, [k<Name>Units], and
/// <Name>Channel(slice, i) -> channel of float i of a slice, kHeadDim or more where there is none.
/// `turned`: see KvSidePlan.
KvReaderText EmitKvRecord(const KvSideLayout& layout, const std::string& name, bool turned = false);

/// Emits the reader of a side under a name ("Key", "Value", "Exact"):
///   EmitKvRecord's, k<Name>Channels, k<Name>Words
///   Load<Name>(record, slice, words)                 the words of a slice
///   Decode<Name>(words, [slice, entries, books, head], x)    its channels as fp32
///   Fill<Name>Entries(books, head, shared)           where entries are in shared memory; a barrier must
///   follow
KvReaderText EmitKvReader(const KvSidePlan& side, const std::string& name, int kv_heads);

/// Floats of a row of head_dim in shared memory that kernels read and write at once: neighbours within a
/// unit.
int KvFloatVector(const KvSideLayout& layout);
/// "float4" and its kin for 4, 2 and 1 floats, and the component behind a variable: ".y", or "" of one float.
std::string KvFloatType(int floats);
std::string KvFloatComponent(int floats, int at);

/// The type of one load of an entry: "unsigned", "uint2", "uint4".
std::string KvEntryType(const KvSideLayout& layout);
/// Loads of an entry.
int KvEntryVectors(const KvSideLayout& layout);
/// True where some entries are in shared memory.
bool KvStagesEntries(const KvSidePlan& side);
/// True where some entries are read from global memory.
bool KvReadsBooks(const KvSidePlan& side);
/// The arguments of Decode<Name> between `words` and `x`, such as "key_slice, key_entries, key_books, head,
/// ".
std::string KvDecodeArguments(const KvSidePlan& side, const std::string& lower_name,
                              const std::string& slice);

}  // namespace vqllm::internal
