// The frame of an emitted file of an op on a KV cache: banner, constants, device blocks, functions, kernels.
#include "codegen/bundle.h"
#include "codegen/ops/kv.h"
#include "codegen/text.h"
#include "vq/base/check.h"

namespace vqllm {
namespace {

struct KvOpText {
  const char* formula;
  KernelText (*emit)(const KvPlan& plan);
};
const KvOpText& TextOf(KvOp op) {
  static constexpr KvOpText kTexts[] = {
      {"out[t] = sum over s of softmax(q[t] . key[s] / sqrt(head_dim)) value[s], for what t sees of the "
       "cache",
       internal::EmitAttention},
      {"keys[t] = encode(rotate(k[t], t)), values[t] = encode(v[t]), for the last tokens of each row",
       internal::EmitKvAppend},
      {"out[t] = sum over s of softmax(q[t] . key[s] / sqrt(head_dim)) value[s], for many t of a row",
       internal::EmitAttentionPrefill}};
  return kTexts[static_cast<size_t>(op)];
}

std::string Command(const KvPlan& plan) {
  const KvShape& shape = plan.shape;
  std::string command =
      fmt::format("vqllm codegen --op {} --kv '{}{}' --heads {} --kv-heads {} --head-dim {}",
                  ToString(plan.op), shape.key.name, shape.key == shape.value ? "" : "/" + shape.value.name,
                  plan.Heads(), shape.kv_heads, shape.head_dim);
  command += fmt::format(" --context {} --rows {} --gpu {}", shape.context, plan.rows, plan.gpu);
  const auto option = [&](const char* name, int value, int standard) {
    if (value != standard) command += fmt::format(" --{} {}", name, value);
  };
  option("q-tokens", plan.q_tokens, 1);
  option("page-tokens", shape.page_tokens, 32);
  option("chunk", shape.chunk, plan.q_tokens);
  option("sinks", shape.sinks, 0);
  option("window", shape.window, 0);
  option("sliding-window", shape.sliding_window, 0);
  option("rope-dim", shape.rope_dim, shape.head_dim);
  if (shape.keys_before_rope) command += " --keys-before-rope";
  if (plan.activation == DType::kBF16) command += " --activation bf16";
  if (plan.level != Level::kBest) command += fmt::format(" --level {}", ToString(plan.level));
  return command;
}

std::string SideLines(const char* name, const KvSidePlan& side) {
  const KvSideLayout& layout = side.layout;
  std::string text =
      fmt::format("  {:<10}{}, {}: {} bytes a token and head; a slice of {} channels a lane, {} slices\n",
                  name, layout.format.name, ToString(side.compute), 4 * layout.RecordWords(),
                  layout.SliceChannels(), layout.slices);
  for (size_t stage = 0; stage < side.stages.size(); ++stage) {
    const StageTier& tier = side.stages[stage];
    text +=
        fmt::format("            stage {}: {} of {} entries in shared memory, the others in global memory\n",
                    stage, tier.shared, tier.entries);
  }
  return text;
}

std::string Banner(const KvPlan& plan) {
  std::string text =
      fmt::format("Made by: {}\nDo not edit: change the plan and make it again.\n\n", Command(plan));
  text += fmt::format("{}\nWritten for {} (sm_{}).\n\nPlan\n", TextOf(plan.op).formula, plan.gpu, plan.arch);
  text += SideLines("keys", plan.key);
  text += SideLines("values", plan.value);
  if (plan.op == KvOp::kAppend) {
    text += fmt::format("  block     {} warps, {} tokens of a side of a KV head\n", plan.warps, plan.tile);
  } else {
    text += fmt::format("  block     {} warps, {} of the {} queries of a KV head, {} tokens of the context\n",
                        plan.warps, plan.tile, plan.queries, plan.split_tokens);
  }
  text += fmt::format("  budget    {} registers a thread, {} bytes of shared memory, {} blocks an SM\n",
                      plan.register_budget, plan.shared_bytes, plan.min_blocks);
  for (const KernelLaunch& launch : plan.launches) {
    text += fmt::format(
        "  launch    {}<<<({}, {}, {}), {}, {}>>>, fewer rows and splits where there are fewer\n",
        launch.kernel, launch.grid_x, launch.grid_y, launch.grid_z, launch.threads, launch.shared_bytes);
  }
  text += FillText(R"(

    Buffers (words of 32 bits)
      keys, values  [page][kv head][token of the page][record]
      pages         [row][$pages$]: page of each $page_tokens$ positions
      rows          {begin, count, length, slot}: activations [begin, begin + count) are the last `count` of `length` tokens
  )",
                   {{"pages", plan.shape.Pages()}, {"page_tokens", plan.shape.page_tokens}});
  if (plan.KeepsExact()) text += "  exact         fp16 [slot][kv head][copy][2: key, value][channel]\n";
  if (plan.shape.rope_dim > 0) text += "  rope          {cos, sin} [position][channel pair]\n";
  std::string commented;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    commented += line.empty() ? "//\n" : "// " + line + "\n";
    at = end + 1;
  }
  return commented;
}

}  // namespace

std::string EmitKvFile(const KvPlan& plan) {
  const KernelText kernel = TextOf(plan.op).emit(plan);
  const bool bf16 = plan.activation == DType::kBF16 || kernel.blocks.contains("floats_bf16") ||
                    kernel.blocks.contains("pack_bf16");
  TextWriter writer;
  writer.Write(Banner(plan));
  writer.Write(bf16 ? "#include <cuda_bf16.h>\n#include <cuda_fp16.h>" : "#include <cuda_fp16.h>");
  writer.Gap();
  writer.Write(kernel.constants);
  writer.Gap();
  writer.Write(BundleBlocks(kernel.blocks));
  writer.Gap();
  writer.Write(kernel.functions);
  writer.Gap();
  writer.Write(kernel.kernels);
  return writer.text();
}

}  // namespace vqllm
