#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/compile.h"

namespace vqllm::internal {

/// libnvrtc, opened once at the first use. Null where it cannot be found; `why` then tells where it was
/// sought.
class Nvrtc {
 public:
  static const Nvrtc* Get(std::string* why);

  /// Compiles; ptx, cubin and log are filled. Throws Error with the head of the log where the text is wrong.
  CompiledKernel Compile(const std::string& text, const std::string& name,
                         const std::vector<std::string>& options) const;
  int major() const { return major_; }
  int minor() const { return minor_; }
  const std::vector<int>& archs() const { return archs_; }  ///< 80 for sm_80

 private:
  Nvrtc() = default;
  bool Open(std::string* why);

  // The C interface of nvrtc.h, declared here so that no toolkit is needed to build.
  using Program = struct NvrtcProgram*;
  int (*create_)(Program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*destroy_)(Program*) = nullptr;
  int (*compile_)(Program, int, const char* const*) = nullptr;
  int (*log_size_)(Program, size_t*) = nullptr;
  int (*log_)(Program, char*) = nullptr;
  int (*ptx_size_)(Program, size_t*) = nullptr;
  int (*ptx_)(Program, char*) = nullptr;
  int (*cubin_size_)(Program, size_t*) = nullptr;
  int (*cubin_)(Program, char*) = nullptr;
  int (*version_)(int*, int*) = nullptr;
  int (*arch_count_)(int*) = nullptr;
  int (*supported_)(int*) = nullptr;
  const char* (*error_text_)(int) = nullptr;
  int major_ = 0;
  int minor_ = 0;
  std::vector<int> archs_;
};

/// The first `lines` lines that carry an error, else the first lines of the log.
std::string LogHead(std::string_view log, int lines);

}  // namespace vqllm::internal
