#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "codegen/planner.h"
#include "kernels/cpu/linear.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/request_options.h"
#include "runtime/device/device.h"
#include "vq/base/error.h"

namespace vqllm::cli {
namespace {

struct Options {
  RequestOptions request;
  std::string device = "gpu";
  bool exact = false;
  bool json = false;
  int runners_up = 4;
  bool all = false;
};

nlohmann::ordered_json Describe(const Candidate& candidate, const GpuSpec& gpu) {
  const PlanCounters& c = candidate.counters;
  const ModelledTime& t = candidate.time;
  nlohmann::ordered_json predicted;
  for (size_t i = 0; i < static_cast<size_t>(Metric::kCount); ++i)
    predicted[std::string(NameOf(static_cast<Metric>(i)))] = c.traffic[static_cast<Metric>(i)];
  return {{"plan", nlohmann::ordered_json::parse(ToJson(candidate.plan))},
          {"predicted", predicted},
          {"dram_bytes", c.DramBytes(gpu)},
          {"compulsory_bytes", c.compulsory_bytes},
          {"l2_bytes", c.L2Bytes()},
          {"modelled", {{"lower_us", t.lower_us}, {"upper_us", t.upper_us}, {"bound", t.bound}}}};
}

/// Tokens at which the CPU's kernels are listed: decode, small batches, prefill.
constexpr int64_t kTokens[] = {1, 2, 4, 8, 16, 64, 512};

void ExplainCpu(const Options& options) {
  const RequestOptions& wanted = options.request;
  const Format format = ParseFormat(wanted.format);
  if (wanted.n < 1 || wanted.k < 1) Fail("n, k: found {}, {}, allowed: at least 1", wanted.n, wanted.k);
  const auto kernels = cpu::KernelOptions(format, wanted.n, wanted.k, {.exact = options.exact});
  const auto taken =
      std::find_if(kernels.begin(), kernels.end(), [](const auto& k) { return k.refusal.empty(); });
  const auto serving = [&](int64_t m) { return m <= taken->max_m ? taken->kernel : "dequantise-gemm"; };
  const std::string machine = NewCpuDevice(options.exact)->Describe();
  if (options.json) {
    nlohmann::ordered_json out = {
        {"device", machine}, {"format", format.name}, {"n", wanted.n}, {"k", wanted.k}};
    for (const int64_t m : kTokens) out["kernels"].push_back({{"m", m}, {"kernel", serving(m)}});
    for (const cpu::KernelOption& kernel : kernels)
      out["candidates"].push_back({{"serves", kernel.serves_what}, {"refusal", kernel.refusal}});
    fmt::print("{}\n", out.dump(1));
    return;
  }
  fmt::print("{} [{}, {}], {:.3f} bits a weight, on {}\n\n     m  kernel\n", format.name, wanted.n, wanted.k,
             EffectiveBits(format, wanted.n, wanted.k), machine);
  for (const int64_t m : kTokens) fmt::print("{:6}  {}\n", m, serving(m));
  fmt::print("\nCandidates, the first that can serve is taken:\n");
  for (const cpu::KernelOption& kernel : kernels) {
    fmt::print("  {}: {}\n", kernel.serves_what,
               &kernel == &*taken       ? "taken"
               : kernel.refusal.empty() ? "could serve"
                                        : kernel.refusal);
  }
}

void Run(const Options& options) {
  if (options.device == "cpu") return ExplainCpu(options);
  const Request request = options.request.Make();
  const PlanResult result =
      MakePlan(request, options.runners_up, options.all ? Search::kAll : Search::kDescent);
  if (!options.json) {
    fmt::print("{}", Explain(request, result));
    return;
  }
  nlohmann::ordered_json out = Describe(result.best, request.gpu);
  out["considered"] = result.considered;
  out["gpu"] = nlohmann::ordered_json::parse(ToJson(request.gpu));
  out["runners_up"] = nlohmann::ordered_json::array();
  for (const Candidate& candidate : result.runners_up)
    out["runners_up"].push_back(Describe(candidate, request.gpu));
  fmt::print("{}\n", out.dump(1));
}

}  // namespace

void AddExplain(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("explain", "Print the plan of a kernel, its traffic and why others lost");
  options->request.Add(*command);
  command->add_option("--device", options->device, "gpu, or cpu: which kernels serve the format here")
      ->capture_default_str()
      ->check(CLI::IsMember({"gpu", "cpu"}));
  command->add_flag("--exact", options->exact, "cpu: keep tables and activations in fp32");
  command->add_option("--runners-up", options->runners_up, "How many others to show")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  command->add_flag("--all", options->all, "Weigh every combination of choices: slower");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { Run(*options); });
}

}  // namespace vqllm::cli
