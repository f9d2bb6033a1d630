#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/kv_codec.h"
#include "kernels/cpu/kv_layer.h"
#include "kernels/cpu/kv_window.h"

namespace vqllm::cpu {

/// Positions [begin, end) of a sequence that a query reads from one place.
struct KvRun {
  int64_t begin = 0;
  int64_t end = 0;
  bool exact = false;  ///< from the fp16 copies, else from the pages
  int64_t size() const { return end - begin; }
};

enum class KvPart : uint8_t { kKey, kValue };

/// The memory of a KvLayer, and where a query at a given position finds its tokens.
class KvStore {
 public:
  KvStore(KvLayerSpec spec, int64_t pages, int slots);

  const KvLayerSpec& spec() const { return spec_; }
  KvWindow& window(int slot) { return windows_[static_cast<size_t>(slot)]; }
  const KvWindow& window(int slot) const { return windows_[static_cast<size_t>(slot)]; }
  const KvCodec& codec(KvPart part, bool exact) const {
    return exact ? *exact_codec_ : part == KvPart::kKey ? *key_codec_ : *value_codec_;
  }

  /// Address of a stored record.
  uint8_t* Record(KvPart part, const KvRow& row, int head, int64_t position);
  /// Addresses of the records of positions [begin, begin + n) of a run, and of kRowsAhead more that are worth
  /// a prefetch; the last one is repeated at the end of the run.
  void Addresses(KvPart part, const KvRow& row, int head, const KvRun& run, int64_t begin, int64_t n,
                 const uint8_t** addresses) const;

  /// The parts of [begin, end) that the query at `position` sees, in ascending order; adjacent ones differ in
  /// `exact` or leave a gap. At most kMaxRuns.
  int Runs(int64_t position, int64_t begin, int64_t end, KvRun* runs) const;
  static constexpr int kMaxRuns = 3;

  int64_t bytes_per_token() const;
  int64_t fixed_bytes() const;

 private:
  int64_t RecordIndex(const KvRow& row, int head, int64_t position) const;

  KvLayerSpec spec_;
  int64_t pages_;
  std::unique_ptr<KvCodec> key_codec_;
  std::unique_ptr<KvCodec> value_codec_;
  std::unique_ptr<KvCodec> exact_codec_;  // fp16: windows and sinks
  std::vector<uint8_t> keys_;  // [page][kv head][token][record]: a head's tokens of a page are contiguous
  std::vector<uint8_t> values_;
  std::vector<KvWindow> windows_;  // by slot
};

}  // namespace vqllm::cpu
