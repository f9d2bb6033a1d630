#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_table.h"
#include "kernels/cpu/kv_codec.h"
#include "kernels/cpu/kv_encode.h"
#include "vq/base/check.h"
#include "vq/base/math.h"

namespace vqllm::cpu {
namespace {

// Lookup tables are made for pieces of the context with at least as many tokens as a codebook has entries:
// below that, making them costs more than decoding the keys. Floats of lookup tables beyond which they leave
// the second-level cache and lose to decoding.
constexpr int64_t kLookupFloats = 1 << 18;

/// One stage of a side: the codebooks of all KV heads and subvectors, in the two orders that are read.
struct Stage {
  int64_t entries = 0;
  int64_t padded = 0;
  int code_bytes = 1;
  int64_t offset = 0;             // of its codes in a record
  std::vector<Half> rows;         // [kv_heads * subvectors][entries][v]
  std::vector<float> columns;     // [kv_heads * subvectors][v][padded]
  std::vector<float> half_norms;  // [kv_heads * subvectors][padded]
};

/// Record: for each stage its codes, one for each subvector of the head, a byte or two (above 256 entries)
/// each.
class TableCodec final : public KvCodec {
 public:
  TableCodec(const KvSide& side, int kv_heads, int head_dim)
      : KvCodec(RecordBytes(side.format, head_dim), head_dim),
        v_(side.format.subvector),
        subvectors_(head_dim / v_) {
    VQLLM_CHECK(head_dim % v_ == 0, "subvector {} of heads of {}", v_, head_dim);
    const int64_t books = int64_t{kv_heads} * subvectors_;
    int64_t offset = 0;
    for (size_t stage = 0; stage < side.codebooks.size(); ++stage) {
      stages_.push_back(MakeStage(side.codebooks[stage], side.format.entries[stage], books));
      stages_.back().offset = offset;
      offset += subvectors_ * stages_.back().code_bytes;
      longest_ = std::max(longest_, stages_.back().entries);
    }
    for (int head = 0; head < kv_heads; ++head) {
      for (const Stage& stage : stages_) {
        const int64_t book = head * subvectors_;
        views_.push_back({.rows = &stage.rows[static_cast<size_t>(book * stage.entries * v_)].bits,
                          .columns = stage.columns.data() + book * v_ * stage.padded,
                          .entries = stage.entries,
                          .padded = stage.padded,
                          .offset = stage.offset,
                          .code_bytes = stage.code_bytes});
      }
    }
    decodable_ = TableDecodable(Layout(0));
  }

  void Encode(MatrixView<const float> x, int head, uint8_t* const* records) const override {
    std::vector<float> rest(static_cast<size_t>(x.rows * v_));
    std::vector<int32_t> codes(static_cast<size_t>(x.rows));
    for (int64_t s = 0; s < subvectors_; ++s) {
      for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t d = 0; d < v_; ++d) {
          // A NaN is nearest to nothing: it is stored as the entry that is nearest to 0 there.
          const float value = x(t, s * v_ + d);
          rest[static_cast<size_t>(t * v_ + d)] = std::isfinite(value) ? value : 0;
        }
      }
      for (const Stage& stage : stages_) {
        const int64_t book = head * subvectors_ + s;
        NearestCodes(Columns(stage, book), rest.data(), v_, x.rows, codes.data());
        for (int64_t t = 0; t < x.rows; ++t) {
          const int32_t code = codes[static_cast<size_t>(t)];
          const Half* entry = stage.rows.data() + (book * stage.entries + code) * v_;
          for (int64_t d = 0; d < v_; ++d) rest[static_cast<size_t>(t * v_ + d)] -= entry[d];
          uint8_t* to = records[t] + stage.offset + s * stage.code_bytes;
          to[0] = static_cast<uint8_t>(code);
          if (stage.code_bytes == 2) to[1] = static_cast<uint8_t>(code >> 8);
        }
      }
    }
  }

  void Decode(const uint8_t* const* records, int64_t n, int head, MatrixView<float> out) const override {
    if (decodable_) return TableDecode(Layout(head), records, n, out.stride, out.data);
    for (int64_t t = 0; t < n; ++t) {
      const uint8_t* record = records[t];
      bool first = true;
      for (const Stage& stage : stages_) {
        const Half* book = stage.rows.data() + head * subvectors_ * stage.entries * v_;
        for (int64_t s = 0; s < subvectors_; ++s, book += stage.entries * v_) {
          int64_t code = *record++;
          if (stage.code_bytes == 2) code |= *record++ << 8;
          const Half* entry = book + code * v_;
          float* to = out.Row(t) + s * v_;
          for (int64_t d = 0; d < v_; ++d) to[d] = first ? float{entry[d]} : to[d] + entry[d];
        }
        first = false;
      }
    }
  }

  void Prepare(int head, int64_t tokens, PreparedQuad& quad) const override {
    const TableLayout layout = Layout(head);
    const int64_t floats = LookupFloats(layout);
    quad.lookup = tokens >= longest_ && floats <= kLookupFloats;
    if (!quad.lookup) return;
    if (static_cast<int64_t>(quad.tables.size()) < floats) quad.tables.resize(static_cast<size_t>(floats));
    BuildLookup(layout, quad, quad.tables.data());
  }

  void Scores(const PreparedQuad& quad, int head, const uint8_t* const* records, int64_t n,
              float* scores) const override {
    if (!quad.lookup) return KvCodec::Scores(quad, head, records, n, scores);
    LookupScores(Layout(head), quad.tables.data(), records, n, scores);
  }

  void AddValues(const float* weights, int heads, int head, const uint8_t* const* records, int64_t n,
                 float* out) const override {
    if (!decodable_) return KvCodec::AddValues(weights, heads, head, records, n, out);
    TableValues(Layout(head), weights, heads, records, n, out);
  }

  int64_t fixed_bytes() const override {
    int64_t bytes = 0;
    for (const Stage& stage : stages_) bytes += 2 * static_cast<int64_t>(stage.rows.size());
    return bytes;
  }

 private:
  static int64_t RecordBytes(const Format& f, int head_dim) {
    int64_t bytes = 0;
    for (const int entries : f.entries) bytes += head_dim / f.subvector * (entries > 256 ? 2 : 1);
    return bytes;
  }

  Stage MakeStage(const std::vector<Half>& codebooks, int64_t entries, int64_t books) const {
    Stage stage;
    stage.entries = entries;
    stage.padded = RoundUp(entries, kEntryPad);
    stage.code_bytes = entries > 256 ? 2 : 1;
    stage.rows = codebooks;
    VQLLM_CHECK(static_cast<int64_t>(codebooks.size()) == books * entries * v_);
    stage.columns.resize(static_cast<size_t>(books * v_ * stage.padded));
    stage.half_norms.assign(static_cast<size_t>(books * stage.padded),
                            std::numeric_limits<float>::infinity());
    for (int64_t book = 0; book < books; ++book) {
      for (int64_t e = 0; e < entries; ++e) {
        float norm = 0;
        for (int64_t d = 0; d < v_; ++d) {
          const float value = codebooks[static_cast<size_t>((book * entries + e) * v_ + d)];
          stage.columns[static_cast<size_t>((book * v_ + d) * stage.padded + e)] = value;
          norm += value * value;
        }
        stage.half_norms[static_cast<size_t>(book * stage.padded + e)] = norm / 2;
      }
    }
    return stage;
  }

  EntryColumns Columns(const Stage& stage, int64_t book) const {
    return {.values = stage.columns.data() + book * v_ * stage.padded,
            .half_norms = stage.half_norms.data() + book * stage.padded,
            .entries = stage.entries,
            .padded = stage.padded,
            .subvector = v_};
  }

  TableLayout Layout(int head) const {
    return {.subvector = v_,
            .subvectors = subvectors_,
            .bytes = bytes(),
            .stages = {views_.data() + static_cast<size_t>(head) * stages_.size(), stages_.size()}};
  }

  int64_t v_;
  int64_t subvectors_;
  int64_t longest_ = 0;  // entries of the longest codebook
  bool decodable_ = false;
  std::vector<Stage> stages_;
  std::vector<TableStage> views_;  // [kv_heads][stages], into stages_
};

}  // namespace

std::unique_ptr<KvCodec> MakeTableCodec(const KvSide& side, int kv_heads, int head_dim) {
  return std::make_unique<TableCodec>(side, kv_heads, head_dim);
}

}  // namespace vqllm::cpu
