#include "kernels/cpu/kv_store.h"

#include <algorithm>

#include "vq/base/check.h"

namespace vqllm::cpu {
namespace {

Format Fp16() {
  Format format;
  format.name = "fp16";
  format.dtype = DType::kF16;
  return format;
}

}  // namespace

KvStore::KvStore(KvLayerSpec spec, int64_t pages, int slots)
    : spec_(std::move(spec)),
      pages_(pages),
      key_codec_(MakeKvCodec(spec_.key, spec_.kv_heads, spec_.head_dim)),
      value_codec_(MakeKvCodec(spec_.value, spec_.kv_heads, spec_.head_dim)),
      exact_codec_(MakeRowCodec(Fp16(), spec_.head_dim)),
      keys_(static_cast<size_t>(pages * spec_.kv_heads * spec_.page_tokens * key_codec_->bytes())),
      values_(static_cast<size_t>(pages * spec_.kv_heads * spec_.page_tokens * value_codec_->bytes())),
      windows_(static_cast<size_t>(slots),
               KvWindow(spec_.kv_heads, spec_.head_dim, spec_.sinks, spec_.window)) {
  VQLLM_CHECK(spec_.kv_heads >= 1 && spec_.head_dim >= 1 && spec_.page_tokens >= 1 && spec_.sinks >= 0 &&
                  spec_.window >= 0 && spec_.sliding_window >= 0,
              "{} heads of {}, pages of {}", spec_.kv_heads, spec_.head_dim, spec_.page_tokens);
}

int64_t KvStore::RecordIndex(const KvRow& row, int head, int64_t position) const {
  const size_t at = static_cast<size_t>(position / spec_.page_tokens);
  VQLLM_CHECK(at < row.pages.size(), "position {} of {} pages", position, row.pages.size());
  const int64_t page = row.pages[at];
  VQLLM_CHECK(page >= 0 && page < pages_, "page {} of {}", page, pages_);
  return (page * spec_.kv_heads + head) * spec_.page_tokens + position % spec_.page_tokens;
}

uint8_t* KvStore::Record(KvPart part, const KvRow& row, int head, int64_t position) {
  const int64_t index = RecordIndex(row, head, position);
  return part == KvPart::kKey ? keys_.data() + index * key_codec_->bytes()
                              : values_.data() + index * value_codec_->bytes();
}

void KvStore::Addresses(KvPart part, const KvRow& row, int head, const KvRun& run, int64_t begin, int64_t n,
                        const uint8_t** addresses) const {
  const int64_t count = std::min(n + kRowsAhead, run.end - begin);
  if (run.exact) {
    const KvWindow& window = windows_[static_cast<size_t>(row.slot)];
    for (int64_t t = 0; t < count; ++t) {
      const uint16_t* halves = window.Find(begin + t, head);
      VQLLM_CHECK(halves != nullptr, "position {} is not kept as fp16", begin + t);
      addresses[t] =
          reinterpret_cast<const uint8_t*>(part == KvPart::kKey ? halves : halves + spec_.head_dim);
    }
  } else {
    const uint8_t* base = part == KvPart::kKey ? keys_.data() : values_.data();
    const int64_t bytes = codec(part, false).bytes();
    for (int64_t t = 0; t < count;) {
      const uint8_t* record = base + RecordIndex(row, head, begin + t) * bytes;
      const int64_t stop = std::min(count, t + spec_.page_tokens - (begin + t) % spec_.page_tokens);
      for (; t < stop; ++t, record += bytes) addresses[t] = record;
    }
  }
  std::fill(addresses + count, addresses + n + kRowsAhead, addresses[count - 1]);
}

int KvStore::Runs(int64_t position, int64_t begin, int64_t end, KvRun* runs) const {
  const int64_t sliding =
      spec_.sliding_window > 0 ? std::max<int64_t>(0, position - spec_.sliding_window + 1) : 0;
  const int64_t recent = std::max<int64_t>(0, position - spec_.window + 1);
  const int64_t sinks = std::min<int64_t>(spec_.sinks, position + 1);
  const int64_t stored = std::max(sinks, sliding);
  const int64_t exact = std::max(stored, recent);
  const KvRun all[] = {
      {0, sinks, true}, {stored, std::min(recent, position + 1), false}, {exact, position + 1, true}};
  int count = 0;
  for (const KvRun& run : all) {
    const KvRun cut{std::max(run.begin, begin), std::min(run.end, end), run.exact};
    if (cut.begin >= cut.end) continue;
    if (count > 0 && runs[count - 1].end == cut.begin && runs[count - 1].exact == cut.exact) {
      runs[count - 1].end = cut.end;
    } else {
      runs[count++] = cut;
    }
  }
  return count;
}

int64_t KvStore::bytes_per_token() const {
  return (key_codec_->bytes() + value_codec_->bytes()) * spec_.kv_heads;
}

int64_t KvStore::fixed_bytes() const {
  int64_t bytes = key_codec_->fixed_bytes() + value_codec_->fixed_bytes();
  for (const KvWindow& window : windows_) bytes += window.bytes();
  return bytes;
}

}  // namespace vqllm::cpu
