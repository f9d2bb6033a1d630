#include "codegen/cache.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

namespace fs = std::filesystem;

// The layout of an entry; part of the key, so that a reader never meets another layout.
constexpr int kLayout = 1;

/// FNV-1a from a start value of the caller's choice.
uint64_t Hash(std::string_view bytes, uint64_t state = 0xcbf29ce484222325u) {
  for (const char c : bytes) {
    state ^= static_cast<unsigned char>(c);
    state *= 0x100000001b3u;
  }
  return state;
}

/// All but the text that decides what the compiler makes. Lengths keep neighbours apart.
std::string OptionsLine(const CompileOptions& options, std::string_view version) {
  std::string line = fmt::format("layout {} compiler {} arch {}", kLayout, version, options.arch);
  for (const fs::path& folder : options.include_folders)
    line += fmt::format(" include {}:{}", folder.string().size(), folder.string());
  for (const std::string& flag : options.flags) line += fmt::format(" flag {}:{}", flag.size(), flag);
  return line;
}

struct NamedText {
  const char* file;
  std::string_view text;
};

std::string Manifest(const std::string& options_line, const std::array<NamedText, 4>& files) {
  std::string manifest = options_line + "\n";
  for (const NamedText& f : files)
    manifest += fmt::format("{} {} {:016x}\n", f.file, f.text.size(), Hash(f.text));
  return manifest;
}

std::array<NamedText, 4> Files(std::string_view text, const CompiledKernel& kernel) {
  return {{{"kernel.cu", text},
           {"resources.txt", kernel.log},
           {"kernel.ptx", kernel.ptx},
           {"kernel.cubin", kernel.cubin}}};
}

/// Reads an entry and checks it against its manifest and against this text: a hash alone proves nothing.
std::optional<CompiledKernel> Read(const fs::path& entry, std::string_view text,
                                   const std::string& options_line) {
  std::error_code ignored;
  if (!fs::is_directory(entry, ignored)) return std::nullopt;
  try {
    CompiledKernel kernel;
    if (ReadTextFile(entry / "kernel.cu") != text) return std::nullopt;
    kernel.log = ReadTextFile(entry / "resources.txt");
    kernel.ptx = ReadTextFile(entry / "kernel.ptx");
    kernel.cubin = ReadTextFile(entry / "kernel.cubin");
    if (ReadTextFile(entry / "manifest") != Manifest(options_line, Files(text, kernel))) return std::nullopt;
    kernel.kernels = ParseResources(kernel.log);
    return kernel;
  } catch (const Error&) {  // a file is missing or cannot be read: the entry is damaged and will be rebuilt
    return std::nullopt;
  }
}

/// A name beside the entry that no other thread or process uses.
fs::path Aside(const fs::path& entry, const char* kind) {
  static std::atomic<int> counter{0};
  return entry.string() + fmt::format(".{}-{}-{}", kind, getpid(), counter++);
}

/// Puts the filled folder in the place of the entry. True where the entry then stands, ours or the one of a
/// process that was faster.
bool Install(const fs::path& aside, const fs::path& entry, std::string_view text,
             const std::string& options_line) {
  std::error_code ignored;
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (std::rename(aside.c_str(), entry.c_str()) == 0) return true;
    if (Read(entry, text, options_line)) break;
    // A damaged entry is in the way: moved off first, so that nobody sees half of one being removed.
    const fs::path damaged = Aside(entry, "damaged");
    std::rename(entry.c_str(), damaged.c_str());
    fs::remove_all(damaged, ignored);
  }
  fs::remove_all(aside, ignored);
  return Read(entry, text, options_line).has_value();
}

}  // namespace

KernelCache::KernelCache(fs::path folder) : folder_(std::move(folder)) {}

fs::path KernelCache::DefaultFolder() {
  const auto set = [](const char* value) { return value != nullptr && *value != '\0'; };
  const char* own = std::getenv("VQLLM_CACHE");
  if (set(own)) return own;
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (set(xdg)) return fs::path(xdg) / "vqllm";
  const char* home = std::getenv("HOME");
  if (set(home)) return fs::path(home) / ".cache" / "vqllm";
  return fs::temp_directory_path() / fmt::format("vqllm-cache-{}", getuid());
}

std::string KernelCache::Key(std::string_view text, const CompileOptions& options, std::string_view version) {
  const std::string line = OptionsLine(options, version);
  return fmt::format("{:016x}{:016x}", Hash(text, Hash(line)), Hash(text, ~Hash(line)));
}

CachedKernel KernelCache::Get(std::string_view text, const std::string& name, const CompileOptions& options,
                              std::string_view plan_json) const {
  const std::string version = CompilerVersion(options.compiler);
  const std::string options_line = OptionsLine(options, version);
  const fs::path entry = folder_ / Key(text, options, version);
  CachedKernel result;
  if (std::optional<CompiledKernel> kernel = Read(entry, text, options_line)) {
    result.kernel = std::move(*kernel);
    result.hit = true;
    result.folder = entry;
    return result;
  }
  result.kernel = Compile(text, name, options);

  const fs::path aside = Aside(entry, "new");
  std::error_code failed;
  fs::create_directories(aside, failed);
  if (!failed) {
    try {
      const auto files = Files(text, result.kernel);
      for (const NamedText& file : files) WriteFileAtomically(aside / file.file, file.text);
      WriteFileAtomically(aside / "plan.json", plan_json);
      WriteFileAtomically(aside / "manifest", Manifest(options_line, files));
      if (Install(aside, entry, text, options_line)) {
        result.folder = entry;
        return result;
      }
      result.note = fmt::format("{}: cannot be replaced; compiled without cache", entry.string());
    } catch (const Error& error) {  // a full disk, say: the kernel is there, only the store failed
      result.note = fmt::format("{}; compiled without cache", error.what());
    }
  } else {
    result.note = fmt::format("{}: {}; compiled without cache", folder_.string(), failed.message());
  }
  fs::remove_all(aside, failed);
  return result;
}

}  // namespace vqllm
