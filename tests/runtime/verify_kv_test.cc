// The ops on a KV cache, executed: NVRTC's PTX in the interpreter, all hazard checks, against the oracle.
#include "runtime/verify_kv.h"

#include <set>

#include "tests/support/data.h"
#include "tests/support/pairwise.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

class KvProof : public testing::Test {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no CUDA toolkit: set CUDA_HOME";
  }
  VerifyReport Prove(const KvRequest& request, const KvProofOptions& data = {},
                     const VerifyOptions& options = {}) {
    const GeneratedKv generated = Generate(request);
    const VerifyReport report = Verify(generated, KernelCache(temp_.path()), options, data);
    EXPECT_LE(report.result.worst_share, 1) << generated.FileName() << " at " << report.result.worst_index;
    EXPECT_TRUE(report.result.passed) << generated.FileName();
    EXPECT_EQ(report.hazards, std::vector<std::string>()) << generated.FileName();
    return report;
  }
  test::TempDir temp_;
};

KvRequest Wanted(KvOp op, const char* key, const char* value, int kv_heads, int group, int head_dim,
                 int context) {
  KvRequest request;
  request.op = op;
  request.shape.key = ParseFormat(key);
  request.shape.value = ParseFormat(value);
  request.shape.kv_heads = kv_heads;
  request.shape.head_dim = head_dim;
  request.shape.context = context;
  request.shape.rope_dim = head_dim;
  request.group = group;
  request.gpu = ParseGpu("a100");
  return request;
}

// The grid of what a decode step may meet; every two choices meet in some case.
constexpr const char* kFormats[] = {"kv-fp16", "kv-bf16", "kv-int8", "kv-int4", "cq-4", "cq-2", "cq-1"};
constexpr int kGroups[] = {1, 4, 5, 6, 7, 16};
constexpr int kHeadDims[] = {64, 80, 96, 112, 128, 256};
constexpr int kPages[] = {16, 32, 64, 128};
constexpr int kQueryTokens[] = {1, 2, 5, 8};
struct Reach {
  int sinks, window, sliding;
};
constexpr Reach kReaches[] = {{0, 0, 0}, {4, 0, 0}, {0, 20, 0}, {3, 33, 0}, {0, 0, 70}, {4, 16, 90}};
struct Turn {
  int share;  // of the head that rotates: none, half, all
  bool before;
};
constexpr Turn kTurns[] = {{2, false}, {2, true}, {1, false}, {1, true}, {0, false}};
void SetReach(const Reach& reach, KvShape& shape) {
  shape.sinks = reach.sinks;
  shape.window = reach.window;
  shape.sliding_window = reach.sliding;
}
void SetTurn(const Turn& turn, KvShape& shape) {
  shape.rope_dim = shape.head_dim / 2 * turn.share;
  shape.keys_before_rope = turn.before;
}
enum Data { kPlain, kOutliers, kLargeLogits, kDataKinds };
constexpr const char* kGpus[] = {"a100", "rtx4090", "h100"};

std::vector<std::vector<int>> GridRows() {
  return test::PairwiseRows({7, 7, 6, 6, 4, 4, 6, 5, 2, kDataKinds, 3});
}

void Case(const std::vector<int>& row, KvRequest& request, KvProofOptions& data) {
  request = Wanted(KvOp::kAttention, kFormats[row[0]], kFormats[row[1]], 2, kGroups[row[2]],
                   kHeadDims[row[3]], 300);
  request.shape.page_tokens = kPages[row[4]];
  request.q_tokens = kQueryTokens[row[5]];
  request.shape.chunk = request.q_tokens;
  SetReach(kReaches[row[6]], request.shape);
  SetTurn(kTurns[row[7]], request.shape);
  request.activation = row[8] == 1 ? DType::kBF16 : DType::kF16;
  request.gpu = ParseGpu(kGpus[row[10]]);
  request.pins.split_tokens = 128;  // three splits, the last one short
  data.rows = {{request.q_tokens, 300}, {1, 0}, {1, 1}, {std::min(3, request.q_tokens), 131}};
  data.outliers = row[9] == kOutliers;
  // Logits of some 1e4 and more: beyond fp16, and far apart.
  data.query_scale = row[9] == kLargeLogits ? 6000.0f : 1.0f;
}

constexpr int kParts = 8;
class KvGrid : public KvProof, public testing::WithParamInterface<int> {};
TEST_P(KvGrid, AgreesWithTheOracle) {
  const std::vector<std::vector<int>> rows = GridRows();
  for (size_t i = static_cast<size_t>(GetParam()); i < rows.size(); i += kParts) {
    KvRequest request;
    KvProofOptions data;
    Case(rows[i], request, data);
    SCOPED_TRACE(fmt::format("row {}: {}", i, fmt::join(rows[i], " ")));
    Prove(request, data);
  }
}
INSTANTIATE_TEST_SUITE_P(Parts, KvGrid, testing::Range(0, kParts));

TEST(KvGridRows, CoverEveryPair) {
  const std::vector<std::vector<int>> rows = GridRows();
  EXPECT_LE(rows.size(), 70u);
  std::set<std::pair<int, int>> formats;
  for (const std::vector<int>& row : rows) formats.insert({row[0], row[1]});
  EXPECT_EQ(formats.size(), 49u);
}

// Keys by a table of products, values by histograms, both beside decoding.
constexpr const char* kTableKeys[] = {"cq-1",           "cq-2",           "VQ<2,6,1>-head",
                                      "VQ<8,5,3>-head", "VQ<1,4,1>-head", "VQ<16,7,1>-head"};
constexpr const char* kCountedValues[] = {"VQ<8,6,1>-head", "VQ<4,5,1>-head", "VQ<2,4,1>-head",
                                          "VQ<8,5,3>-head", "VQ<1,4,1>-head", "VQ<16,6,1>-head"};
constexpr int kCodeHeadDims[] = {64, 80, 112, 128};

class KvCodesGrid : public KvProof, public testing::WithParamInterface<int> {};
TEST_P(KvCodesGrid, AgreesWithTheOracle) {
  // key, value, computes, group, head_dim, query tokens, reach, data, type.
  const std::vector<std::vector<int>> rows = test::PairwiseRows({6, 6, 3, 3, 4, 2, 6, kDataKinds, 2});
  for (size_t i = static_cast<size_t>(GetParam()); i < rows.size(); i += kParts) {
    const std::vector<int>& row = rows[i];
    SCOPED_TRACE(fmt::format("row {}: {}", i, fmt::join(row, " ")));
    const int group = row[3] == 2 ? 3 : row[3] + 1;
    KvRequest request = Wanted(KvOp::kAttention, kTableKeys[row[0]], kCountedValues[row[1]], 2, group,
                               kCodeHeadDims[row[4]], 300);
    request.q_tokens = request.shape.chunk = row[5] + 1;
    SetReach(kReaches[row[6]], request.shape);
    request.activation = row[8] == 1 ? DType::kBF16 : DType::kF16;
    request.gpu = ParseGpu("h100");
    request.pins.split_tokens = 128;
    request.pins.tile = group == 3 ? 2 : 1;
    request.pins.warps = request.shape.key.subvector == 1 ? 4 : 2;  // a thread for each unit of the table
    request.pins.key_compute = row[2] != 1 ? 1 : 0;
    request.pins.value_compute = row[2] != 0 ? 1 : 0;
    KvProofOptions data;
    data.rows = {{request.q_tokens, 300}, {1, 0}, {1, 1}, {1, 131}};
    data.outliers = row[7] == kOutliers;
    data.query_scale = row[7] == kLargeLogits ? 6000.0f : 1.0f;
    Prove(request, data);
  }
}
INSTANTIATE_TEST_SUITE_P(Parts, KvCodesGrid, testing::Range(0, kParts));

TEST_F(KvProof, RepeatsHistogramsBitForBit) {
  KvRequest request = Wanted(KvOp::kAttention, "cq-1", "cq-1", 2, 1, 128, 500);
  request.pins.key_compute = request.pins.value_compute = 1;
  VerifyOptions reversed;
  reversed.reverse_warps = true;
  EXPECT_EQ(Prove(request).output_hash, Prove(request, {}, reversed).output_hash);
}

TEST(KvCodes, NameWhatTheyCannotServe) {
  KvRequest request = Wanted(KvOp::kAttention, "kv-int4", "cq-2", 2, 1, 128, 500);
  request.pins.key_compute = 1;
  EXPECT_THROW(Generate(request), Error);
  request.shape.key = ParseFormat("cq-2");
  request.shape.keys_before_rope = true;
  EXPECT_THROW(Generate(request), Error);
}

constexpr const char* kInt4Groups20 =
    R"({"name":"int4-g20-sym","kind":"int","bits":4,"symmetric":true,"scale":"group","group":20})";

// Encoding, each format on both sides; ragged heads, codes that cross words, prompts and single tokens.
struct Append {
  const char* key;
  const char* value;
  int head_dim;
  int tokens;
  Reach reach;
  Turn turn;
  DType activation = DType::kF16;
  bool fresh = false;
};
class KvAppends : public KvProof, public testing::WithParamInterface<Append> {};
TEST_P(KvAppends, EncodeAsTheOracle) {
  const Append& c = GetParam();
  KvRequest request = Wanted(KvOp::kAppend, c.key, c.value, 2, 1, c.head_dim, 150);
  request.q_tokens = request.shape.chunk = c.tokens;
  SetReach(c.reach, request.shape);
  SetTurn(c.turn, request.shape);
  request.shape.exact_chunk = c.fresh;
  request.activation = c.activation;
  KvProofOptions data;
  data.rows = {{c.tokens, 150}, {c.tokens, c.tokens - 1}, {0, 5}, {1, 1}};
  data.outliers = true;
  Prove(request, data);
}
INSTANTIATE_TEST_SUITE_P(
    Formats, KvAppends,
    testing::Values(Append{"kv-fp16", "kv-int8", 80, 1, {0, 0, 0}, {2, false}},
                    Append{"kv-int4", "kv-bf16", 112, 11, {3, 20, 0}, {2, false}, DType::kBF16},
                    Append{"cq-4", "cq-2", 128, 1, {0, 0, 0}, {2, false}},
                    Append{"cq-1", "cq-4", 64, 13, {0, 17, 0}, {1, true}},
                    Append{"VQ<3,5,3>-head", kInt4Groups20, 96, 9, {2, 0, 0}, {0, false}},
                    Append{"VQ<16,10,2>-head", "VQ<1,4,1>-head", 64, 1, {0, 0, 0}, {1, false}, DType::kBF16},
                    Append{"int8-row", "VQ<4,12,1>-head", 18 * 4, 10, {1, 4, 0}, {2, true}},
                    Append{"cq-2", "kv-int4", 64, 21, {3, 5, 0}, {2, false}, DType::kF16, true}),
    [](const auto& tested) { return std::to_string(tested.index); });

// Prompts of ragged tiles, over stored tokens and over fresh ones, on the same grid.
constexpr int kPromptTokens[] = {1, 9, 33, 70};

std::vector<std::vector<int>> PromptRows() {
  return test::PairwiseRows({7, 7, 6, 6, 4, 4, 6, 5, 2, kDataKinds, 2});
}

void PromptCase(const std::vector<int>& row, KvRequest& request, KvProofOptions& data) {
  request =
      Wanted(KvOp::kPrefill, kFormats[row[0]], kFormats[row[1]], 1, kGroups[row[2]], kHeadDims[row[3]], 160);
  request.shape.page_tokens = kPages[row[4]];
  request.q_tokens = request.shape.chunk = kPromptTokens[row[5]];
  SetReach(kReaches[row[6]], request.shape);
  SetTurn(kTurns[row[7]], request.shape);
  request.activation = row[8] == 1 ? DType::kBF16 : DType::kF16;
  request.shape.exact_chunk = row[10] == 1;
  // A chunk behind stored tokens, one from the beginning on, one longer than its sequence, none.
  data.rows = {{request.q_tokens, 160},
               {request.q_tokens, request.q_tokens},
               {std::min(3, request.q_tokens), 2},
               {1, 0}};
  data.outliers = row[9] == kOutliers;
  data.query_scale = row[9] == kLargeLogits ? 30.0f : 1.0f;
}

class KvPromptGrid : public KvProof, public testing::WithParamInterface<int> {};
TEST_P(KvPromptGrid, AgreesWithTheOracle) {
  const std::vector<std::vector<int>> rows = PromptRows();
  for (size_t i = static_cast<size_t>(GetParam()); i < rows.size(); i += kParts) {
    KvRequest request;
    KvProofOptions data;
    PromptCase(rows[i], request, data);
    SCOPED_TRACE(fmt::format("row {}: {}", i, fmt::join(rows[i], " ")));
    Prove(request, data);
  }
}
INSTANTIATE_TEST_SUITE_P(Parts, KvPromptGrid, testing::Range(0, kParts));

// Heads that are no whole steps of an mma, subvectors and groups that the named formats lack.
struct Prefill {
  const char* key;
  const char* value;
  int group;
  int head_dim;
  int tokens;
  Reach reach;
  Turn turn;
};
class KvPrefills : public KvProof, public testing::WithParamInterface<Prefill> {};
TEST_P(KvPrefills, AgreeWithTheOracle) {
  const Prefill& c = GetParam();
  KvRequest request = Wanted(KvOp::kPrefill, c.key, c.value, 2, c.group, c.head_dim, 150);
  request.q_tokens = request.shape.chunk = c.tokens;
  SetReach(c.reach, request.shape);
  SetTurn(c.turn, request.shape);
  request.shape.exact_chunk = true;
  KvProofOptions data;
  data.rows = {{c.tokens, 150}, {c.tokens, c.tokens}, {1, 0}, {3, 70}};
  Prove(request, data);
}
INSTANTIATE_TEST_SUITE_P(
    Formats, KvPrefills,
    testing::Values(Prefill{"VQ<3,5,2>-head", kInt4Groups20, 2, 72, 31, {4, 0, 50}, {1, true}},
                    Prefill{"VQ<1,4,1>-head", "VQ<4,12,1>-head", 16, 8, 13, {2, 5, 0}, {0, false}},
                    Prefill{"VQ<16,10,1>-head", "int8-row", 3, 48, 17, {0, 0, 0}, {2, true}}),
    [](const auto& tested) { return std::to_string(tested.index); });

TEST_F(KvProof, RepeatsPromptsBitForBit) {
  KvRequest request = Wanted(KvOp::kPrefill, "cq-2", "kv-int4", 2, 4, 128, 200);
  request.q_tokens = request.shape.chunk = 40;
  request.shape.exact_chunk = true;
  VerifyOptions reversed;
  reversed.reverse_warps = true;
  EXPECT_EQ(Prove(request).output_hash, Prove(request, {}, reversed).output_hash);
}

}  // namespace
}  // namespace vqllm
