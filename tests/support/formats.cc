#include "tests/support/formats.h"

#include <cstdlib>
#include <set>

#include "vq/format.h"

namespace vqllm::test {

const std::vector<std::string>& RegistryFormats() {
  static const std::vector<std::string> formats = [] {
    std::vector<std::string> names;
    std::set<std::string> known;
    for (const Format& format : NamedFormats()) {
      if (format.kind == FormatKind::kDense && format.dtype == DType::kF32) continue;  // no kernel takes fp32
      Format nameless = format;
      nameless.name.clear();
      if (known.insert(ToJson(nameless)).second) names.push_back(format.name);
    }
    names.insert(names.end(), {"VQ<6,10,2>-tile96x192", "VQ<3,5,3>", "VQ<16,16,1>", "VQ<5,6,1>-g5",
                               "VQ<12,9,2>-tensor-g24", "VQ<8,12,1>-out", "VQ<4,8,1>-ingroup128-out",
                               "VQ<3,7,2>-out-g64"});
    return names;
  }();
  return formats;
}

bool FullMatrix() { return std::getenv("VQLLM_FULL_MATRIX") != nullptr; }

}  // namespace vqllm::test
