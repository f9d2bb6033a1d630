#include "runtime/cli/request_options.h"

#include "runtime/device/driver.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm::cli {

void RequestOptions::Add(CLI::App& command) {
  command.add_option("--op", op, "dequant, gemv (1 to 16 tokens) or gemm")->capture_default_str();
  command.add_option("--format", format, "A named format, VQ<v,b,R> with its scope, or a JSON file")
      ->required();
  command.add_option("--m", m, "Tokens")->capture_default_str();
  command.add_option("--n", n, "Outputs")->required();
  command.add_option("--k", k, "Inputs")->required();
  command.add_option("--gpu", gpu, "A GPU of the table, a JSON file, or live: the one that libcuda finds")
      ->capture_default_str();
  command.add_option("--level", level, "gc, sc, o1, o2, o3, o4 or best")->capture_default_str();
  command.add_option("--activation", activation, "fp16 or bf16")->capture_default_str();
  command.add_flag("--bias", bias, "Add a bias of the outputs");
  const char* group = "Pins: choices that the planner must keep (0: free)";
  for (const PinOption& pin : kPinOptions)
    command.add_option(std::string("--") + pin.name, pins.*pin.value, pin.help)->group(group);
  command.add_option("--pins", pin_file, "Pins as a JSON object or file, names with underscores")
      ->group(group);
  command.add_option("--compute", compute, "dequant_fma, dequant_mma, lookup_table")->group(group);
  command.add_option("--fusion", fusion, "none, shared, register_shuffle, zero_shuffle")->group(group);
}

Request RequestOptions::Make() const {
  Request request;
  request.op = ParseOp(op);
  request.format = ParseFormat(format);
  request.m = m;
  request.n = n;
  request.k = k;
  request.gpu = gpu == "live" ? NewCudaDriver()->gpu() : ParseGpu(gpu);
  request.level = ParseLevel(level);
  if (activation != "fp16" && activation != "bf16")
    Fail("activation: found \"{}\", allowed: fp16 bf16", activation.substr(0, 32));
  request.activation = activation == "bf16" ? DType::kBF16 : DType::kF16;
  request.bias = bias;
  request.pins = pins;
  if (!pin_file.empty()) {
    const bool inline_text = pin_file.front() == '{';
    request.pins = ParsePins(inline_text ? pin_file : ReadTextFile(pin_file, uint64_t{1} << 20),
                             inline_text ? "--pins" : pin_file);
    // What is given by itself overrides the file.
    for (const PinOption& pin : kPinOptions) {
      if (pins.*pin.value != 0) request.pins.*pin.value = pins.*pin.value;
    }
  }
  if (!compute.empty()) request.pins.compute = ParseCompute(compute);
  if (!fusion.empty()) request.pins.fusion = ParseFusion(fusion);
  Validate(request);
  return request;
}

}  // namespace vqllm::cli
