#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "codegen/planner.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/request_options.h"

namespace vqllm::cli {
namespace {

struct Options {
  RequestOptions request;
  bool json = false;
  int runners_up = 4;
};

nlohmann::ordered_json Describe(const Candidate& candidate) {
  const PlanCounters& c = candidate.counters;
  const ModelledTime& t = candidate.time;
  return {{"plan", nlohmann::ordered_json::parse(ToJson(candidate.plan))},
          {"predicted",
           {{"dram_bytes", c.dram_bytes},
            {"compulsory_bytes", c.compulsory_bytes},
            {"l2_bytes", c.l2_bytes},
            {"shared_wavefronts", c.shared_wavefronts},
            {"shared_wavefronts_ideal", c.shared_ideal},
            {"global_lines", c.global_lines},
            {"instructions", c.instructions},
            {"mma_flop", c.mma_flop}}},
          {"modelled", {{"lower_us", t.lower_us}, {"upper_us", t.upper_us}, {"bound", t.bound}}}};
}

void Run(const Options& options) {
  const Request request = options.request.Make();
  const PlanResult result = MakePlan(request, options.runners_up);
  if (!options.json) {
    fmt::print("{}", Explain(request, result));
    return;
  }
  nlohmann::ordered_json out = Describe(result.best);
  out["considered"] = result.considered;
  out["gpu"] = nlohmann::ordered_json::parse(ToJson(request.gpu));
  out["runners_up"] = nlohmann::ordered_json::array();
  for (const Candidate& candidate : result.runners_up) out["runners_up"].push_back(Describe(candidate));
  fmt::print("{}\n", out.dump(1));
}

}  // namespace

void AddExplain(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("explain", "Print the plan of a kernel, its traffic and why others lost");
  options->request.Add(*command);
  command->add_option("--runners-up", options->runners_up, "How many others to show")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] { Run(*options); });
}

}  // namespace vqllm::cli
