#pragma once

#include <string>

namespace vqllm {

/// The ablation of the VQ-LLM paper (section VII: weights, GeMM and GeMV), modelled, as Markdown: {quip-4,
/// aqlm-3, gptvq-2} x {gemm m = 1024, gemv m = 1, 16} x all levels, on RTX 4090, A100 and H100, at the layer
/// shapes of Llama-7B and Llama-65B, with the int4 opponent beside it. Nothing in it is measured.
std::string AblationTable();

}  // namespace vqllm
