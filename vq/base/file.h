#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
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

/// A file that appears whole or not at all: what is written goes to a file beside the target, and Commit()
/// renames that over the target. Without Commit() it is removed. Throws Error that names the target.
class NewFile {
 public:
  explicit NewFile(std::filesystem::path target);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void Write(const void* data, size_t size);
  void Commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
  std::ofstream out_;
};

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
