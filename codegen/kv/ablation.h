#pragma once

#include <string>

namespace vqllm {

/// Decode attention of the VQ-LLM paper (section VII, CQ), modelled, as Markdown: {cq-4, cq-2} at all levels
/// against fp16 and int4 on A100, H100 and RTX 4090, at Llama-7B and Llama-3-8B, 1k to 16k tokens, 1 and 8
/// sequences. Nothing in it is measured.
std::string AttentionTable();

}  // namespace vqllm
