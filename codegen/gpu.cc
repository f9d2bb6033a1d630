#include "codegen/gpu.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/base/json_reader.h"
#include "vq/base/math.h"

namespace vqllm {
namespace {

// Sources, cited by the table below.
constexpr const char* kDatasheet = "vendor datasheet";
constexpr const char* kEstimate = "estimate";
constexpr const char* kAmpereA100 = "NVIDIA A100 whitepaper";
constexpr const char* kA100Query = "deviceQuery of an A100 40 GB (upb-pc2)";
constexpr const char* kA100L2 = "PMC10448217 table 3 (7219 GB/s theoretical), of which 75 % (estimate)";
constexpr const char* kHopper = "chipsandcheese.com, H100";
constexpr const char* kBlackwell = "chipsandcheese.com, B200";
constexpr const char* kAda = "NVIDIA Ada whitepaper";
constexpr const char* kLegacyMma = "4096 peak with wgmma, of which 62 % for mma.sync (estimate)";

std::vector<GpuSpec> MakeTable() {
  // clang-format off
  //        name        title          arch  SMs               GHz                  DRAM GB/s           L2 MiB              L2 GB/s             mma flop/clk/SM        fp32 lanes
  return {
      {"a10",       "A10 24 GB",       86, {72, kDatasheet},  {1.695, kDatasheet}, {600, kDatasheet},  {6, kDatasheet},    {2000, kEstimate},  {1024, kDatasheet},    {128, kDatasheet}},
      {"a40",       "A40 48 GB",       86, {84, kDatasheet},  {1.740, kDatasheet}, {696, kDatasheet},  {6, kDatasheet},    {2400, kEstimate},  {1024, kDatasheet},    {128, kDatasheet}},
      {"a100",      "A100 40 GB",      80, {108, kA100Query}, {1.410, kA100Query}, {1555, kA100Query}, {40, kA100Query},   {5414, kA100L2},    {2048, kAmpereA100},   {64, kAmpereA100}},
      {"a100-80",   "A100 80 GB",      80, {108, kA100Query}, {1.410, kA100Query}, {2039, kDatasheet}, {40, kDatasheet},   {5414, kA100L2},    {2048, kAmpereA100},   {64, kAmpereA100}},
      {"rtx4090",   "RTX 4090",        89, {128, kAda},       {2.520, kAda},       {1008, kAda},       {72, kAda},         {5000, kEstimate},  {1024, kAda},          {128, kAda}},
      {"l40s",      "L40S 48 GB",      89, {142, kDatasheet}, {2.520, kDatasheet}, {864, kDatasheet},  {96, kDatasheet},   {5500, kEstimate},  {1024, kEstimate},     {128, kAda}},
      {"h100",      "H100 SXM 80 GB",  90, {132, kHopper},    {1.830, kEstimate},  {3350, kDatasheet}, {50, kDatasheet},   {5700, kEstimate},  {2540, kLegacyMma},    {128, kHopper}},
      {"h200",      "H200 SXM 141 GB", 90, {132, kDatasheet}, {1.830, kEstimate},  {4800, kDatasheet}, {50, kDatasheet},   {5700, kEstimate},  {2540, kLegacyMma},    {128, kHopper}},
      {"b200",      "B200 192 GB",    100, {148, kBlackwell}, {1.850, kEstimate},  {7700, kDatasheet}, {126, kBlackwell},  {10000, kEstimate}, {2540, kEstimate},     {128, kEstimate}},
      {"rtx5090",   "RTX 5090",       120, {170, kDatasheet}, {2.407, kDatasheet}, {1792, kDatasheet}, {96, kDatasheet},   {6500, kEstimate},  {1024, kEstimate},     {128, kDatasheet}},
  };
  // clang-format on
}

// CUDA C++ Programming Guide 13.0, section "Compute Capabilities".
constexpr ArchLimits kArchs[] = {
    // arch, shared/SM, shared/block, reserved, registers, warps, blocks
    {80, 164 * 1024, 163 * 1024, 1024, 65536, 64, 32},  {86, 100 * 1024, 99 * 1024, 1024, 65536, 48, 16},
    {87, 164 * 1024, 163 * 1024, 1024, 65536, 48, 16},  {89, 100 * 1024, 99 * 1024, 1024, 65536, 48, 24},
    {90, 228 * 1024, 227 * 1024, 1024, 65536, 64, 32},  {100, 228 * 1024, 227 * 1024, 1024, 65536, 64, 32},
    {103, 228 * 1024, 227 * 1024, 1024, 65536, 64, 32}, {120, 100 * 1024, 99 * 1024, 1024, 65536, 48, 24},
    {121, 100 * 1024, 99 * 1024, 1024, 65536, 48, 24},
};

constexpr int kRegisterUnit = 256;  // 32-bit registers, allotted a warp
constexpr int kSharedUnit = 128;    // bytes
constexpr int kMaxRegisters = 255;  // a thread
constexpr int kWarpSchedulers = 4;  // an SM; each owns a quarter of the registers

GpuSpec FromJson(std::string_view text, const std::string& where) {
  const nlohmann::json json = ParseJson(text, where);
  const JsonReader reader(json, where);
  reader.AllowOnly({"name", "title", "arch", "sms", "clock_ghz", "dram_gb_per_s", "l2_mib", "l2_gb_per_s",
                    "mma_flop_clock", "fp32_lanes"});
  GpuSpec gpu;
  gpu.name = reader.String("name");
  const bool plain = !gpu.name.empty() && gpu.name.size() <= 32 &&
                     std::all_of(gpu.name.begin(), gpu.name.end(), [](unsigned char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                              c == '-' || c == '_' || c == '.';
                     });
  if (!plain) reader.Refuse("name", "1 to 32 of A-Z a-z 0-9 - _ .");
  gpu.title = gpu.name;
  gpu.arch = static_cast<int>(reader.Int("arch", 80, 199));
  LimitsOf(gpu.arch);
  const std::string source = "user, " + where;
  gpu.sms = {static_cast<double>(reader.Int("sms", 1, 1024)), source};
  gpu.clock_ghz = {reader.Number("clock_ghz", 0.1, 10), source};
  gpu.dram_gb_per_s = {reader.Number("dram_gb_per_s", 1, 1e6), source};
  gpu.l2_mib = {reader.Number("l2_mib", 0.25, 4096), source};
  // What few people know of their GPU: per clock and SM as the members of its family, 32 bytes of L2.
  const bool ampere_server = gpu.arch == 80;
  const bool server = ampere_server || gpu.arch == 90 || gpu.arch == 100 || gpu.arch == 103;
  const auto or_family = [&](const char* field, double low, double high, double family) {
    return reader.Has(field) ? Figure{reader.Number(field, low, high), source} : Figure{family, kEstimate};
  };
  gpu.l2_gb_per_s = or_family("l2_gb_per_s", 1, 1e6, 24 * gpu.sms.value * gpu.clock_ghz.value);
  gpu.mma_flop_clock = or_family("mma_flop_clock", 64, 65536, ampere_server ? 2048 : server ? 2540 : 1024);
  gpu.fp32_lanes = or_family("fp32_lanes", 16, 1024, ampere_server ? 64 : 128);
  return gpu;
}

}  // namespace

std::string GpuSpec::Arch() const { return fmt::format("sm_{}", arch); }

const std::vector<GpuSpec>& KnownGpus() {
  static const std::vector<GpuSpec> table = MakeTable();
  return table;
}

GpuSpec ParseGpu(std::string_view text) {
  for (const GpuSpec& gpu : KnownGpus()) {
    if (gpu.name == text) return gpu;
  }
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return FromJson(text, "gpu");
  if (text.ends_with(".json"))
    return FromJson(ReadTextFile(std::filesystem::path(text), uint64_t{1} << 20), std::string(text));
  std::string names;
  for (const GpuSpec& gpu : KnownGpus()) names += (names.empty() ? "" : " ") + gpu.name;
  Fail("gpu: found {}, allowed: {}, a JSON object, the path of a .json file",
       nlohmann::json(text.substr(0, 48)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
       names);
}

const ArchLimits& LimitsOf(int arch) {
  for (const ArchLimits& limits : kArchs) {
    if (limits.arch == arch) return limits;
  }
  std::string archs;
  for (const ArchLimits& limits : kArchs) archs += fmt::format(" {}", limits.arch);
  Fail("gpu: arch: found {}, allowed:{}", arch, archs);
}

std::string ToJson(const GpuSpec& gpu) {
  const auto figure = [](const Figure& f) {
    return nlohmann::ordered_json{{"value", f.value}, {"source", f.source}};
  };
  nlohmann::ordered_json json;
  json["name"] = gpu.name;
  json["title"] = gpu.title;
  json["arch"] = gpu.arch;
  json["sms"] = figure(gpu.sms);
  json["clock_ghz"] = figure(gpu.clock_ghz);
  json["dram_gb_per_s"] = figure(gpu.dram_gb_per_s);
  json["l2_mib"] = figure(gpu.l2_mib);
  json["l2_gb_per_s"] = figure(gpu.l2_gb_per_s);
  json["mma_flop_clock"] = figure(gpu.mma_flop_clock);
  json["fp32_lanes"] = figure(gpu.fp32_lanes);
  return json.dump();
}

Occupancy ComputeOccupancy(const ArchLimits& limits, int threads, int registers, int shared_bytes) {
  VQLLM_CHECK(threads >= 1 && threads <= 1024 && registers >= 0 && shared_bytes >= 0, "{} {} {}", threads,
              registers, shared_bytes);
  const int warps = (threads + 31) / 32;
  // A warp's registers come out of the quarter of its scheduler, so warps a block round up to four there.
  const auto by_registers = [&](int wanted) {
    const int per_warp = RoundUp(std::max(wanted, 1) * 32, kRegisterUnit);
    const int warps_quarter = limits.registers_sm / kWarpSchedulers / per_warp;
    return warps_quarter * kWarpSchedulers / warps;
  };
  const auto by_shared = [&](int wanted) {
    return limits.shared_sm / RoundUp(wanted + limits.shared_reserved, kSharedUnit);
  };
  Occupancy result;
  if (shared_bytes > limits.shared_block || registers > kMaxRegisters) {
    result.limit = "too large";
    return result;
  }
  const struct {
    int blocks;
    const char* name;
  } bounds[] = {{limits.warps_sm / warps, "warps"},
                {limits.blocks_sm, "blocks"},
                {by_registers(registers), "registers"},
                {by_shared(shared_bytes), "shared"}};
  result.blocks = bounds[0].blocks;
  result.limit = bounds[0].name;
  for (const auto& bound : bounds) {
    if (bound.blocks >= result.blocks) continue;
    result.blocks = bound.blocks;
    result.limit = bound.name;
  }
  result.warps = result.blocks * warps;
  if (result.blocks == 0) {
    result.limit = "too large";
    return result;
  }
  const int share = limits.shared_sm / result.blocks / kSharedUnit * kSharedUnit - limits.shared_reserved;
  result.slack_shared = std::min(share, limits.shared_block) - shared_bytes;
  int most = registers;
  while (most < kMaxRegisters && by_registers(most + 1) >= result.blocks) ++most;
  result.slack_registers = most - registers;
  return result;
}

}  // namespace vqllm
