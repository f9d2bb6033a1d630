#include "runtime/verify_kv.h"

#include <map>
#include <nlohmann/json.hpp>

#include "codegen/kv/traffic.h"
#include "runtime/ptx/interpreter.h"
#include "runtime/verify_counters.h"
#include "vq/base/check.h"

namespace vqllm {
namespace {

uint64_t Hash(uint64_t hash, const void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
  return hash;
}

/// Device memory of one run, by parameter name.
class Buffers {
 public:
  explicit Buffers(ptx::Memory& memory) : memory_(memory) {}
  template <typename T>
  void Add(const std::string& name, const std::vector<T>& values) {
    Add(name, values.size() * sizeof(T));
    if (!values.empty()) memory_.CopyIn(addresses_[name], values.data(), values.size() * sizeof(T));
  }
  void Add(const std::string& name, uint64_t bytes) { addresses_[name] = memory_.Allocate(bytes, name); }
  uint64_t Address(const std::string& name) const {
    const auto found = addresses_.find(name);
    VQLLM_CHECK(found != addresses_.end(), "{}", name);
    return found->second;
  }
  template <typename T>
  std::vector<T> Read(const std::string& name, size_t count) const {
    std::vector<T> values(count);
    if (count > 0) memory_.CopyOut(values.data(), Address(name), count * sizeof(T));
    return values;
  }

 private:
  ptx::Memory& memory_;
  std::map<std::string, uint64_t> addresses_;
};

/// What KvPlan's comment lets a caller leave out: rows that there are none of.
KernelLaunch ForRows(KernelLaunch launch, const KvProofCase& proof) {
  launch.grid_z = static_cast<int>(proof.sequences.size());
  return launch;
}

}  // namespace

VerifyReport Verify(const GeneratedKv& generated, const KernelCache& cache, const VerifyOptions& options,
                    const KvProofOptions& data) {
  const KvPlan& plan = generated.plan;
  const CachedKernel built = Build(generated, cache);
  const KvProofCase proof = MakeKvProofCase(plan, data);
  const ptx::Module module = ptx::Module::Parse(built.kernel.ptx, generated.FileName());
  ptx::Memory memory;
  Buffers buffers(memory);
  buffers.Add("rows", proof.rows);
  buffers.Add("pages", proof.pages);
  buffers.Add("keys", proof.keys);
  buffers.Add("values", proof.values);
  buffers.Add("key_books", proof.key_books);
  buffers.Add("value_books", proof.value_books);
  buffers.Add("exact", proof.exact);
  buffers.Add("rope", proof.rope);
  buffers.Add("q", proof.q);
  buffers.Add("k", proof.k);
  buffers.Add("v", proof.v);
  buffers.Add("out", std::vector<uint16_t>(proof.expected.size(), 0x7fff));
  const auto floats = static_cast<uint64_t>(plan.PartialFloats(static_cast<int>(proof.sequences.size())));
  buffers.Add("partial", 4 * floats);
  buffers.Add("partial_lse", 4 * floats / static_cast<uint64_t>(plan.shape.head_dim));

  ptx::LaunchOptions launch_options;
  launch_options.workers = options.workers;
  launch_options.hazards = options.hazards;
  launch_options.reverse_warps = options.reverse_warps;
  launch_options.uninitialised_global = options.hazards;
  VerifyReport report;
  ptx::Counters counters;
  for (const KernelLaunch& planned : plan.launches) {
    const KernelLaunch launch = ForRows(planned, proof);
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
    for (const ptx::Hazard& hazard : run.hazards) report.hazards.push_back(hazard.ToString());
    if (!run.completed) break;
  }
  if (plan.op == KvOp::kAppend) {
    const auto keys = buffers.Read<uint32_t>("keys", proof.keys.size());
    const auto stored = buffers.Read<uint32_t>("values", proof.values.size());
    const auto exact = buffers.Read<uint32_t>("exact", proof.exact.size());
    const KvAppendResult appended = CheckKvAppend(plan, proof, keys, stored, exact);
    report.result.worst_share = appended.wrong == 0 ? 0 : HUGE_VAL;
    report.result.passed = appended.wrong == 0 && appended.checked > 0;
    report.output_hash = 0xcbf29ce484222325u;
    for (const auto* words : {&keys, &stored, &exact})
      report.output_hash = Hash(report.output_hash, words->data(), 4 * words->size());
    if (!appended.message.empty()) report.hazards.push_back(appended.message);
  } else {
    const auto out = buffers.Read<uint16_t>("out", proof.expected.size());
    report.result = CheckKvProof(plan, proof, out);
    report.output_hash = Hash(0xcbf29ce484222325u, out.data(), 2 * out.size());
  }
  report.kernels = built.kernel.kernels;
  if (PredictsKvTraffic(plan)) {
    std::vector<int> lengths;
    for (const KvProofRow& row : proof.sequences) lengths.push_back(row.length);
    const Traffic predicted = KvTraffic(plan, lengths);
    internal::ReportTraffic(counters, &predicted, report);
  } else {
    internal::ReportTraffic(counters, nullptr, report);
  }
  return report;
}

std::string ToJson(const VerifyReport& report, const GeneratedKv& generated) {
  nlohmann::ordered_json json;
  json["kernel"] = generated.FileName();
  json["passed"] = report.passed();
  json["counters"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : report.counters) json["counters"][name] = value;
  json["predicted"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : report.predicted) json["predicted"][name] = value;
  return json.dump();
}

}  // namespace vqllm
