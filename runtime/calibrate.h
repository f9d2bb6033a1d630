#pragma once

#include <cstdint>
#include <span>

#include "runtime/decoder.h"

namespace vqllm {

struct CalibrationOptions {
  int64_t max_tokens = 8192;  ///< of the calibration text
  uint64_t seed = 1;
  bool show_progress = true;
};

/// Fills spec.codebooks where a side is VQ: K and V of the calibration text are captured layer by layer as
/// the decoder makes them (keys rotated unless spec.keys_before_rope), and each KV head x channel group gets
/// a k-means codebook (CQ, arXiv 2405.03917; its Fisher weights need gradients, which this runtime does not
/// have). Windows start with BOS where `bos` is not -1. The calibration text must not be the text that is
/// evaluated. Throws Error where the text has fewer than 2 tokens.
void TrainKvCodebooks(Decoder& decoder, std::span<const int32_t> text, int32_t bos,
                      const CalibrationOptions& options, KvCacheSpec& spec);

}  // namespace vqllm
