#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "codegen/compile.h"

namespace vqllm {

struct CachedKernel {
  CompiledKernel kernel;
  bool hit = false;              ///< read from the cache, not compiled
  std::filesystem::path folder;  ///< the entry; empty where nothing could be stored
  std::string note;              ///< why nothing could be stored, else empty
};

/// Compiled kernels on disk. An entry is a folder named after the hash of text, compiler version, options and
/// arch; it holds kernel.cu, plan.json, resources.txt (what ptxas said), kernel.ptx, kernel.cubin and a
/// manifest with the size and hash of each. It is built aside and renamed, so processes may race; an entry
/// that does not match its manifest or this very text is built again. A folder that cannot be written means
/// no cache and a note, never a failure.
class KernelCache {
 public:
  /// Uses `folder`, made at the first store.
  explicit KernelCache(std::filesystem::path folder);

  /// $VQLLM_CACHE, else $XDG_CACHE_HOME/vqllm, else ~/.cache/vqllm, else a folder of the temporary one.
  static std::filesystem::path DefaultFolder();

  /// The kernel of the cache, or Compile(text, name, options) and a new entry. `plan_json` is stored for
  /// people; it is not part of the key. Throws Error as Compile does.
  CachedKernel Get(std::string_view text, const std::string& name, const CompileOptions& options,
                   std::string_view plan_json) const;

  /// Name of the entry: 32 hexadecimal digits.
  static std::string Key(std::string_view text, const CompileOptions& options,
                         std::string_view compiler_version);

 private:
  std::filesystem::path folder_;
};

}  // namespace vqllm
