#include "runtime/kv_cache.h"

#include <algorithm>

#include "vq/base/check.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

void CheckSide(const char* side, const Format& format, const ModelConfig& config,
               const std::vector<std::vector<Half>>* codebooks, int layer) {
  if (format.kind != FormatKind::kTable) return;
  if (config.head_dim % format.subvector != 0) {
    Fail("KV format {}: subvector {} does not divide head_dim {}", format.name, format.subvector,
         config.head_dim);
  }
  if (codebooks == nullptr) {
    Fail("KV format {} needs codebooks: train them on calibration text (quantize --kv {} --calib FILE)",
         format.name, format.name);
  }
  const int64_t books = config.kv_width() / format.subvector;
  for (int stage = 0; stage < format.stages(); ++stage) {
    const int64_t wanted = books * format.entries[static_cast<size_t>(stage)] * format.subvector;
    const int64_t found = static_cast<size_t>(stage) < codebooks->size()
                              ? static_cast<int64_t>((*codebooks)[static_cast<size_t>(stage)].size())
                              : 0;
    if (found != wanted) {
      Fail("{} codebooks of layer {}, stage {}: found {} values, allowed: {}", side, layer, stage, found,
           wanted);
    }
  }
}

}  // namespace

void CheckKvFormat(const Format& format) {
  const bool table = format.kind == FormatKind::kTable;
  const bool good = format.kind == FormatKind::kDense ||
                    (format.kind == FormatKind::kInt && (format.bits == 4 || format.bits == 8)) ||
                    (table && format.scope.kind == ScopeKind::kHeadChannel && format.axis == Axis::kIn &&
                     format.scale == ScaleKind::kNone);
  if (!good || format.rotation || format.permutation || format.input_affine) {
    Fail("KV format {}: allowed: fp32, fp16, bf16, int8, int4, or VQ with scope head-channel and no scale",
         format.name);
  }
}

KvCacheSpec ParseKvCacheSpec(std::string_view text) {
  KvCacheSpec spec;
  spec.name = text;
  const size_t slash = text.find('/');
  spec.key = ParseFormat(text.substr(0, slash));
  spec.value = slash == std::string_view::npos ? spec.key : ParseFormat(text.substr(slash + 1));
  CheckKvFormat(spec.key);
  CheckKvFormat(spec.value);
  return spec;
}

KvCache::KvCache(Device& device, const ModelConfig& config, const KvCacheSpec& spec, int64_t tokens,
                 int slots, int64_t context)
    : spec_(spec),
      key_(device.NewKey()),
      context_(context > 0 ? context : tokens),
      sequences_(static_cast<size_t>(slots)) {
  // Every sequence may leave its last page partly empty.
  const int64_t pages = (tokens + spec.page_tokens - 1) / spec.page_tokens + slots - 1;
  for (int layer = 0; layer < config.layers; ++layer) {
    const KvCodebooks* codebooks = static_cast<size_t>(layer) < spec.codebooks.size()
                                       ? &spec.codebooks[static_cast<size_t>(layer)]
                                       : nullptr;
    CheckSide("key", spec.key, config, codebooks ? &codebooks->key : nullptr, layer);
    CheckSide("value", spec.value, config, codebooks ? &codebooks->value : nullptr, layer);
    KvLayerSpec layer_spec;
    layer_spec.key.format = spec.key;
    layer_spec.value.format = spec.value;
    if (codebooks) {
      layer_spec.key.codebooks = codebooks->key;
      layer_spec.value.codebooks = codebooks->value;
    }
    layer_spec.kv_heads = config.kv_heads;
    layer_spec.head_dim = config.head_dim;
    layer_spec.page_tokens = spec.page_tokens;
    layer_spec.sinks = spec.sinks;
    layer_spec.window = spec.window;
    layer_spec.keys_before_rope = spec.keys_before_rope;
    layer_spec.sliding_window = config.sliding_window;
    layers_.push_back(device.NewKv(
        layer_spec, {.pages = pages, .slots = slots, .query_heads = config.heads, .context = context_}));
  }
  for (int64_t page = pages; page-- > 0;) free_pages_.push_back(static_cast<int32_t>(page));
}

KvCache::Sequence& KvCache::Used(int slot) {
  VQLLM_CHECK(slot >= 0 && static_cast<size_t>(slot) < sequences_.size() &&
                  sequences_[static_cast<size_t>(slot)].used,
              "slot {}", slot);
  return sequences_[static_cast<size_t>(slot)];
}

int KvCache::NewSequence() {
  const auto free =
      std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.used; });
  if (free == sequences_.end()) Fail("KV cache: all {} sequences are taken", sequences_.size());
  *free = Sequence{.used = true, .length = 0, .pages = {}};
  return static_cast<int>(free - sequences_.begin());
}

void KvCache::FreeSequence(int slot) {
  Sequence& sequence = Used(slot);
  free_pages_.insert(free_pages_.end(), sequence.pages.rbegin(), sequence.pages.rend());
  sequence = Sequence{};
}

void KvCache::Reserve(int slot, int64_t count) {
  Sequence& sequence = Used(slot);
  if (sequence.length + count > context_)
    Fail("KV cache: sequence of {} tokens: the cache holds {}", sequence.length + count, context_);
  const int64_t wanted = (sequence.length + count + spec_.page_tokens - 1) / spec_.page_tokens;
  const int64_t more = wanted - static_cast<int64_t>(sequence.pages.size());
  if (more > static_cast<int64_t>(free_pages_.size())) {
    Fail("KV cache: {} more pages of {} tokens wanted, {} left", more, spec_.page_tokens, free_pages_.size());
  }
  for (int64_t i = 0; i < more; ++i) {
    sequence.pages.push_back(free_pages_.back());
    free_pages_.pop_back();
  }
}

KvRow KvCache::Row(int slot, int64_t begin, int64_t count) const {
  const Sequence& sequence = const_cast<KvCache*>(this)->Used(slot);
  return {.begin = begin, .count = count, .past = sequence.length, .slot = slot, .pages = sequence.pages};
}

void KvCache::Advance(int slot, int64_t count) { Used(slot).length += count; }

int64_t KvCache::bytes_per_token() const {
  int64_t bytes = 0;
  for (const auto& layer : layers_) bytes += layer->bytes_per_token();
  return bytes;
}

int64_t KvCache::fixed_bytes() const {
  int64_t bytes = 0;
  for (const auto& layer : layers_) bytes += layer->fixed_bytes();
  return bytes;
}

}  // namespace vqllm
