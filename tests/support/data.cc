#include "tests/support/data.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace vqllm::test {
namespace fs = std::filesystem;

fs::path DataDir() {
  if (const char* variable = std::getenv("VQLLM_TEST_DATA")) return variable;
  const fs::path beside = fs::path(VQLLM_SOURCE_DIR) / ".." / "shared" / "data";
  return fs::exists(beside) ? beside : fs::path();
}

fs::path SourceDir() { return VQLLM_SOURCE_DIR; }

fs::path CommandPath() { return VQLLM_CLI; }

std::string FakeLibcuda() { return VQLLM_FAKE_LIBCUDA; }

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "vqllm-test-XXXXXX").string();
  path_ = ::mkdtemp(pattern.data());
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

CommandResult Run(const std::string& command) {
  const TempDir dir;
  const auto slurp = [](const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  };
  const int status = std::system(
      ("( " + command + " ) >'" + (dir / "out").string() + "' 2>'" + (dir / "err").string() + "' </dev/null")
          .c_str());
  CommandResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = slurp(dir / "out");
  result.err = slurp(dir / "err");
  return result;
}

}  // namespace vqllm::test
