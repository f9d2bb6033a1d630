#include <fmt/format.h>

#include <filesystem>

#include "codegen/generate.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/request_options.h"
#include "vq/base/file.h"

namespace vqllm::cli {
namespace {

struct Options {
  RequestOptions request;
  std::filesystem::path output;
  std::filesystem::path plan;
  bool compile = false;
};

void Run(const Options& options) {
  const Generated generated = Generate(options.request.Make());
  if (options.compile) {
    const CachedKernel built = Build(generated, KernelCache(KernelCache::DefaultFolder()));
    if (!built.note.empty()) fmt::print(stderr, "{}\n", built.note);
    for (const KernelResources& kernel : built.kernel.kernels) {
      fmt::print(stderr, "{}: {} registers, {} bytes of spills, {} bytes of shared memory ({})\n",
                 kernel.kernel, kernel.registers, kernel.spill_bytes,
                 generated.plan().launches[0].shared_bytes, built.hit ? "cached" : "compiled");
    }
  }
  if (!options.plan.empty()) WriteFileAtomically(options.plan, ToJson(generated.plan()) + "\n");
  if (options.output.empty()) {
    fmt::print("{}", generated.text);
  } else {
    WriteFileAtomically(options.output, generated.text);
    fmt::print(stderr, "{}: {}\n", options.output.string(), generated.FileName());
  }
}

}  // namespace

void AddCodegen(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("codegen", "Write the CUDA kernel of an op on a format");
  options->request.Add(*command);
  command->add_option("-o,--output", options->output, "The .cu file; else standard output");
  command->add_option("--plan", options->plan, "Write the plan as JSON");
  command->add_flag("--compile", options->compile,
                    "Compile it too and report registers, spills, shared memory");
  command->callback([options] { Run(*options); });
}

}  // namespace vqllm::cli
