#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/model/model.h"

namespace vqllm {

/// "kv-fp16", "cq-4", any format of a KV cache; or "K/V" with the two apart, such as "kv-int8/cq-2".
/// Throws Error on formats that a KV cache cannot have (rotation, tile scope, ...).
KvCacheSpec ParseKvCacheSpec(std::string_view text);

/// Throws Error unless a KV cache can have the format.
void CheckKvFormat(const Format& format);

/// Keys and values of the sequences of one decoder: pages of page_tokens tokens, handed out as sequences
/// grow.
class KvCache {
 public:
  /// Room for `slots` sequences that together hold `tokens` tokens, none of them more than `context` (0: as
  /// many as there are). Throws Error where the spec does not fit
  /// the model: codebooks missing or of another shape, a subvector that does not divide head_dim.
  KvCache(Device& device, const ModelConfig& config, const KvCacheSpec& spec, int64_t tokens, int slots,
          int64_t context = 0);

  /// A new, empty sequence: a slot in [0, slots). Throws Error where all are taken.
  int NewSequence();
  void FreeSequence(int slot);
  int64_t Length(int slot) const { return sequences_[static_cast<size_t>(slot)].length; }

  /// Takes pages for `count` more tokens of the sequence. Throws Error where none are left and where the
  /// sequence would pass the context; nothing is taken then.
  void Reserve(int slot, int64_t count);
  /// The row of a batch for the next `count` tokens of a sequence, at activation rows [begin, begin + count).
  /// Reserve first.
  KvRow Row(int slot, int64_t begin, int64_t count) const;
  /// Counts `count` tokens as appended.
  void Advance(int slot, int64_t count);

  DeviceKv& layer(int index) { return *layers_[static_cast<size_t>(index)]; }
  const KvCacheSpec& spec() const { return spec_; }
  /// Stands for this cache in what the device records.
  int64_t key() const { return key_; }
  int64_t bytes_per_token() const;  ///< all layers
  int64_t fixed_bytes() const;      ///< all layers

 private:
  struct Sequence {
    bool used = false;
    int64_t length = 0;
    std::vector<int32_t> pages;
  };
  Sequence& Used(int slot);

  KvCacheSpec spec_;
  int64_t key_;
  int64_t context_;
  std::vector<std::unique_ptr<DeviceKv>> layers_;
  std::vector<Sequence> sequences_;
  std::vector<int32_t> free_pages_;
};

}  // namespace vqllm
