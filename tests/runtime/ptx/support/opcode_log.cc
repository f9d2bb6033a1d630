#include "tests/runtime/ptx/support/opcode_log.h"

#include <cstdlib>
#include <fstream>
#include <set>

namespace vqllm::ptx::test {

bool OpcodeLogWanted() { return std::getenv("VQLLM_OPCODE_LOG") != nullptr; }

void LogOpcodes(const LaunchReport& report) {
  if (!OpcodeLogWanted()) return;
  std::set<std::string> opcodes;
  for (const LineCount& line : report.lines) {
    std::string_view text = line.text;
    if (text.starts_with('@')) text.remove_prefix(std::min(text.find(' ') + 1, text.size()));
    opcodes.emplace(text.substr(0, text.find_first_of(" \t;")));
  }
  std::ofstream file(std::getenv("VQLLM_OPCODE_LOG"), std::ios::app);
  for (const std::string& opcode : opcodes) file << opcode << '\n';
}

}  // namespace vqllm::ptx::test
