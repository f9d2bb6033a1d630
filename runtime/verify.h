#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "codegen/generate.h"
#include "codegen/proof.h"
#include "runtime/hot_lines.h"

namespace vqllm {

struct VerifyOptions {
  uint64_t seed = 1;
  ProofInputs inputs = ProofInputs::kNormal;
  bool hazards = true;  ///< races, uninitialised reads, missing waits, divergent barriers
  int workers = 1;      ///< threads of the interpreter; no result depends on it
  bool reverse_warps = false;
  bool lines = false;  ///< what each line of the emitted file cost
};

/// The proof of an emitted kernel on this machine: compiled for its arch, run by the PTX interpreter on
/// seeded data, compared with the oracle.
struct VerifyReport {
  ProofResult result;
  std::vector<std::string> hazards;                        ///< one line each; empty for a correct kernel
  std::vector<std::pair<std::string, uint64_t>> counters;  ///< counted, under the interpreter's names
  std::vector<std::pair<std::string, double>> predicted;   ///< the plan's closed forms for some of them
  std::vector<KernelResources> kernels;
  std::vector<LineCost> lines;  ///< over all launches of the plan; empty without VerifyOptions::lines
  uint64_t output_hash = 0;     ///< of the bytes written: the same at every run

  bool passed() const { return result.passed && hazards.empty(); }
};

/// Throws Error where there is no compiler, or the text does not compile within its plan.
VerifyReport Verify(const Generated& generated, const KernelCache& cache, const VerifyOptions& options = {});

/// {"max_rel_err","tolerance","hazards","counters","predicted","registers","spills","shared_bytes","modelled"}
/// on one line, with "lines" where they were counted.
std::string ToJson(const VerifyReport& report, const Generated& generated);

}  // namespace vqllm
