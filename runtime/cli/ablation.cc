#include <fmt/format.h>

#include <filesystem>

#include "codegen/ablation.h"
#include "codegen/kv/ablation.h"
#include "runtime/cli/commands.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm::cli {
namespace {

/// A table and the comments in a document that it stands between.
struct Part {
  const char* begin;
  const char* end;
  std::string (*table)();
};
constexpr Part kParts[] = {{"<!-- ablation: made by vqllm ablation -o papers/vq-llm.md -->\n",
                            "<!-- end of ablation -->\n", AblationTable},
                           {"<!-- attention: made by vqllm ablation -o papers/vq-llm.md -->\n",
                            "<!-- end of attention -->\n", AttentionTable}};

/// The tables into the marked parts of a document, which keeps all else.
void Replace(const std::filesystem::path& path) {
  std::string text = ReadTextFile(path);
  for (const Part& part : kParts) {
    const size_t begin = text.find(part.begin);
    const size_t end = text.find(part.end);
    if (begin == std::string::npos || end == std::string::npos || end < begin)
      Fail("{}: found no part between the comments {}, allowed: a document that has it", path.string(),
           std::string_view(part.begin, 13));
    const size_t from = begin + std::string_view(part.begin).size();
    text.replace(from, end - from, part.table());
  }
  WriteFileAtomically(path, text);
}

}  // namespace

void AddAblation(CLI::App& app) {
  auto output = std::make_shared<std::filesystem::path>();
  CLI::App* command = app.add_subcommand(
      "ablation", "Model the ablation of the VQ-LLM paper: weights on its layer shapes, attention");
  command->add_option("-o,--output", *output, "Replace the marked parts of this document; else print");
  command->callback([output] {
    if (!output->empty()) {
      Replace(*output);
      return;
    }
    for (const Part& part : kParts) fmt::print("{}\n", part.table());
  });
}

}  // namespace vqllm::cli
