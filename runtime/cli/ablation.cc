#include <fmt/format.h>

#include <filesystem>

#include "codegen/ablation.h"
#include "runtime/cli/commands.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm::cli {
namespace {

constexpr const char* kBegin = "<!-- ablation: made by vqllm ablation -o papers/vq-llm.md -->\n";
constexpr const char* kEnd = "<!-- end of ablation -->\n";

/// The table into the marked part of a document, which keeps all else.
void Replace(const std::filesystem::path& path, const std::string& table) {
  std::string text = ReadTextFile(path);
  const size_t begin = text.find(kBegin);
  const size_t end = text.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    Fail("{}: found no part between the two ablation comments, allowed: a document that has it",
         path.string());
  const size_t from = begin + std::string_view(kBegin).size();
  text.replace(from, end - from, table);
  WriteFileAtomically(path, text);
}

}  // namespace

void AddAblation(CLI::App& app) {
  auto output = std::make_shared<std::filesystem::path>();
  CLI::App* command =
      app.add_subcommand("ablation", "Model the ablation of the VQ-LLM paper on its layer shapes");
  command->add_option("-o,--output", *output, "Replace the marked part of this document; else print");
  command->callback([output] {
    const std::string table = AblationTable();
    if (output->empty()) {
      fmt::print("{}", table);
    } else {
      Replace(*output, table);
    }
  });
}

}  // namespace vqllm::cli
