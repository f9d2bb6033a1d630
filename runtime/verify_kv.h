#pragma once

#include "codegen/kv/generate.h"
#include "codegen/kv/proof.h"
#include "runtime/verify.h"

namespace vqllm {

/// The proof of an emitted kernel of a KV cache, as Verify for the linear ops: compiled, run by the PTX
/// interpreter on seeded data, compared with the oracle. Throws Error as Verify does.
VerifyReport Verify(const GeneratedKv& generated, const KernelCache& cache, const VerifyOptions& options = {},
                    const KvProofOptions& data = {});

/// As ToJson of the linear ops.
std::string ToJson(const VerifyReport& report, const GeneratedKv& generated);

}  // namespace vqllm
