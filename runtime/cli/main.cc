#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  CLI::App app("vqllm: LLMs with vector-quantised weights and KV cache", "vqllm");
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  return 0;
}
