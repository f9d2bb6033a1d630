#include "runtime/generate.h"

#include <algorithm>
#include <memory>

#include "runtime/model/tokenizer.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

/// One request on its way: its sequence, its sampler, and the text so far.
class Stream {
 public:
  Stream(size_t index, const GenerateRequest& request, const Decoder& decoder, const Tokenizer& tokenizer,
         int slot)
      : index_(index),
        slot_(slot),
        request_(request),
        eos_(decoder.config().eos),
        sampler_(request.sampling),
        text_(tokenizer, /*continues=*/true),
        filter_(request.stop) {
    const int64_t room = decoder.context() - static_cast<int64_t>(request.prompt.size());
    budget_ = request.max_tokens < 0 ? room : std::min(request.max_tokens, room);
    done_ = budget_ == 0;
  }

  bool done() const { return done_; }
  size_t index() const { return index_; }
  /// What the decoder sees next: the prompt, then one token at a time.
  DecoderInput Input() {
    if (result.ids.empty()) return {.slot = slot_, .tokens = request_.prompt, .logits = 1};
    return {.slot = slot_, .tokens = std::span(result.ids).last(1), .logits = 1};
  }

  /// Takes the next token; returns the text that became certain.
  std::string Take(std::span<const float> logits) {
    const int32_t token = sampler_.Sample(logits);
    if (!request_.ignore_eos && std::find(eos_.begin(), eos_.end(), token) != eos_.end())
      return End(FinishReason::kStop);
    result.ids.push_back(token);
    result.logprobs.push_back(static_cast<float>(logits[static_cast<size_t>(token)] - LogSumExp(logits)));
    std::string piece = filter_.Push(text_.Push(token));
    if (filter_.stopped()) {
      done_ = true;
      result.finish = FinishReason::kStop;
    } else if (static_cast<int64_t>(result.ids.size()) == budget_) {
      piece += End(FinishReason::kLength);
    }
    return piece;
  }

  GenerateResult result;

 private:
  std::string End(FinishReason reason) {
    done_ = true;
    result.finish = reason;
    // An unfinished character can complete no stop string, but what was held before it may.
    std::string piece = filter_.Push(text_.Finish());
    if (filter_.stopped()) {
      result.finish = FinishReason::kStop;
    } else {
      piece += filter_.Finish();
    }
    return piece;
  }

  size_t index_;
  int slot_;
  const GenerateRequest& request_;
  const std::vector<int32_t>& eos_;
  Sampler sampler_;
  StreamDecoder text_;
  StopFilter filter_;
  int64_t budget_ = 0;
  bool done_ = false;
};

/// Positions that a request may use, after checking its prompt.
int64_t CheckedLength(const GenerateRequest& request, int64_t context) {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) Fail("prompt: found no token (the model adds no BOS), allowed: at least 1");
  if (prompt > context) Fail("prompt: found {} tokens, allowed: at most {}, the context", prompt, context);
  return request.max_tokens < 0 ? context : std::min(context, prompt + request.max_tokens);
}

}  // namespace

std::vector<GenerateResult> Generate(Decoder& decoder, const KvCacheSpec& kv, const Tokenizer& tokenizer,
                                     const std::vector<GenerateRequest>& requests, const TextSink& sink) {
  int64_t tokens = 0;
  for (const GenerateRequest& request : requests) tokens += CheckedLength(request, decoder.context());
  KvCache cache(decoder.device(), decoder.config(), kv, std::max<int64_t>(tokens, 1),
                static_cast<int>(std::max<size_t>(requests.size(), 1)), decoder.context());
  std::vector<std::unique_ptr<Stream>> streams;
  for (size_t i = 0; i < requests.size(); ++i) {
    streams.push_back(std::make_unique<Stream>(i, requests[i], decoder, tokenizer, cache.NewSequence()));
  }
  const size_t vocab = static_cast<size_t>(decoder.config().vocab);
  std::vector<float> logits;
  while (true) {
    std::vector<Stream*> active;
    std::vector<DecoderInput> inputs;
    for (const auto& stream : streams) {
      if (stream->done()) continue;
      active.push_back(stream.get());
      inputs.push_back(stream->Input());
    }
    if (active.empty()) break;
    decoder.Run(cache, inputs, logits);
    for (size_t row = 0; row < active.size(); ++row) {
      const std::string piece = active[row]->Take(std::span(logits).subspan(row * vocab, vocab));
      active[row]->result.text += piece;
      if (sink && !piece.empty()) sink(active[row]->index(), piece);
    }
  }
  std::vector<GenerateResult> results;
  for (const auto& stream : streams) results.push_back(std::move(stream->result));
  return results;
}

}  // namespace vqllm
