#include "runtime/calibrate.h"

#include <algorithm>

#include "kernels/cpu/rope.h"
#include "runtime/perplexity.h"
#include "vq/base/error.h"
#include "vq/base/progress.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

constexpr int64_t kWindow = 256;

/// K and V of all calibration tokens of a layer, [tokens, kv_width] each.
struct Samples {
  std::vector<float> keys;
  std::vector<float> values;
};

void Keep(const Decoder& decoder, bool before_rope, const Decoder::Observation& seen, Samples& samples) {
  for (const KvRow& row : seen.rows) {
    for (int64_t t = 0; t < row.count; ++t) {
      const size_t at = samples.keys.size();
      const std::span<const float> key = seen.k.RowSpan(row.begin + t);
      const std::span<const float> value = seen.v.RowSpan(row.begin + t);
      samples.keys.insert(samples.keys.end(), key.begin(), key.end());
      samples.values.insert(samples.values.end(), value.begin(), value.end());
      if (before_rope) continue;
      for (size_t head = at; head < samples.keys.size();
           head += static_cast<size_t>(decoder.config().head_dim))
        cpu::Rotate(decoder.rope(), row.past + t, samples.keys.data() + head);
    }
  }
}

/// Codebooks of one side: what quantising the samples as a matrix [tokens, channels] trains.
std::vector<std::vector<Half>> Train(const Format& format, const std::vector<float>& samples, int64_t width,
                                     uint64_t seed, const std::string& what) {
  if (format.kind != FormatKind::kTable) return {};
  QuantizeOptions options;
  options.seed = seed;
  const int64_t tokens = static_cast<int64_t>(samples.size()) / width;
  return Quantize(format, {samples.data(), tokens, width}, options, what).codebooks;
}

}  // namespace

void TrainKvCodebooks(Decoder& decoder, std::span<const int32_t> text, int32_t bos,
                      const CalibrationOptions& options, KvCacheSpec& spec) {
  spec.codebooks.clear();
  if (spec.key.kind != FormatKind::kTable && spec.value.kind != FormatKind::kTable) return;
  const auto used = text.first(std::min<size_t>(text.size(), static_cast<size_t>(options.max_tokens)));
  if (used.size() < 2) Fail("calibration text of {} tokens: allowed: at least 2", used.size());

  const int64_t window = std::min(kWindow, decoder.context());
  const std::vector<ScoredWindow> windows = StridedWindows(used, bos, window, window);
  std::vector<Samples> samples(static_cast<size_t>(decoder.config().layers));
  const auto restore = decoder.observer;
  decoder.observer = [&](const Decoder::Observation& seen) {
    Keep(decoder, spec.keys_before_rope, seen, samples[static_cast<size_t>(seen.layer)]);
  };
  ScoreWindows(decoder, ParseKvCacheSpec(decoder.device().ExactKvFormat()), windows,
               [](std::span<const float>, int32_t) {});
  decoder.observer = restore;

  const int64_t width = decoder.config().kv_width();
  Progress progress("training KV codebooks", options.show_progress ? decoder.config().layers : 0);
  for (size_t layer = 0; layer < samples.size(); ++layer) {
    const std::string what = fmt::format("KV cache of layer {}", layer);
    spec.codebooks.push_back({Train(spec.key, samples[layer].keys, width, options.seed, what),
                              Train(spec.value, samples[layer].values, width, options.seed, what)});
    samples[layer] = {};
    progress.Step();
  }
}

}  // namespace vqllm
