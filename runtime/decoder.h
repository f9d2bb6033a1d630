#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/kv_cache.h"
#include "runtime/model/model.h"
#include "vq/base/view.h"

namespace vqllm {

/// The next tokens of one sequence.
struct DecoderInput {
  int slot = 0;  ///< of the KvCache
  std::span<const int32_t> tokens;
  /// How many of the last tokens give logits: 0 (a prompt's early piece), 1 (sampling), or more (perplexity).
  int64_t logits = 1;
};

/// A Llama-family decoder on a device: the weights, loaded once, and the loop over layers. KV caches stand
/// apart, so that several of them, in different formats, can share the weights.
class Decoder {
 public:
  /// Loads the weights of `model` onto `device`; the host model is not needed afterwards, except that a CPU
  /// shares the memory of dense tensors. `context`: positions that sequences may reach; `batch_tokens`:
  /// tokens that go through the layers at once.
  Decoder(std::shared_ptr<Device> device, const Model& model, int64_t context, int64_t batch_tokens = 512);

  /// Appends the tokens of every input to its sequence and writes the asked logits, [rows, vocab] in the
  /// order of the inputs. Throws Error on token ids out of range and on sequences that would pass the
  /// context; nothing is appended then.
  void Run(KvCache& cache, std::span<const DecoderInput> inputs, std::vector<float>& logits);

  /// Called for each layer and batch with K and V [tokens, kv_heads * head_dim] before rotation, on the host,
  /// and Q beside them; for calibration.
  struct Observation {
    int layer;
    MatrixView<const float> q, k, v;
    std::span<const KvRow> rows;
  };
  std::function<void(const Observation&)> observer;

  const ModelConfig& config() const { return config_; }
  Device& device() { return *device_; }
  int64_t context() const { return context_; }
  const RopeTable& rope() const { return rope_; }
  /// Bytes of weights that one decode step reads: all matrices, and lm_head.
  int64_t bytes_per_step() const;
  /// The kernel of the first layer's matrices for m rows, for reports.
  std::string Kernel(int64_t m) const;

 private:
  struct Layer {
    std::unique_ptr<DeviceVector> attention_norm, mlp_norm;
    std::unique_ptr<DeviceMatrix> q, k, v, o, gate, up, down;
  };
  struct Buffers {
    std::unique_ptr<Activation> x, h, q, k, v, attention, gate, up, picked, picked_norm, logits;
  };

  void CheckInputs(const KvCache& cache, std::span<const DecoderInput> inputs) const;
  void RunBatch(KvCache& cache, const Batch& batch, std::vector<float>& logits);
  void RunLayers(KvCache& cache, std::span<const KvRow> rows, int64_t count);
  void Observe(int layer, std::span<const KvRow> rows, int64_t count);
  /// Logits of the picked tokens [begin, begin + count) into buffers_.logits.
  void Head(int64_t begin, int64_t count);

  std::shared_ptr<Device> device_;
  ModelConfig config_;
  int64_t context_;
  int64_t batch_tokens_;
  RopeTable rope_;
  int64_t key_;  // stands for this decoder in what the device records
  std::unique_ptr<DeviceRope> device_rope_;
  std::unique_ptr<DeviceTable> embedding_;
  std::vector<Layer> layers_;
  std::unique_ptr<DeviceVector> final_norm_;
  std::unique_ptr<DeviceMatrix> lm_head_;
  Buffers buffers_;
};

}  // namespace vqllm
