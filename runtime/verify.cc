#include "runtime/verify.h"

#include <map>
#include <nlohmann/json.hpp>

#include "runtime/ptx/interpreter.h"
#include "runtime/verify_counters.h"
#include "vq/base/check.h"

namespace vqllm {
namespace {

/// Device memory of one run, by parameter name.
class Buffers {
 public:
  explicit Buffers(ptx::Memory& memory) : memory_(memory) {}
  template <typename T>
  void Add(const std::string& name, const std::vector<T>& values) {
    const uint64_t address = memory_.Allocate(values.size() * sizeof(T), name);
    if (!values.empty()) memory_.CopyIn(address, values.data(), values.size() * sizeof(T));
    addresses_[name] = address;
  }
  void Add(const std::string& name, uint64_t bytes) { addresses_[name] = memory_.Allocate(bytes, name); }
  uint64_t Address(const std::string& name) const {
    const auto found = addresses_.find(name);
    VQLLM_CHECK(found != addresses_.end(), "{}", name);
    return found->second;
  }

 private:
  ptx::Memory& memory_;
  std::map<std::string, uint64_t> addresses_;
};

uint64_t HashOf(const std::vector<uint16_t>& values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint16_t value : values) hash = (hash ^ value) * 0x100000001b3u;
  return hash;
}

}  // namespace

VerifyReport Verify(const Generated& generated, const KernelCache& cache, const VerifyOptions& options) {
  const Plan& plan = generated.plan();
  const CachedKernel built = Build(generated, cache);
  const ProofCase proof = MakeProofCase(plan, options.seed, options.inputs);
  const ptx::Module module = ptx::Module::Parse(built.kernel.ptx, generated.FileName());
  ptx::Memory memory;
  Buffers buffers(memory);
  buffers.Add("codes", proof.weights.codes);
  buffers.Add("codebooks", proof.weights.codebooks);
  buffers.Add("scales", proof.weights.scales);
  buffers.Add("factors", proof.weights.factors);
  buffers.Add("x", proof.x);
  buffers.Add("bias", proof.bias);
  const std::string output = plan.op == OpKind::kDequant ? "w" : "y";
  buffers.Add(output, 2 * proof.expected.size());
  buffers.Add("partial", plan.split > 1 ? uint64_t{4} * static_cast<uint64_t>(plan.split) *
                                              static_cast<uint64_t>(plan.m) * static_cast<uint64_t>(plan.n)
                                        : 0);
  ptx::LaunchOptions launch_options;
  launch_options.workers = options.workers;
  launch_options.hazards = options.hazards;
  launch_options.reverse_warps = options.reverse_warps;
  launch_options.lines = options.lines;
  VerifyReport report;
  ptx::Counters counters;
  std::vector<ptx::LineCount> lines;
  for (const KernelLaunch& launch : plan.launches) {
    std::vector<uint64_t> values;
    for (const std::string& name : launch.parameters) values.push_back(buffers.Address(name));
    std::vector<const void*> arguments;
    for (const uint64_t& value : values) arguments.push_back(&value);
    const ptx::LaunchReport run =
        ptx::Launch(memory, module, launch.kernel,
                    {static_cast<uint32_t>(launch.grid_x), static_cast<uint32_t>(launch.grid_y),
                     static_cast<uint32_t>(launch.grid_z)},
                    {static_cast<uint32_t>(launch.threads)}, static_cast<uint32_t>(launch.shared_bytes),
                    arguments, launch_options);
    counters += run.counters;
    lines.insert(lines.end(), run.lines.begin(), run.lines.end());
    for (const ptx::Hazard& hazard : run.hazards) report.hazards.push_back(hazard.ToString());
    if (!run.completed) break;
  }
  std::vector<uint16_t> out(proof.expected.size());
  memory.CopyOut(out.data(), buffers.Address(output), 2 * out.size());
  report.result = CheckProof(plan, proof, out);
  report.output_hash = HashOf(out);
  report.kernels = built.kernel.kernels;
  report.lines = SumByLine(lines, generated.text, generated.FileName());
  internal::ReportTraffic(counters, &generated.planned.best.counters.traffic, report);
  return report;
}

std::string ToJson(const VerifyReport& report, const Generated& generated) {
  const ModelledTime& time = generated.planned.best.time;
  nlohmann::ordered_json json;
  json["kernel"] = generated.FileName();
  json["passed"] = report.passed();
  json["max_rel_err"] = report.result.max_relative_error;
  json["tolerance"] = report.result.tolerance;
  json["hazards"] = report.hazards;
  json["counters"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : report.counters) json["counters"][name] = value;
  json["predicted"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : report.predicted) json["predicted"][name] = value;
  for (const LineCost& line : report.lines) {
    json["lines"].push_back({{"line", line.line},
                             {"text", line.text},
                             {"warp_instructions", line.warp_instructions},
                             {"thread_instructions", line.thread_instructions},
                             {"sectors", line.sectors},
                             {"wavefronts", line.wavefronts}});
  }
  int registers = 0;
  int spills = 0;
  for (const KernelResources& kernel : report.kernels) {
    registers = std::max(registers, kernel.registers);
    spills += kernel.spill_bytes;
  }
  json["registers"] = registers;
  json["spills"] = spills;
  json["shared_bytes"] = generated.plan().shared_bytes;
  json["modelled"] = {{"lower_us", time.lower_us}, {"upper_us", time.upper_us}, {"bound", time.bound}};
  return json.dump();
}

}  // namespace vqllm
