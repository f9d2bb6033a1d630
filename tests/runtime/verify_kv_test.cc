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
  const Reach& reach = kReaches[row[6]];
  request.shape.sinks = reach.sinks;
  request.shape.window = reach.window;
  request.shape.sliding_window = reach.sliding;
  request.shape.rope_dim = request.shape.head_dim / 2 * kTurns[row[7]].share;
  request.shape.keys_before_rope = kTurns[row[7]].before;
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
};
class KvAppends : public KvProof, public testing::WithParamInterface<Append> {};
TEST_P(KvAppends, EncodeAsTheOracle) {
  const Append& c = GetParam();
  KvRequest request = Wanted(KvOp::kAppend, c.key, c.value, 2, 1, c.head_dim, 150);
  request.q_tokens = request.shape.chunk = c.tokens;
  request.shape.sinks = c.reach.sinks;
  request.shape.window = c.reach.window;
  request.shape.rope_dim = c.head_dim / 2 * c.turn.share;
  request.shape.keys_before_rope = c.turn.before;
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
                    Append{"int8-row", "VQ<4,12,1>-head", 18 * 4, 10, {1, 4, 0}, {2, true}}),
    [](const auto& tested) { return std::to_string(tested.index); });

}  // namespace
}  // namespace vqllm
