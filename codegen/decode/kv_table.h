#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "codegen/decode/kv_reader.h"

// Parts of the reader of a side with codebooks, for kernels that decode and for those that work on codes.
namespace vqllm::internal {

/// Where a stage stands.
struct KvStagePlace {
  int bit = 0;            ///< of the code in its unit
  int64_t book_base = 0;  ///< vectors before the stage in global memory
  int shared_base = 0;    ///< vectors before it in shared memory
  int entry_base = 0;     ///< entries of all stages before it
};
std::vector<KvStagePlace> KvStagePlaces(const KvSidePlan& side, int kv_heads);

/// The unit that a lane decodes in step `u` of `slice`.
std::string KvUnitText(const KvSidePlan& side, const std::string& name);
/// Declares `code`, that of a stage in step `u`, from `words`.
std::string KvCodeText(const KvSidePlan& side, const KvStagePlace& place, const StageTier& tier);
/// Statements that read an entry, vector by vector, into or onto the floats `target` 0], 1] ...
std::string KvEntryFloats(const KvSideLayout& layout, const std::function<std::string(int)>& read,
                          const std::string& target, bool add);

std::set<std::string> KvTableBlocks(const KvSidePlan& side);
/// Decode<Name> and Fill<Name>Entries.
std::string KvTableFunctions(const KvSidePlan& side, const std::string& name, int kv_heads);
/// The same place for a side with KvCompute::kCodes.
///   keys: FillKeyTable(books, head, queries, table), products [query][entry of all stages][unit];
///         AddKeyProducts(words, slice, table, score)
///   values: CountValues(words, weight, counts): adds weights to a lane's counts [query][step][entry of all
///   stages],
///           kThreads words apart
std::string KvCodeFunctions(const KvSidePlan& side, const std::string& name, int kv_heads);

}  // namespace vqllm::internal
