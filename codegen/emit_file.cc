// The frame of an emitted file: banner, constants, device blocks, decoder, kernels.
#include "codegen/bundle.h"
#include "codegen/op.h"
#include "codegen/text.h"
#include "vq/base/check.h"
#include "vq/tensor.h"

namespace vqllm {
namespace {

std::string Command(const Plan& plan) {
  std::string command =
      fmt::format("vqllm codegen --op {} --format '{}'", ToString(plan.op), plan.format.name);
  if (plan.op != OpKind::kDequant) command += fmt::format(" --m {}", plan.m);
  command += fmt::format(" --n {} --k {} --gpu {}", plan.n, plan.k, plan.gpu);
  if (plan.activation == DType::kBF16) command += " --activation bf16";
  if (plan.bias) command += " --bias";
  if (plan.level != Level::kBest) command += fmt::format(" --level {}", ToString(plan.level));
  for (const PinOption& pin : kPinOptions) {
    if (plan.pins.*pin.value != 0) command += fmt::format(" --{} {}", pin.name, plan.pins.*pin.value);
  }
  if (plan.pins.compute) command += fmt::format(" --compute {}", ToString(*plan.pins.compute));
  if (plan.pins.fusion) command += fmt::format(" --fusion {}", ToString(*plan.pins.fusion));
  return command;
}

std::string TierLine(const Plan& plan) {
  if (plan.stages.empty()) return "none";
  std::string line;
  for (const StageTier& tier : plan.stages) {
    if (!line.empty()) line += "; ";
    std::string parts;
    if (tier.held > 0) parts += fmt::format("{} in registers", tier.held);
    if (tier.shared > tier.held)
      parts += fmt::format("{}{} in shared memory{}", parts.empty() ? "" : ", ", tier.shared - tier.held,
                           tier.replicas > 1 ? fmt::format(" x {} copies", tier.replicas) : "");
    const int rest = tier.entries - std::max(tier.held, tier.shared);
    if (rest > 0) parts += fmt::format("{}{} in global memory", parts.empty() ? "" : ", ", rest);
    line += parts;
  }
  return line;
}

/// Draws what a warp reads of one row: which lane has which columns.
std::string Drawing(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const int piece = layout.PieceCols();
  std::string text = fmt::format("columns of one group ({} lane{}, pieces of {} columns):\n", layout.lanes_k,
                                 layout.lanes_k > 1 ? "s" : "", piece);
  text += fmt::format("  |lane 0: 0..{}|", piece - 1);
  if (layout.lanes_k > 1) text += fmt::format("lane 1: {}..{}|", piece, 2 * piece - 1);
  if (layout.lanes_k > 2)
    text += fmt::format(" ... |lane {}: ..{}|", layout.lanes_k - 1, layout.lanes_k * piece - 1);
  if (layout.chunk_pieces > 1)
    text += fmt::format(" then lane 0: {}..{}, and so on, {} times", layout.lanes_k * piece,
                        layout.lanes_k * piece + piece - 1, layout.chunk_pieces);
  text += fmt::format("\nwords of a lane and row: {} ({} units of {} bits, {} spare bits)",
                      layout.chunk_words, layout.ChunkUnits(), layout.unit_bits,
                      32 * layout.chunk_words - layout.ChunkUnits() * layout.unit_bits);
  return text;
}

std::string Commented(const std::string& text) {
  std::string out;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    out += line.empty() ? "//\n" : "// " + line + "\n";
    at = end + 1;
  }
  return out;
}

std::string Banner(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  std::string text =
      fmt::format("Made by: {}\nDo not edit: change the plan and make it again.\n\n", Command(plan));
  text += fmt::format("{}\n", OpOf(plan.op).formula);
  text += fmt::format("Format {}, {:.3f} bits a weight. Written for {} (sm_{}).\n\n", ToJson(plan.format),
                      EffectiveBits(plan.format, plan.n, plan.k), plan.gpu, plan.arch);
  text += fmt::format("Plan\n  compute   {}, fusion {}\n  entries   {}\n", ToString(plan.compute),
                      ToString(plan.fusion), TierLine(plan));
  text += fmt::format("  block     {} warps: {} over outputs x {} over k; {} outputs{}\n",
                      plan.warps_n * plan.warps_k, plan.warps_n, plan.warps_k, plan.BlockRows(),
                      plan.compute == Compute::kStore ? "" : fmt::format(", {} tokens", plan.token_tile));
  text += fmt::format("  k         {} steps, {} a block; {} block(s) share an output\n", plan.steps,
                      plan.steps_split, plan.split);
  text += fmt::format("  budget    {} registers a thread, {} bytes of shared memory, {} blocks an SM\n",
                      plan.register_budget, plan.shared_bytes, plan.min_blocks);
  for (const KernelLaunch& launch : plan.launches) {
    text += fmt::format("  launch    {}<<<({}, {}, {}), {}, {}>>>\n", launch.kernel, launch.grid_x,
                        launch.grid_y, launch.grid_z, launch.threads, launch.shared_bytes);
  }
  text += fmt::format("\nCodes, {} KiB: a warp reads a row tile of {} rows; {}", layout.Words() * 4 / 1024,
                      layout.TileRows(), Drawing(plan));
  return Commented(text);
}

}  // namespace

std::string EmitFile(const Plan& plan) {
  KernelText kernel = OpOf(plan.op).emit(plan);
  // Lookup tables take the place of a decoder.
  DecoderText decoder = plan.compute == Compute::kTable ? DecoderText() : EmitDecoder(plan);
  kernel.blocks.insert(decoder.blocks.begin(), decoder.blocks.end());
  const bool bf16 = plan.activation == DType::kBF16 || UnitOf(plan.format).bf16;
  TextWriter writer;
  writer.Write(Banner(plan));
  writer.Write(bf16 ? "#include <cuda_bf16.h>\n#include <cuda_fp16.h>" : "#include <cuda_fp16.h>");
  writer.Gap();
  writer.Write(kernel.constants);
  if (!decoder.constants.empty()) {
    writer.Gap();
    writer.Write(decoder.constants);
  }
  writer.Gap();
  writer.Write(BundleBlocks(kernel.blocks));
  if (!decoder.functions.empty()) {
    writer.Gap();
    writer.Write(decoder.functions);
  }
  if (!kernel.functions.empty()) {
    writer.Gap();
    writer.Write(kernel.functions);
  }
  writer.Gap();
  writer.Write(kernel.kernels);
  return AlignComments(DropUnusedConstants(writer.text()));
}

}  // namespace vqllm
