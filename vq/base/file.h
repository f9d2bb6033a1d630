#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "vq/base/bytes.h"

namespace vqllm {

/// Maps a whole file read-only. Throws Error that names the file where it cannot be read. An empty file gives
/// empty Bytes.
Bytes MapFile(const std::filesystem::path& path);

/// Reads a whole text file. Throws Error that names the file where it cannot be read or is larger than
/// `limit` bytes.
std::string ReadTextFile(const std::filesystem::path& path, uint64_t limit = uint64_t{1} << 30);

/// Writes a file beside the target and renames it over the target: readers see the old content or the whole
/// new one.
void WriteFileAtomically(const std::filesystem::path& path, std::string_view content);

/// A folder that appears whole or not at all: fill `path()`, then Commit() renames it to the target. Without
/// Commit() it is removed. Throws Error where the target exists and is not an empty folder.
class NewFolder {
 public:
  explicit NewFolder(std::filesystem::path target);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void Commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
};

}  // namespace vqllm
