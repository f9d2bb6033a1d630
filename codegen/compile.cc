#include "codegen/compile.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "codegen/nvrtc.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

extern char** environ;

namespace vqllm {
namespace {

namespace fs = std::filesystem;

/// sm_<digits> with an optional a or f: what may become part of a flag.
void CheckOptions(const CompileOptions& options) {
  const std::string_view arch = options.arch;
  const std::string_view digits = arch.starts_with("sm_") ? arch.substr(3) : "";
  size_t count = 0;
  while (count < digits.size() && digits[count] >= '0' && digits[count] <= '9') ++count;
  const bool suffix = count + 1 == digits.size() && (digits[count] == 'a' || digits[count] == 'f');
  if (count < 2 || count > 3 || (count != digits.size() && !suffix)) {
    Fail("compile: arch: found \"{}\", allowed: sm_80, sm_86, sm_89, sm_90, sm_100, sm_120 and the like",
         arch);
  }
  for (const std::string& flag : options.flags) {
    if (!flag.starts_with('-')) Fail("compile: flags: found \"{}\", allowed: flags that begin with -", flag);
  }
}

std::vector<std::string> CommonFlags(const CompileOptions& options) {
  std::vector<std::string> flags = {"-std=c++17"};
  const fs::path home = CudaHome();
  if (!home.empty()) flags.push_back("-I" + (home / "include").string());
  // CUB, which lies beside the other headers before CUDA 13.
  std::error_code ignored;
  if (fs::exists(home / "include" / "cccl", ignored)) {
    flags.push_back("-I" + (home / "include" / "cccl").string());
  }
  for (const fs::path& folder : options.include_folders) flags.push_back("-I" + folder.string());
  flags.insert(flags.end(), options.flags.begin(), options.flags.end());
  return flags;
}

const internal::Nvrtc& RequireNvrtc() {
  std::string why;
  const internal::Nvrtc* nvrtc = internal::Nvrtc::Get(&why);
  if (nvrtc == nullptr) {
    Fail(
        "compile: no CUDA compiler: {}; allowed: a CUDA toolkit 12.4 or later in $CUDA_HOME, /usr/local/cuda "
        "or the loader's path",
        why);
  }
  return *nvrtc;
}

fs::path NvccPath() {
  const fs::path home = CudaHome();
  std::error_code ignored;
  if (!home.empty() && fs::exists(home / "bin" / "nvcc", ignored)) return home / "bin" / "nvcc";
  return {};
}

/// Runs a program without a shell, both output streams into `output`. Returns the exit status, 127 where it
/// could not start.
int RunProgram(const std::vector<std::string>& command, const fs::path& output) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int started = posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (started != 0) return 127;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// A folder of our own under the system's temporary folder, removed with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "vqllm-compile-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) Fail("{}: cannot make a folder: {}", name, std::strerror(errno));
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

CompiledKernel CompileWithNvcc(std::string_view text, const std::string& name,
                               const CompileOptions& options) {
  const fs::path nvcc = NvccPath();
  if (nvcc.empty()) Fail("compile: no nvcc in $CUDA_HOME/bin or /usr/local/cuda/bin");
  const ScratchFolder scratch;
  const fs::path source = scratch.path() / "kernel.cu";
  WriteFileAtomically(source, text);
  CompiledKernel compiled;
  const auto make = [&](const char* kind, const char* file) {
    std::vector<std::string> command = {nvcc.string(), "-arch=" + options.arch, kind, "-Xptxas=-v"};
    for (const std::string& flag : CommonFlags(options)) command.push_back(flag);
    command.insert(command.end(), {"-o", (scratch.path() / file).string(), source.string()});
    const int status = RunProgram(command, scratch.path() / "log");
    const std::string log = ReadTextFile(scratch.path() / "log");
    if (status != 0) Fail("{}: nvcc ended with status {}: {}", name, status, internal::LogHead(log, 4));
    compiled.log += log;
    return ReadTextFile(scratch.path() / file);
  };
  compiled.ptx = make("-ptx", "kernel.ptx");
  compiled.cubin = make("-cubin", "kernel.cubin");
  return compiled;
}

/// The number before `unit` in a line such as "Used 74 registers, 31232 bytes smem"; 0 where absent.
int NumberBefore(std::string_view line, std::string_view unit) {
  const size_t end = line.find(unit);
  if (end == std::string_view::npos || end == 0) return 0;
  size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

}  // namespace

fs::path CudaHome() {
  std::error_code ignored;
  const std::array<const char*, 3> homes = {std::getenv("CUDA_HOME"), std::getenv("CUDA_PATH"),
                                            "/usr/local/cuda"};
  for (const char* home : homes) {
    if (home != nullptr && *home != '\0' && fs::exists(fs::path(home) / "include" / "cuda_fp16.h", ignored))
      return home;
  }
  return {};
}

bool CompilerAvailable(CompilerKind compiler) {
  std::string why;
  if (compiler == CompilerKind::kNvcc) return !NvccPath().empty();
  return !CudaHome().empty() && internal::Nvrtc::Get(&why) != nullptr;
}

std::string CompilerVersion(CompilerKind compiler) {
  if (compiler == CompilerKind::kNvrtc) {
    const internal::Nvrtc& nvrtc = RequireNvrtc();
    return fmt::format("nvrtc {}.{}", nvrtc.major(), nvrtc.minor());
  }
  const fs::path nvcc = NvccPath();
  if (nvcc.empty()) Fail("compile: no nvcc in $CUDA_HOME/bin or /usr/local/cuda/bin");
  const ScratchFolder scratch;
  const int status = RunProgram({nvcc.string(), "--version"}, scratch.path() / "log");
  const std::string log = ReadTextFile(scratch.path() / "log");
  const size_t at = log.find("release ");
  if (status != 0 || at == std::string::npos) Fail("{}: does not tell its version", nvcc.string());
  return "nvcc " + log.substr(at + 8, log.find(',', at) - at - 8);
}

CompiledKernel Compile(std::string_view text, const std::string& name, const CompileOptions& options) {
  CheckOptions(options);
  CompiledKernel compiled;
  if (options.compiler == CompilerKind::kNvcc) {
    compiled = CompileWithNvcc(text, name, options);
  } else {
    const internal::Nvrtc& nvrtc = RequireNvrtc();
    if (CudaHome().empty()) {
      Fail("compile: no cuda_fp16.h; allowed: a CUDA toolkit in $CUDA_HOME, $CUDA_PATH or /usr/local/cuda");
    }
    const int number = std::atoi(options.arch.c_str() + 3);
    const auto& archs = nvrtc.archs();
    if (std::find(archs.begin(), archs.end(), number) == archs.end()) {
      Fail("compile: arch: found {}, allowed by nvrtc {}.{}: {}", options.arch, nvrtc.major(), nvrtc.minor(),
           fmt::join(archs, " "));
    }
    std::vector<std::string> flags = {"--gpu-architecture=" + options.arch, "--ptxas-options=-v"};
    for (const std::string& flag : CommonFlags(options)) flags.push_back(flag);
    compiled = nvrtc.Compile(std::string(text), name, flags);
  }
  compiled.kernels = ParseResources(compiled.log);
  return compiled;
}

std::vector<KernelResources> ParseResources(std::string_view log) {
  std::vector<KernelResources> kernels;
  while (!log.empty()) {
    const size_t end = log.find('\n');
    const std::string_view line = log.substr(0, end);
    log = end == std::string_view::npos ? std::string_view() : log.substr(end + 1);
    constexpr std::string_view kEntry = "Compiling entry function '";
    if (const size_t at = line.find(kEntry); at != std::string_view::npos) {
      const std::string_view rest = line.substr(at + kEntry.size());
      kernels.push_back({.kernel = std::string(rest.substr(0, rest.find('\'')))});
    } else if (!kernels.empty()) {
      KernelResources& kernel = kernels.back();
      if (line.find("bytes stack frame") != std::string_view::npos) {
        kernel.stack_bytes = NumberBefore(line, " bytes stack frame");
        kernel.spill_bytes =
            NumberBefore(line, " bytes spill stores") + NumberBefore(line, " bytes spill loads");
      } else if (line.find("Used ") != std::string_view::npos) {
        kernel.registers = NumberBefore(line, " registers");
        kernel.shared_bytes = NumberBefore(line, " bytes smem");
      }
    }
  }
  return kernels;
}

}  // namespace vqllm
