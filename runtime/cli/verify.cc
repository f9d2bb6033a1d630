#include <fmt/format.h>

#include <algorithm>

#include "runtime/cli/commands.h"
#include "runtime/cli/request_options.h"
#include "runtime/verify.h"
#include "vq/base/error.h"

namespace vqllm::cli {
namespace {

struct Options {
  RequestOptions request;
  VerifyOptions verify;
  bool no_hazards = false;
  int lines = 0;
  bool json = false;
};

void Run(Options options) {
  options.verify.hazards = !options.no_hazards;
  options.verify.lines = options.lines > 0;
  const Generated generated = Generate(options.request.Make());
  const VerifyReport report = Verify(generated, KernelCache(KernelCache::DefaultFolder()), options.verify);
  if (options.json) {
    fmt::print("{}\n", ToJson(report, generated));
  } else {
    fmt::print("{}\n", generated.FileName());
    fmt::print("  relative error {:.3g}, tolerance {:.3g}: {}\n", report.result.max_relative_error,
               report.result.tolerance, report.result.passed ? "within" : "OVER");
    for (const KernelResources& kernel : report.kernels)
      fmt::print("  {}: {} registers, {} bytes of spills\n", kernel.kernel, kernel.registers,
                 kernel.spill_bytes);
    fmt::print("  {:<46}{:>16}{:>18}\n", "", "counted", "predicted");
    for (const auto& [name, value] : report.counters) {
      const auto predicted =
          std::find_if(report.predicted.begin(), report.predicted.end(),
                       [&, wanted = name](const auto& other) { return other.first == wanted; });
      fmt::print("  {:<46}{:>16}{:>18}\n", name, value,
                 predicted == report.predicted.end() ? "" : fmt::format("{:.1f}", predicted->second));
    }
    fmt::print("  hazards: {}\n", report.hazards.size());
    for (const std::string& hazard : report.hazards) fmt::print("    {}\n", hazard);
    if (options.lines > 0) {
      fmt::print("  hot lines of {}\n{}", generated.FileName(),
                 HotLines(report.lines, static_cast<size_t>(options.lines)));
    }
    const ModelledTime& time = generated.planned.best.time;
    fmt::print("  modelled {:.2f} to {:.2f} us, bound by {}\n", time.lower_us, time.upper_us, time.bound);
  }
  if (!report.passed()) Fail("{}: the kernel is wrong", generated.FileName());
}

}  // namespace

void AddVerify(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "verify", "Run a kernel in the PTX interpreter, against the oracle, with all hazard checks");
  options->request.Add(*command);
  command->add_option("--seed", options->verify.seed, "Of the data")->capture_default_str();
  command->add_option("--workers", options->verify.workers, "Threads of the interpreter")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  command->add_flag("--no-hazards", options->no_hazards, "Skip the hazard checks: faster");
  command
      ->add_option("--lines", options->lines,
                   "Print the N hottest lines of the .cu: instructions, global sectors, shared wavefronts")
      ->type_name("[N]")
      ->expected(0, 1)
      ->default_str("20")
      ->check(CLI::Range(1, 100000));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { Run(*options); });
}

}  // namespace vqllm::cli
