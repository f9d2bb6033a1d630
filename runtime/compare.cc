#include "runtime/compare.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <string>

#include "runtime/calibrate.h"
#include "runtime/perplexity.h"
#include "runtime/sampler.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

// Log-probabilities of the reference are kept for all scored tokens; this bounds them.
constexpr int64_t kReferenceBytes = int64_t{3} << 29;

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Starts a new count of the process's peak memory, where the kernel allows it.
void ResetPeakMemory() { std::ofstream("/proc/self/clear_refs") << "5"; }

int64_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

/// What the reference said of every scored token.
struct Reference {
  std::vector<float> logprobs;  // [tokens, vocab]
  std::vector<int32_t> top;     // [tokens]
};

/// KL(reference || candidate) of one token, in nats.
double Divergence(std::span<const float> reference, std::span<const float> candidate) {
  double sum = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double p = std::exp(static_cast<double>(reference[i]));
    if (p > 0) sum += p * (static_cast<double>(reference[i]) - candidate[i]);
  }
  return std::max(sum, 0.0);  // rounding of equal distributions
}

class Comparison {
 public:
  Comparison(const Model& model, std::shared_ptr<Device> device, const CompareOptions& options,
             const std::vector<int32_t>& text, const std::vector<int32_t>& calibration,
             std::shared_ptr<Device> calibration_device)
      : model_(model),
        device_(std::move(device)),
        calibration_device_(calibration_device ? std::move(calibration_device) : device_),
        options_(options),
        calibration_(calibration) {
    const int64_t bytes = model.config.vocab * int64_t{sizeof(float)};
    const int64_t limit = std::max<int64_t>(kReferenceBytes / bytes, 2);
    const int64_t wanted = options.max_tokens > 0 ? std::min(options.max_tokens, limit) : limit;
    const auto scored = std::span(text).first(std::min<size_t>(text.size(), static_cast<size_t>(wanted)));
    windows_ = StridedWindows(scored, FirstToken(model), options.context, options.context);
  }

  std::vector<CompareRow> Run() {
    TrainCodebooks();
    MakeReference();
    std::vector<CompareRow> rows;
    for (const std::string& name : options_.weights) {
      const Model quantised =
          name == "original" ? model_ : QuantizeModel(model_, ParseFormat(name), options_.seed, true).model;
      Decoder decoder(device_, quantised, Context());
      for (const std::string& kv : options_.kv) rows.push_back(RunPair(name, quantised, decoder, kv));
    }
    return rows;
  }

 private:
  int64_t Context() const { return std::max(options_.context, kSpeedPrompt + options_.decode_tokens + 1); }

  void TrainCodebooks() {
    Decoder decoder(calibration_device_, model_, Context());
    for (const std::string& name : options_.kv) {
      KvCacheSpec& kv = kv_[name] = ParseKvCacheSpec(name);
      kv.window = options_.kv_window;
      kv.sinks = options_.kv_sinks;
      kv.keys_before_rope = options_.keys_before_rope;
      TrainKvCodebooks(decoder, calibration_, FirstToken(model_), {.seed = options_.seed}, kv);
    }
  }

  void MakeReference() {
    Decoder decoder(device_, model_, Context());
    const size_t vocab = static_cast<size_t>(model_.config.vocab);
    ScoreWindows(decoder, ParseKvCacheSpec("kv-fp16"), windows_, [&](std::span<const float> logits, int32_t) {
      const size_t at = reference_.logprobs.size();
      reference_.logprobs.resize(at + vocab);
      LogSoftmax(logits, std::span(reference_.logprobs).subspan(at));
      reference_.top.push_back(ArgMax(logits));
    });
  }

  CompareRow RunPair(const std::string& name, const Model& model, Decoder& decoder,
                     const std::string& kv_name) {
    ResetPeakMemory();
    const KvCacheSpec& kv = kv_.at(kv_name);

    CompareRow row;
    row.weights = name;
    row.kv = kv_name;
    row.weight_bits = WeightBits(model);
    Score(decoder, kv, row);
    Time(decoder, kv, row);
    const KvCache cache(*device_, model.config, kv, 1, 1, Context());
    row.kv_bytes_per_token = cache.bytes_per_token();
    row.kv_bits = 8.0 * static_cast<double>(row.kv_bytes_per_token) /
                  static_cast<double>(2 * model.config.layers * model.config.kv_width());
    row.model_bytes = ModelBytes(model);
    for (const KvCodebooks& books : kv.codebooks) {
      for (const auto* side : {&books.key, &books.value}) {
        for (const auto& stage : *side) row.model_bytes += static_cast<int64_t>(stage.size() * sizeof(Half));
      }
    }
    row.peak_rss = PeakMemory();
    return row;
  }

  void Score(Decoder& decoder, const KvCacheSpec& kv, CompareRow& row) {
    const size_t vocab = static_cast<size_t>(model_.config.vocab);
    PerplexitySum ppl;
    std::vector<double> divergences;
    std::vector<float> logprobs(vocab);
    int64_t agree = 0;
    ScoreWindows(decoder, kv, windows_, [&](std::span<const float> logits, int32_t target) {
      const size_t token = divergences.size();
      LogSoftmax(logits, logprobs);
      ppl.Add(-static_cast<double>(logprobs[static_cast<size_t>(target)]));
      divergences.push_back(
          Divergence(std::span(reference_.logprobs).subspan(token * vocab, vocab), logprobs));
      agree += ArgMax(logits) == reference_.top[token];
    });
    row.ppl = ppl.perplexity();
    row.ppl_err = ppl.error();
    for (const double divergence : divergences)
      row.kl_mean += divergence / static_cast<double>(divergences.size());
    std::sort(divergences.begin(), divergences.end());
    row.kl_p99 = divergences[std::min(divergences.size() - 1, divergences.size() * 99 / 100)];
    row.top1 = static_cast<double>(agree) / static_cast<double>(divergences.size());
  }

  /// Speeds of one sequence: a prompt of `context` tokens, and single tokens behind a prompt of kSpeedPrompt;
  /// with the kernels that serve the latter. The interpreter's own speed says nothing: there steps are
  /// counted.
  void Time(Decoder& decoder, const KvCacheSpec& kv, CompareRow& row) {
    std::vector<int32_t> prompt(static_cast<size_t>(std::max(options_.context, kSpeedPrompt)));
    for (size_t i = 0; i < prompt.size(); ++i)
      prompt[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(model_.config.vocab));
    KvCache cache(*device_, model_.config, kv, Context(), 1, Context());
    const bool counts = device_->Counts();
    if (!counts)
      row.prefill_tps =
          PrefillSpeed(decoder, cache, std::span(prompt).first(static_cast<size_t>(options_.context)));

    const int slot = cache.NewSequence();
    std::vector<float> logits;
    const auto run = [&](std::span<const int32_t> tokens) {
      const Clock::time_point start = Clock::now();
      decoder.Run(cache, std::array{DecoderInput{.slot = slot, .tokens = tokens}}, logits);
      return Seconds(start);
    };
    run(std::span(prompt).first(static_cast<size_t>(std::min(kSpeedPrompt, options_.context))));
    device_->ResetUses();
    // A GPU repeats what it recorded of later steps, so that their launches are not seen one by one.
    const int64_t counted = counts ? std::min(options_.decode_tokens, kCountedTokens) : 1;
    std::vector<double> speeds;
    for (int64_t step = 0; step < (counts ? counted : options_.decode_tokens); ++step) {
      const int32_t next = ArgMax(logits);
      speeds.push_back(1 / run({&next, 1}));
      if (step + 1 == counted) TakeUses(counted, row);
    }
    if (!counts && !speeds.empty()) row.decode_tps = Median(speeds);
  }

  double PrefillSpeed(Decoder& decoder, KvCache& cache, std::span<const int32_t> prompt) {
    std::vector<float> logits;
    std::vector<double> speeds;
    for (int round = 0; round < 3; ++round) {
      const int slot = cache.NewSequence();
      const Clock::time_point start = Clock::now();
      decoder.Run(cache, std::array{DecoderInput{.slot = slot, .tokens = prompt}}, logits);
      speeds.push_back(static_cast<double>(prompt.size()) / Seconds(start));
      cache.FreeSequence(slot);
    }
    return Median(speeds);
  }

  /// The device's launches since ResetUses, over so many tokens.
  void TakeUses(int64_t tokens, CompareRow& row) {
    row.ops = device_->Uses();
    for (KernelUse& use : row.ops) {
      use.launches /= tokens;
      for (double* sum :
           {&use.dram_bytes, &use.shared_wavefronts, &use.modelled_lower_us, &use.modelled_upper_us})
        *sum /= static_cast<double>(tokens);
      row.dram_bytes += use.dram_bytes;
      row.shared_wavefronts += use.shared_wavefronts;
      row.modelled_lower_us += use.modelled_lower_us;
      row.modelled_upper_us += use.modelled_upper_us;
    }
  }

  static constexpr int64_t kSpeedPrompt = 32;
  static constexpr int64_t kCountedTokens = 4;  // counts of neighbouring steps differ by a token of the cache

  const Model& model_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Device> calibration_device_;
  const CompareOptions& options_;
  const std::vector<int32_t>& calibration_;
  std::vector<ScoredWindow> windows_;
  Reference reference_;
  std::map<std::string, KvCacheSpec> kv_;  // by name, codebooks trained
};

}  // namespace

std::vector<CompareRow> Compare(const Model& model, std::shared_ptr<Device> device,
                                const CompareOptions& options, const std::vector<int32_t>& text,
                                const std::vector<int32_t>& calibration,
                                std::shared_ptr<Device> calibration_device) {
  // Names are checked before any work: a typo must not cost an hour.
  for (const std::string& name : options.weights) {
    if (name != "original") ParseFormat(name);
  }
  for (const std::string& name : options.kv) {
    const KvCacheSpec kv = ParseKvCacheSpec(name);
    const bool vq = kv.key.kind == FormatKind::kTable || kv.value.kind == FormatKind::kTable;
    if (vq && calibration.size() < 2) Fail("KV format {} needs calibration text: give --calib FILE", name);
  }
  return Comparison(model, std::move(device), options, text, calibration, std::move(calibration_device))
      .Run();
}

}  // namespace vqllm
