#pragma once

#include <filesystem>
#include <string>

namespace vqllm::test {

/// Files that the tests read in place: $VQLLM_TEST_DATA, else ../shared/data beside the tree. An empty path
/// where neither is there.
std::filesystem::path DataDir();

/// The root of the source tree.
std::filesystem::path SourceDir();

/// The vqllm command that was built with the tests.
std::filesystem::path CommandPath();

/// The library that plays libcuda in tests of the runtime.
std::string FakeLibcuda();

/// A fresh folder that is removed with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// What a command printed and how it ended.
struct CommandResult {
  int exit_code = -1;  ///< 128 + signal where a signal ended it
  std::string out;
  std::string err;
};

/// Runs a shell command line.
CommandResult Run(const std::string& command);

}  // namespace vqllm::test

/// Skips the test, with a message, where the data folder or this file in it is absent.
#define VQLLM_NEED_DATA(relative)                                                                          \
  if (::vqllm::test::DataDir().empty() || !std::filesystem::exists(::vqllm::test::DataDir() / (relative))) \
  GTEST_SKIP() << "no test data " << (relative) << ": set VQLLM_TEST_DATA"
