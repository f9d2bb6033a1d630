#pragma once

#include <CLI/CLI.hpp>

namespace vqllm::cli {

/// Every command is one file that adds a subcommand with its options and, as its callback, the job. Results
/// go to stdout, talk to stderr; a job that fails throws vqllm::Error.
void AddQuantize(CLI::App& app);
void AddCompare(CLI::App& app);
void AddGenerate(CLI::App& app);
void AddPerplexity(CLI::App& app);
void AddInspect(CLI::App& app);
void AddCodegen(CLI::App& app);
void AddExplain(CLI::App& app);
void AddVerify(CLI::App& app);
void AddAblation(CLI::App& app);

}  // namespace vqllm::cli
