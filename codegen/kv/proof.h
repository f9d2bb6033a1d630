#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/kv/plan.h"
#include "codegen/proof.h"
#include "kernels/cpu/kv_layer.h"

namespace vqllm {

/// One sequence of a proof: `count` query (or new) tokens at the end of `length`.
struct KvProofRow {
  int count = 1;
  int length = 1;
};

struct KvProofOptions {
  uint64_t seed = 1;
  std::vector<KvProofRow> rows;  ///< empty: rows of the plan, with lengths from none to the whole context
  float query_scale = 1;         ///< of q: logits grow with it
  bool outliers = false;         ///< some channels of keys and values 30 times as large, some constant
};

/// Seeded data for one run of a plan's kernels, and what a correct one answers. Buffers are as layout.h has
/// them; activations have a row more in front and behind than `rows` name.
struct KvProofCase {
  std::vector<KvProofRow> sequences;
  std::vector<int32_t> rows;   ///< int4 each
  std::vector<int32_t> pages;  ///< scattered over a pool with one page more than is used
  int64_t pool_pages = 0;
  int64_t activation_rows = 0;
  cpu::KvSide key;
  cpu::KvSide value;
  std::vector<uint32_t> keys;
  std::vector<uint32_t> values;
  std::vector<uint32_t> key_books;
  std::vector<uint32_t> value_books;
  std::vector<uint32_t> exact;
  std::vector<float> rope;
  std::vector<uint16_t> q;  ///< attention: [activation_rows, heads * head_dim]
  std::vector<uint16_t> k;  ///< kv_append: [activation_rows, kv_heads * head_dim]
  std::vector<uint16_t> v;
  std::vector<double>
      expected;  ///< attention: as out [activation_rows, heads * head_dim]; NaN where nothing is written
  std::vector<double> tolerance;  ///< as expected
};

/// For attention and attention_prefill: a cache of random codes, the exact answer of softmax in double over
/// the values they decode to, and how far a correct kernel may be from it. The bound follows from the length
/// of the fp32 chains: an error d of logits changes the answer by at most (e^2d - 1) times the sum of |p v|.
KvProofCase MakeKvProofCase(const KvPlan& plan, const KvProofOptions& options);
ProofResult CheckKvProof(const KvPlan& plan, const KvProofCase& proof, const std::vector<uint16_t>& out);

/// For kv_append: whether records and copies hold what the tokens encode to. An entry may be further than the
/// nearest one only by what fp32 sums lose; numbers of integers and dense values are those of the oracle
/// within the rounding of a rotated key. `message` names the first wrong place.
struct KvAppendResult {
  int64_t checked = 0;
  int64_t wrong = 0;
  std::string message;
};
KvAppendResult CheckKvAppend(const KvPlan& plan, const KvProofCase& proof, const std::vector<uint32_t>& keys,
                             const std::vector<uint32_t>& values, const std::vector<uint32_t>& exact);

}  // namespace vqllm
