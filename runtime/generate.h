#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/decoder.h"
#include "runtime/sampler.h"

namespace vqllm {

class Tokenizer;

struct GenerateRequest {
  std::vector<int32_t> prompt;  ///< token ids, BOS included; at least one
  int64_t max_tokens = -1;      ///< new tokens; -1: as many as the context holds
  SamplingOptions sampling;
  std::vector<std::string> stop;  ///< generation ends where one appears; it is not part of the text
  bool ignore_eos = false;
};

enum class FinishReason : uint8_t {
  kStop,    ///< an end-of-sequence token or a stop string
  kLength,  ///< max_tokens, or the context is full
};

struct GenerateResult {
  std::vector<int32_t> ids;     ///< new tokens; an end-of-sequence token is not among them
  std::string text;             ///< valid UTF-8; cut before a stop string
  std::vector<float> logprobs;  ///< log-probability of each id before the sampling filters
  FinishReason finish = FinishReason::kLength;
};

/// Called with each piece of text as it becomes certain: whole UTF-8 characters that no stop string can
/// swallow any more. The pieces of a request add up to its text.
using TextSink = std::function<void(size_t request, std::string_view piece)>;

/// Generates for several requests as one batch; tokens of a request do not depend on the others. A prompt
/// that fills the context gives no new token and kLength. Throws Error on empty prompts and on prompts longer
/// than the context, before any work.
std::vector<GenerateResult> Generate(Decoder& decoder, const KvCacheSpec& kv, const Tokenizer& tokenizer,
                                     const std::vector<GenerateRequest>& requests, const TextSink& sink = {});

/// Text that arrives in pieces, with stop strings taken out. A tail that could begin a stop string is held
/// back until the next piece decides.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stop);
  /// The text that is certain after this piece; sets stopped() where a stop string is complete. Of several
  /// that end in the piece the one that begins first counts.
  std::string Push(std::string_view piece);
  /// The held tail, at the end of a generation that no stop string ended.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stop_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace vqllm
