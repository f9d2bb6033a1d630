#include "codegen/nvrtc.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "vq/base/check.h"
#include "vq/base/error.h"

namespace vqllm::internal {
namespace {

// Newest first; the plain name is what a toolkit without version links installs.
constexpr const char* kLibraries[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

std::vector<std::string> Candidates() {
  std::vector<std::string> paths;
  const std::filesystem::path home = CudaHome();
  for (const char* library : kLibraries) {
    if (!home.empty()) {
      paths.push_back((home / "lib64" / library).string());
      paths.push_back((home / "lib" / library).string());
    }
    paths.emplace_back(library);  // the loader's own search path
  }
  return paths;
}

template <typename Function>
bool Load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const Nvrtc* Nvrtc::Get(std::string* why) {
  static std::mutex mutex;
  static Nvrtc* nvrtc = nullptr;
  const std::lock_guard lock(mutex);
  if (nvrtc != nullptr) return nvrtc;
  // Sought again after a failure: the caller may have set CUDA_HOME meanwhile. Never freed: the library keeps
  // state until the process ends.
  auto* opened = new Nvrtc();
  if (!opened->Open(why)) {
    delete opened;
    return nullptr;
  }
  nvrtc = opened;
  return nvrtc;
}

bool Nvrtc::Open(std::string* why) {
  void* library = nullptr;
  std::string tried;
  for (const std::string& path : Candidates()) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    tried += (tried.empty() ? "" : ", ") + path;
  }
  if (library == nullptr) {
    *why = fmt::format("found none of {}", tried);
    return false;
  }
  const bool complete =
      Load(library, "nvrtcCreateProgram", create_) && Load(library, "nvrtcDestroyProgram", destroy_) &&
      Load(library, "nvrtcCompileProgram", compile_) && Load(library, "nvrtcGetProgramLogSize", log_size_) &&
      Load(library, "nvrtcGetProgramLog", log_) && Load(library, "nvrtcGetPTXSize", ptx_size_) &&
      Load(library, "nvrtcGetPTX", ptx_) && Load(library, "nvrtcGetCUBINSize", cubin_size_) &&
      Load(library, "nvrtcGetCUBIN", cubin_) && Load(library, "nvrtcVersion", version_) &&
      Load(library, "nvrtcGetNumSupportedArchs", arch_count_) &&
      Load(library, "nvrtcGetSupportedArchs", supported_) &&
      Load(library, "nvrtcGetErrorString", error_text_);
  int count = 0;
  if (!complete || version_(&major_, &minor_) != 0 || arch_count_(&count) != 0 || count < 1) {
    *why = "libnvrtc lacks functions of CUDA 12";
    dlclose(library);
    return false;
  }
  archs_.resize(static_cast<size_t>(count));
  supported_(archs_.data());
  return true;
}

CompiledKernel Nvrtc::Compile(const std::string& text, const std::string& name,
                              const std::vector<std::string>& options) const {
  Program program = nullptr;
  const int created = create_(&program, text.c_str(), name.c_str(), 0, nullptr, nullptr);
  if (created != 0) Fail("{}: nvrtc: {}", name, error_text_(created));
  std::vector<const char*> pointers;
  for (const std::string& option : options) pointers.push_back(option.c_str());
  const int result = compile_(program, static_cast<int>(pointers.size()), pointers.data());

  // Sizes count the terminating zero of texts.
  const auto fetch = [&](int (*size_of)(Program, size_t*), int (*get)(Program, char*), bool is_text) {
    size_t size = 0;
    std::string bytes;
    if (size_of(program, &size) == 0 && size > 0) {
      bytes.resize(size);
      if (get(program, bytes.data()) != 0) bytes.clear();
      if (is_text && !bytes.empty()) bytes.pop_back();
    }
    return bytes;
  };
  CompiledKernel compiled;
  compiled.log = fetch(log_size_, log_, true);
  if (result == 0) {
    compiled.ptx = fetch(ptx_size_, ptx_, true);
    compiled.cubin = fetch(cubin_size_, cubin_, false);
  }
  destroy_(&program);
  if (result != 0) Fail("{}: {}: {}", name, error_text_(result), LogHead(compiled.log, 4));
  VQLLM_CHECK(!compiled.ptx.empty() && !compiled.cubin.empty(), "{}", name);
  return compiled;
}

std::string LogHead(std::string_view log, int lines) {
  std::string head;
  for (const bool errors_only : {true, false}) {
    std::string_view rest = log;
    int taken = 0;
    while (!rest.empty() && taken < lines) {
      const size_t end = rest.find('\n');
      const std::string_view line = rest.substr(0, end);
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
      if (line.empty() || (errors_only && line.find("error") == std::string_view::npos)) continue;
      head += (taken == 0 ? "" : " | ") + std::string(line);
      ++taken;
    }
    if (taken > 0) break;
  }
  return head;
}

}  // namespace vqllm::internal
