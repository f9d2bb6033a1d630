// A decode step of a whole model: random weights in the shape of SmolLM2-135M, one sequence, an fp16 KV
// cache. `GB/s` counts the weights that a step reads; "of_stream" is its share of a plain read of memory in
// the same minute. One model has 270 MB in fp16, about what the largest caches hold: two are walked through
// in turn.
//
//   decode_bench --benchmark_filter='decode/(fp16|int4-g64)/threads:2'
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bench/random_weights.h"
#include "bench/stream.h"
#include "runtime/decoder.h"
#include "runtime/model/load.h"

namespace vqllm {
namespace {

constexpr int64_t kContext = 64;
constexpr int kCopies = 2;

ModelConfig SmolLm2() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.hidden = 576;
  config.intermediate = 1536;
  config.layers = 30;
  config.heads = 9;
  config.kv_heads = 3;
  config.head_dim = 64;
  config.vocab = 49152;
  config.max_positions = kContext;
  config.rope.theta = 100000;
  config.tied_embeddings = true;
  return config;
}

/// All matrices of the layers in `format`; embedding and lm_head in fp16, as quantising leaves them.
Model RandomModel(const Format& format) {
  Model model;
  model.config = SmolLm2();
  const ModelConfig& config = model.config;
  model.embedding = bench::RandomWeights(ParseFormat("fp16"), config.vocab, config.hidden);
  model.lm_head = model.embedding;
  model.final_norm.assign(static_cast<size_t>(config.hidden), 0.01f);
  for (int i = 0; i < config.layers; ++i) {
    LayerWeights layer;
    layer.attention_norm.assign(static_cast<size_t>(config.hidden), 0.01f);
    layer.mlp_norm = layer.attention_norm;
    for (const LinearSlot& slot : LinearSlots()) {
      const auto [rows, cols] = LinearShape(config, slot);
      (layer.*slot.member).weights = bench::RandomWeights(format, rows, cols);
    }
    model.layers.push_back(std::move(layer));
  }
  return model;
}

void DecodeStep(benchmark::State& state, const std::string& format, int threads) {
  SetThreads(threads);
  const std::shared_ptr<Device> device = NewCpuDevice();
  std::vector<std::unique_ptr<Decoder>> copies;
  std::vector<std::unique_ptr<KvCache>> caches;
  for (int i = 0; i < kCopies; ++i) {
    copies.push_back(std::make_unique<Decoder>(device, RandomModel(ParseFormat(format)), kContext));
    caches.push_back(std::make_unique<KvCache>(*device, copies.back()->config(), KvCacheSpec{}, kContext, 1));
  }
  std::vector<int> slots(kCopies, -1);
  const int32_t token = 17;
  std::vector<float> logits;
  std::vector<double> times;
  const double before = bench::StreamRate(threads);
  size_t next = 0;
  for (auto _ : state) {
    KvCache& cache = *caches[next];
    int& slot = slots[next];
    if (slot >= 0 && cache.Length(slot) == kContext) {
      cache.FreeSequence(slot);
      slot = -1;
    }
    if (slot < 0) slot = cache.NewSequence();
    const DecoderInput input{.slot = slot, .tokens = {&token, 1}, .logits = 1};
    const auto start = std::chrono::steady_clock::now();
    copies[next]->Run(cache, {&input, 1}, logits);
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    next = (next + 1) % kCopies;
  }
  const double stream = (before + bench::StreamRate(threads)) / 2;
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  const double median = times[times.size() / 2];
  const double rate = static_cast<double>(copies[0]->bytes_per_step()) / median;
  state.SetLabel(copies[0]->Kernel(1));
  state.counters["tokens/s"] = 1 / median;
  state.counters["MB"] = static_cast<double>(copies[0]->bytes_per_step()) * 1e-6;
  state.counters["GB/s"] = rate * 1e-9;
  state.counters["stream_GB/s"] = stream * 1e-9;
  state.counters["of_stream"] = rate / stream;
}

const bool registered = [] {
  for (const int threads : {1, 2}) {
    for (const char* format : {"fp16", "int8-g64", "int4-g64", "int2-g64", "VQ<4,4,2>-g64", "VQ<8,4,4>-g64",
                               "aqlm-2x8", "gptvq-2", "quip-2"}) {
      benchmark::RegisterBenchmark(fmt::format("decode/{}/threads:{}", format, threads).c_str(),
                                   [=](benchmark::State& state) { DecodeStep(state, format, threads); })
          ->UseRealTime()
          ->MinTime(1);
    }
  }
  return true;
}();

}  // namespace
}  // namespace vqllm
