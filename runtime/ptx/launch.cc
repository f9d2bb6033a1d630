#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "runtime/ptx/block_runner.h"
#include "runtime/ptx/cpu_support.h"
#include "runtime/ptx/interpreter.h"
#include "vq/base/error.h"

namespace vqllm::ptx {
namespace {

constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxShared = 227 * 1024;  // of a block, the most of any GPU (compute capability 9.0)
constexpr uint64_t kMaxWorkerBytes = uint64_t{1} << 31;  // registers and local memory of a resident block

const ProgramFunction& FindKernel(const Module& module, std::string_view name) {
  module.Kernel(name);  // throws where it is not there
  return *std::ranges::find_if(module.program()->functions,
                               [&](const ProgramFunction& f) { return f.is_kernel && f.name == name; });
}

void CheckLaunch(const LaunchContext& launch, size_t arguments) {
  const ProgramFunction& kernel = *launch.kernel;
  const Dim3& g = launch.grid;
  const Dim3& b = launch.threads;
  const auto product = [](const Dim3& d) { return uint64_t{d.x} * d.y * d.z; };
  if (b.x == 0 || b.y == 0 || b.z == 0 || b.x > kMaxThreads || b.y > kMaxThreads || b.z > kMaxThreads ||
      product(b) > kMaxThreads) {
    Fail("kernel '{}': block: found ({}, {}, {}), allowed: 1 to {} threads", kernel.name, b.x, b.y, b.z,
         kMaxThreads);
  }
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 ||
      product(g) > 0xfffffffeu) {
    Fail("kernel '{}': grid: found ({}, {}, {}), allowed: up to (2147483647, 65535, 65535)", kernel.name, g.x,
         g.y, g.z);
  }
  if (kernel.max_threads != 0 && product(b) > kernel.max_threads) {
    Fail("kernel '{}': block: found {} threads, allowed: {} (.maxntid)", kernel.name, product(b),
         kernel.max_threads);
  }
  const uint32_t* required = kernel.required_threads;
  if (required[0] != 0 && (b.x != required[0] || b.y != required[1] || b.z != required[2])) {
    Fail("kernel '{}': block: found ({}, {}, {}), allowed: ({}, {}, {}) (.reqntid)", kernel.name, b.x, b.y,
         b.z, required[0], required[1], required[2]);
  }
  if (launch.shared_bytes > kMaxShared) {
    Fail("kernel '{}': shared memory: found {} bytes, allowed: {}", kernel.name, launch.shared_bytes,
         kMaxShared);
  }
  if (arguments != kernel.parameters.size()) {
    Fail("kernel '{}': arguments: found {}, allowed: {}", kernel.name, arguments, kernel.parameters.size());
  }
  const uint64_t warps = (product(b) + kWarpSize - 1) / kWarpSize;
  const uint64_t bytes = warps * (kernel.warp_registers + uint64_t{kernel.thread_local_bytes} * kWarpSize);
  if (bytes > kMaxWorkerBytes) {
    Fail("kernel '{}': a block takes {} bytes of registers and local memory, allowed: {}", kernel.name, bytes,
         kMaxWorkerBytes);
  }
  if (launch.options->workers < 1 || launch.options->workers > 1024) {
    Fail("workers: found {}, allowed: 1 to 1024", launch.options->workers);
  }
}

// The values of all literals and addresses, 32 times each.
void FillConstants(LaunchContext& launch) {
  const Program& program = *launch.program;
  launch.constants.resize(program.constant_bytes + 64);
  const uintptr_t raw = reinterpret_cast<uintptr_t>(launch.constants.data());
  launch.constants_begin = reinterpret_cast<char*>(launch.constants.data() + ((raw + 63) / 64 * 64 - raw));
  std::vector<uint64_t> address = launch.instance->addresses;
  for (size_t i = 0; i < address.size(); ++i) {
    if (program.variables[i].space == Space::kConst) address[i] = program.variables[i].const_offset;
  }
  for (const auto& [variable, offset] : launch.kernel->shared_layout) {
    address[static_cast<size_t>(variable)] = offset;
  }
  for (const ProgramConstant& constant : program.constants) {
    uint64_t bits = constant.bits;
    if (constant.variable >= 0) bits += address[static_cast<size_t>(constant.variable)];
    char* out = launch.constants_begin + constant.offset;
    const size_t bytes = constant.bytes == 0 ? 4 : constant.bytes;
    const int copies = constant.bytes == 0 ? 1 : kWarpSize;
    for (int i = 0; i < copies; ++i) std::memcpy(out + static_cast<size_t>(i) * bytes, &bits, bytes);
  }
}

// Runs all blocks on the workers. Blocks start in order; after a failure no later one starts.
void RunBlocks(const LaunchContext& launch, std::vector<std::unique_ptr<BlockRunner>>& runners) {
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&](BlockRunner& runner) {
    try {
      while (!stop.load()) {
        const uint64_t block = next.fetch_add(1);
        if (block >= launch.blocks()) return;
        runner.Run(block);
        if (runner.block().failed) stop.store(true);
      }
    } catch (...) {
      const std::scoped_lock lock(mutex);
      error = std::current_exception();
      stop.store(true);
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < runners.size(); ++i) threads.emplace_back(work, std::ref(*runners[i]));
  work(*runners[0]);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

void SumCounts(const LaunchContext& launch, const std::vector<std::unique_ptr<BlockRunner>>& runners,
               LaunchReport& report) {
  const Program& program = *launch.program;
  for (size_t pc = 0; pc < program.code.size(); ++pc) {
    uint64_t warps = 0;
    uint64_t threads = 0;
    LineTraffic traffic;
    for (const auto& runner : runners) {
      warps += runner->warp_counts()[pc];
      threads += runner->thread_counts()[pc];
      if (runner->block().traffic.empty()) continue;
      traffic.sectors += runner->block().traffic[pc].sectors;
      traffic.wavefronts += runner->block().traffic[pc].wavefronts;
    }
    if (warps == 0) continue;
    const InstructionClass cls = program.code[pc].cls;
    report.counters.Warp(cls) += warps;
    report.counters.Thread(cls) += threads;
    report.counters[Counter::kWarpInstructions] += warps;
    report.counters[Counter::kThreadInstructions] += threads;
    const InstructionText& text = program.texts[pc];
    if (!launch.options->lines || text.line == 0) continue;
    report.lines.push_back({text.line, text.source.line, program.FileName(text.source.file),
                            std::string(text.text), warps, threads, traffic.sectors, traffic.wavefronts});
  }
  report.thread_instructions = report.counters[Counter::kThreadInstructions];
}

// Where an instruction of a block stands, for a Hazard or a HazardPeer.
template <typename Side>
void FillPlace(const LaunchContext& launch, uint32_t pc, uint64_t block, Side& side) {
  const InstructionText& text = launch.program->texts[pc];
  side.ptx_line = text.line;
  side.source_line = text.source.line;
  side.source_file = launch.program->FileName(text.source.file);
  side.text = text.text;
  side.block[0] = static_cast<uint32_t>(block % launch.grid.x);
  side.block[1] = static_cast<uint32_t>(block / launch.grid.x % launch.grid.y);
  side.block[2] = static_cast<uint32_t>(block / launch.grid.x / launch.grid.y);
}

void CollectHazards(const LaunchContext& launch, const HazardLog& log, LaunchReport& report) {
  for (const auto& [key, entry] : log.entries()) {
    Hazard hazard;
    hazard.kind = key.second;
    hazard.count = entry.count;
    FillPlace(launch, key.first, entry.block, hazard);
    hazard.warp = entry.warp;
    hazard.lane = entry.lane;
    hazard.address = entry.address;
    hazard.detail = entry.detail;
    if (entry.other.pc != AccessSite::kNoPc) {
      HazardPeer& other = hazard.other.emplace();
      FillPlace(launch, entry.other.pc, entry.other.block, other);
      other.warp = entry.other.warp;
      other.lane = entry.other.lane;
    }
    report.hazards.push_back(std::move(hazard));
  }
  std::ranges::stable_sort(report.hazards, {}, [](const Hazard& h) { return std::pair(h.ptx_line, h.kind); });
}

}  // namespace

LaunchReport Launch(Memory& memory, const Module& module, std::string_view kernel_name, Dim3 grid, Dim3 block,
                    uint32_t dynamic_shared, std::span<const void* const> arguments,
                    const LaunchOptions& options) {
  RequireCpuSupport();
  const auto start = std::chrono::steady_clock::now();
  LaunchContext launch;
  const ProgramFunction& kernel = FindKernel(module, kernel_name);
  launch.program = module.program().get();
  launch.kernel = &kernel;
  launch.memory = &memory;
  launch.options = &options;
  launch.grid = grid;
  launch.threads = block;
  launch.dynamic_shared = dynamic_shared;
  const uint64_t align = kernel.dynamic_align;
  const uint64_t statics =
      dynamic_shared == 0 ? kernel.static_shared : (kernel.static_shared + align - 1) / align * align;
  launch.shared_bytes = static_cast<uint32_t>(std::min<uint64_t>(statics + dynamic_shared, 0xffffffffu));
  CheckLaunch(launch, arguments.size());
  launch.instance = &memory.InstanceOf(module.program());
  launch.arguments.assign(kernel.parameter_bytes + 16, 0);
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::memcpy(launch.arguments.data() + kernel.parameters[i].offset, arguments[i],
                kernel.parameters[i].bytes);
  }
  FillConstants(launch);
  LaunchShadow shadow(memory, options.hazards, kernel.ordered);
  launch.shadow = &shadow;
  const uint64_t workers =
      kernel.ordered ? 1 : std::min<uint64_t>(static_cast<uint64_t>(options.workers), launch.blocks());
  std::vector<std::unique_ptr<BlockRunner>> runners;
  for (uint64_t i = 0; i < workers; ++i) runners.push_back(std::make_unique<BlockRunner>(launch));
  RunBlocks(launch, runners);

  LaunchReport report;
  HazardLog log;
  for (const auto& runner : runners) {
    report.instructions += runner->executed();
    report.counters += runner->block().counters;
    report.completed &= !runner->block().failed;
    log.Merge(runner->block().hazards);
    for (size_t i = 0; i < runner->block().stored.size(); ++i) {
      // Without the map of written bytes, what was written to at all counts as written.
      Segment& segment = *memory.segments()[i];
      if (runner->block().stored[i] && !(options.hazards && options.uninitialised_global)) {
        Memory::MarkWritten(segment, 0, segment.size);
      }
    }
  }
  for (const LaunchShadow::Race& race : shadow.Races()) {
    log.Record(HazardKind::kGlobalRace, race.writer.pc, race.writer.block, race.writer.warp, race.writer.lane,
               race.address, race.write_write ? "written by another block too" : "read by another block",
               race.other);
  }
  CollectHazards(launch, log, report);
  if (options.counters) {
    SumCounts(launch, runners, report);
    report.counters[Counter::kGlobalLoadSectorsPerLaunch] = shadow.LoadedSectors();
    report.counters[Counter::kGlobalStoreSectorsPerLaunch] = shadow.StoredSectors();
    report.counters[Counter::kSharedBytesPerBlock] = launch.shared_bytes;
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

std::string LaunchReport::ToString() const {
  std::string out = fmt::format("{} warp instructions in {:.3f} s{}\n", instructions, seconds,
                                completed ? "" : ", given up");
  for (size_t i = 0; i < static_cast<size_t>(Counter::kCount); ++i) {
    const Counter counter = static_cast<Counter>(i);
    if (counters[counter] != 0)
      out += fmt::format("  {:<48} {}\n", Describe(counter).name, counters[counter]);
  }
  for (const Hazard& hazard : hazards) out += "  " + hazard.ToString() + "\n";
  return out;
}

}  // namespace vqllm::ptx
