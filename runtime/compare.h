#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/decoder.h"
#include "runtime/model/model.h"

namespace vqllm {

/// One decoder, several (weights, KV cache) pairs, one text.
struct CompareOptions {
  std::vector<std::string> weights;  ///< format names; "original": as loaded
  std::vector<std::string> kv;       ///< KV formats, see ParseKvCacheSpec
  int64_t context = 256;             ///< tokens of a window; windows follow each other with stride = context
  int64_t max_tokens =
      0;  ///< tokens of the text that are scored; 0: all (bounded by the memory of the reference)
  int64_t decode_tokens = 64;  ///< tokens that the decode speed is taken over
  uint64_t seed = 1;
  int kv_window = 0, kv_sinks = 0;  ///< see KvCacheSpec
  bool keys_before_rope = false;
};

/// What one pair gives. KL and top1 compare with the model as loaded and an fp16 KV cache, token by token on
/// the same text.
struct CompareRow {
  std::string weights;
  std::string kv;
  double weight_bits = 0;  ///< bits for one weight of the layers' matrices, all overheads counted
  double kv_bits = 0;  ///< bits for one element of K and V (codebooks apart: they do not grow with tokens)
  int64_t model_bytes = 0;  ///< all weights and the KV codebooks
  int64_t kv_bytes_per_token = 0;
  double ppl = 0;
  double ppl_err = 0;
  double kl_mean = 0;  ///< nats
  double kl_p99 = 0;
  double top1 = 0;         ///< share of tokens whose most likely next token is the reference's
  double prefill_tps = 0;  ///< tokens/s of a prompt of `context` tokens, batch 1, median of 3
  double decode_tps = 0;   ///< tokens/s of single-token steps, batch 1
  int64_t peak_rss = 0;    ///< bytes, of this pair's run

  // What one decode step launches, by op; empty on a CPU. On a device that counts (Device::Counts) the speeds
  // above are 0 and the sums below hold; on another they are 0.
  std::vector<KernelUse> ops;
  double dram_bytes = 0;         ///< counted, a token
  double shared_wavefronts = 0;  ///< counted, a token
  double modelled_lower_us = 0;  ///< modelled, a token: launches follow each other
  double modelled_upper_us = 0;
};

/// Runs all pairs. `text` and `calibration` are token ids; KV codebooks are trained on the calibration text,
/// on `calibration_device` (null: on `device`). Throws Error where a VQ KV format is asked for and there is
/// no calibration text.
std::vector<CompareRow> Compare(const Model& model, std::shared_ptr<Device> device,
                                const CompareOptions& options, const std::vector<int32_t>& text,
                                const std::vector<int32_t>& calibration,
                                std::shared_ptr<Device> calibration_device = nullptr);

/// The rows as an aligned table for a terminal; the best value of each column is marked with '*'.
std::string CompareTable(const std::vector<CompareRow>& rows);
/// Which kernels served each op of a decode step, and what they did, row by row; empty for a CPU.
std::string CompareKernels(const std::vector<CompareRow>& rows);
/// {"rows":[{...}]}
std::string CompareJson(const std::vector<CompareRow>& rows);

}  // namespace vqllm
