#include "vq/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "vq/base/error.h"

namespace vqllm {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void FailErrno(const fs::path& path, const char* what) {
  const int error = errno;
  Fail("{}: {}: {}", path.string(), what, std::strerror(error));
}

/// An open file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) FailErrno(path, "cannot open");
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

fs::path Aside(const fs::path& target) {
  return target.parent_path() / fmt::format(".{}.{}.partial", target.filename().string(), ::getpid());
}

}  // namespace

Bytes MapFile(const fs::path& path) {
  const Descriptor file(path);
  struct stat status;
  if (::fstat(file.get(), &status) != 0) FailErrno(path, "cannot stat");
  if (!S_ISREG(status.st_mode)) Fail("{}: not a regular file", path.string());
  const size_t size = static_cast<size_t>(status.st_size);
  if (size == 0) return {};
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) FailErrno(path, "cannot map");
  std::shared_ptr<const void> owner(data, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
  return Bytes(std::move(owner), static_cast<const uint8_t*>(data), size);
}

std::string ReadTextFile(const fs::path& path, uint64_t limit) {
  std::error_code error;
  if (fs::is_directory(path, error)) Fail("{}: is a folder, not a file", path.string());
  std::ifstream in(path, std::ios::binary);
  if (!in) FailErrno(path, "cannot open");
  const uint64_t size = fs::file_size(path, error);
  if (!error && size > limit) Fail("{}: {} bytes, at most {} allowed", path.string(), size, limit);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) FailErrno(path, "cannot read");
  return text;
}

NewFile::NewFile(fs::path target) : target_(std::move(target)), path_(Aside(target_)) {
  out_.open(path_, std::ios::binary | std::ios::trunc);
  if (!out_) FailErrno(target_, "cannot create");
}

NewFile::~NewFile() {
  if (path_.empty()) return;
  out_.close();
  std::error_code ignored;
  fs::remove(path_, ignored);
}

void NewFile::Write(const void* data, size_t size) {
  out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  if (!out_) Fail("{}: cannot write {} bytes", target_.string(), size);
}

void NewFile::Commit() {
  out_.close();  // flushes; a full disk shows here at the latest
  if (!out_) Fail("{}: cannot write the last bytes", target_.string());
  std::error_code error;
  fs::rename(path_, target_, error);
  if (error) Fail("{}: cannot replace: {}", target_.string(), error.message());
  path_.clear();
}

void WriteFileAtomically(const fs::path& path, std::string_view content) {
  NewFile file(path);
  file.Write(content.data(), content.size());
  file.Commit();
}

NewFolder::NewFolder(fs::path target) : target_(std::move(target)) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // "out/" names the folder out
  path_ = Aside(target_);
  std::error_code error;
  if (fs::exists(target_, error) && !fs::is_empty(target_, error)) {
    Fail("{}: exists and is not an empty folder", target_.string());
  }
  fs::remove_all(path_, error);
  fs::create_directories(path_, error);
  if (error) Fail("{}: cannot create: {}", target_.string(), error.message());
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void NewFolder::Commit() {
  std::error_code error;
  fs::remove(target_, error);  // an empty folder may stand there
  fs::rename(path_, target_, error);
  if (error) Fail("{}: cannot create: {}", target_.string(), error.message());
}

}  // namespace vqllm
