// The vqllm command. Exit status: 0 success, 1 the job failed, 2 wrong usage.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>

#include "runtime/cli/commands.h"
#include "vq/base/error.h"

namespace {

constexpr void (*kCommands[])(CLI::App&) = {
    vqllm::cli::AddQuantize,   vqllm::cli::AddCompare, vqllm::cli::AddGenerate,
    vqllm::cli::AddPerplexity, vqllm::cli::AddInspect, vqllm::cli::AddCodegen,
    vqllm::cli::AddExplain,    vqllm::cli::AddVerify,  vqllm::cli::AddAblation,
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("LLMs whose weights and KV cache are vector-quantised, beside int4, on one decoder", "vqllm");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of all commands");
  for (const auto add : kCommands) add(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const vqllm::Error& error) {
    fmt::print(stderr, "vqllm: error: {}\n", error.what());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "vqllm: error: out of memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "vqllm: error: {}\n", error.what());
  }
  return 1;
}
