#include "runtime/decoder.h"

#include <algorithm>
#include <array>

#include "vq/base/error.h"

namespace vqllm {
namespace {

// Logits of a batch are made a few rows at a time: [rows, vocab] of a whole window would outweigh the model.
constexpr int64_t kLogitRows = 64;

}  // namespace

Decoder::Decoder(std::shared_ptr<Device> device, const Model& model, int64_t context, int64_t batch_tokens)
    : device_(std::move(device)),
      config_(model.config),
      context_(context),
      batch_tokens_(std::min({batch_tokens, std::max<int64_t>(context, 1), kMaxBatchTokens})),
      rope_(MakeRopeTable(model.config.rope, model.config.head_dim, context)),
      key_(device_->NewKey()) {
  if (context < 1) Fail("context: found {}, allowed: at least 1 token", context);
  device_rope_ = device_->LoadRope(rope_);
  embedding_ = device_->LoadTable(model.embedding);
  const auto load = [&](const LinearWeights& linear) {
    return device_->LoadMatrix(linear.weights, linear.bias);
  };
  for (const LayerWeights& from : model.layers) {
    Layer layer;
    layer.attention_norm = device_->LoadVector(from.attention_norm);
    layer.mlp_norm = device_->LoadVector(from.mlp_norm);
    layer.q = load(from.q);
    layer.k = load(from.k);
    layer.v = load(from.v);
    layer.o = load(from.o);
    layer.gate = load(from.gate);
    layer.up = load(from.up);
    layer.down = load(from.down);
    layers_.push_back(std::move(layer));
  }
  final_norm_ = device_->LoadVector(model.final_norm);
  lm_head_ = device_->LoadMatrix(model.lm_head, {});

  const auto operand = [&](int64_t rows, int64_t cols) {
    return device_->NewActivation(rows, cols, ActivationUse::kOperand);
  };
  const int64_t rows = batch_tokens_;
  const int64_t logit_rows = std::min(rows, kLogitRows);
  buffers_.x = device_->NewActivation(rows, config_.hidden, ActivationUse::kSum);
  buffers_.h = operand(rows, config_.hidden);
  buffers_.q = operand(rows, config_.q_width());
  buffers_.k = operand(rows, config_.kv_width());
  buffers_.v = operand(rows, config_.kv_width());
  buffers_.attention = operand(rows, config_.q_width());
  buffers_.gate = operand(rows, config_.intermediate);
  buffers_.up = operand(rows, config_.intermediate);
  buffers_.picked = device_->NewActivation(logit_rows, config_.hidden, ActivationUse::kSum);
  buffers_.picked_norm = operand(logit_rows, config_.hidden);
  buffers_.logits = operand(logit_rows, config_.vocab);
}

void Decoder::CheckInputs(const KvCache& cache, std::span<const DecoderInput> inputs) const {
  for (const DecoderInput& input : inputs) {
    const int64_t length = cache.Length(input.slot) + static_cast<int64_t>(input.tokens.size());
    if (length > context_) Fail("sequence of {} tokens: the context holds {}", length, context_);
    for (const int32_t token : input.tokens) {
      if (token < 0 || token >= config_.vocab)
        Fail("token id {}: allowed: 0 to {}", token, config_.vocab - 1);
    }
  }
}

void Decoder::Run(KvCache& cache, std::span<const DecoderInput> inputs, std::vector<float>& logits) {
  logits.clear();
  CheckInputs(cache, inputs);
  for (const DecoderInput& input : inputs)
    cache.Reserve(input.slot, static_cast<int64_t>(input.tokens.size()));

  // Pieces of the inputs are packed into batches of at most batch_tokens_ tokens.
  std::vector<int32_t> ids;
  std::vector<KvRow> rows;
  std::vector<int64_t> picked;
  const auto flush = [&] {
    if (ids.empty()) return;
    RunBatch(cache, {.ids = ids, .rows = rows, .picked = picked}, logits);
    for (const KvRow& row : rows) cache.Advance(row.slot, row.count);
    ids.clear();
    rows.clear();
    picked.clear();
  };
  for (const DecoderInput& input : inputs) {
    const int64_t total = static_cast<int64_t>(input.tokens.size());
    for (int64_t done = 0; done < total;) {
      const int64_t begin = static_cast<int64_t>(ids.size());
      const int64_t count = std::min(total - done, batch_tokens_ - begin);
      rows.push_back(cache.Row(input.slot, begin, count));
      ids.insert(ids.end(), input.tokens.begin() + done, input.tokens.begin() + done + count);
      for (int64_t t = 0; t < count; ++t) {
        if (done + t >= total - input.logits) picked.push_back(begin + t);
      }
      done += count;
      if (static_cast<int64_t>(ids.size()) == batch_tokens_) flush();
    }
  }
  flush();
}

void Decoder::RunBatch(KvCache& cache, const Batch& batch, std::vector<float>& logits) {
  const int64_t tokens = static_cast<int64_t>(batch.ids.size());
  const int64_t picked = static_cast<int64_t>(batch.picked.size());
  const int64_t first = std::min(picked, buffers_.logits->rows());
  const auto verbs = [&] {
    device_->Embed(*embedding_, *buffers_.x);
    RunLayers(cache, batch.rows, tokens);
    Head(0, first);
  };
  device_->Begin(batch, cache.layer(0));
  if (observer) {
    verbs();
  } else {
    device_->Repeat(std::array{key_, cache.key(), tokens, picked}, verbs);
  }
  for (int64_t begin = 0; begin < picked; begin += buffers_.logits->rows()) {
    const int64_t count = std::min(buffers_.logits->rows(), picked - begin);
    if (begin > 0) Head(begin, count);
    const size_t at = logits.size();
    logits.resize(at + static_cast<size_t>(count * config_.vocab));
    device_->Download(*buffers_.logits, count, logits.data() + at);
  }
}

void Decoder::RunLayers(KvCache& cache, std::span<const KvRow> rows, int64_t count) {
  Device& d = *device_;
  Buffers& b = buffers_;
  for (int index = 0; index < config_.layers; ++index) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    d.RmsNorm(*b.x, *layer.attention_norm, config_.norm_epsilon, count, *b.h);
    d.MatMul(*b.h, count,
             std::array{MatMulOutput{layer.q.get(), b.q.get()}, MatMulOutput{layer.k.get(), b.k.get()},
                        MatMulOutput{layer.v.get(), b.v.get()}});
    if (observer) Observe(index, rows, count);
    d.KvAppend(cache.layer(index), *b.k, *b.v, *device_rope_);
    d.Attend(cache.layer(index), *b.q, *device_rope_, *b.attention);
    d.MatMul(*b.attention, count, std::array{MatMulOutput{layer.o.get(), b.h.get()}});
    d.Add(*b.h, count, *b.x);

    d.RmsNorm(*b.x, *layer.mlp_norm, config_.norm_epsilon, count, *b.h);
    d.MatMul(
        *b.h, count,
        std::array{MatMulOutput{layer.gate.get(), b.gate.get()}, MatMulOutput{layer.up.get(), b.up.get()}});
    d.SiluMul(*b.gate, *b.up, count, *b.gate);
    d.MatMul(*b.gate, count, std::array{MatMulOutput{layer.down.get(), b.h.get()}});
    d.Add(*b.h, count, *b.x);
  }
}

void Decoder::Observe(int layer, std::span<const KvRow> rows, int64_t count) {
  std::vector<float> q(static_cast<size_t>(count * config_.q_width()));
  std::vector<float> k(static_cast<size_t>(count * config_.kv_width()));
  std::vector<float> v(k.size());
  device_->Download(*buffers_.q, count, q.data());
  device_->Download(*buffers_.k, count, k.data());
  device_->Download(*buffers_.v, count, v.data());
  observer({.layer = layer,
            .q = {q.data(), count, config_.q_width()},
            .k = {k.data(), count, config_.kv_width()},
            .v = {v.data(), count, config_.kv_width()},
            .rows = rows});
}

void Decoder::Head(int64_t begin, int64_t count) {
  if (count == 0) return;
  device_->Gather(*buffers_.x, begin, count, *buffers_.picked);
  device_->RmsNorm(*buffers_.picked, *final_norm_, config_.norm_epsilon, count, *buffers_.picked_norm);
  device_->MatMul(*buffers_.picked_norm, count,
                  std::array{MatMulOutput{lm_head_.get(), buffers_.logits.get()}});
}

int64_t Decoder::bytes_per_step() const {
  int64_t bytes = lm_head_->bytes();
  for (const Layer& layer : layers_) {
    for (const auto* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      bytes += (*matrix)->bytes();
    }
  }
  return bytes;
}

std::string Decoder::Kernel(int64_t m) const { return layers_.front().up->Kernel(m); }

}  // namespace vqllm
