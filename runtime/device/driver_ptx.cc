#include "runtime/device/driver.h"
#include "runtime/ptx/interpreter.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

constexpr int kSectorBytes = 32;
constexpr int kLineSectors = 4;

class PtxModule final : public GpuModule {
 public:
  explicit PtxModule(ptx::Module from) : module(std::move(from)) {}
  const ptx::Module module;
};

LaunchCounts CountsOf(const ptx::Counters& c) {
  using ptx::Counter;
  const auto sum = [&](std::initializer_list<Counter> counters) {
    uint64_t total = 0;
    for (const Counter counter : counters) total += c[counter];
    return static_cast<double>(total);
  };
  LaunchCounts counts;
  counts.dram_bytes =
      kSectorBytes * sum({Counter::kGlobalLoadSectorsPerLaunch, Counter::kGlobalStoreSectorsPerLaunch});
  counts.l2_bytes =
      kSectorBytes * sum({Counter::kGlobalLoadSectorsPerBlock, Counter::kGlobalStoreSectorsPerBlock});
  counts.shared_wavefronts =
      sum({Counter::kSharedLoadWavefronts, Counter::kSharedStoreWavefronts, Counter::kSharedAtomicWavefronts,
           Counter::kMatrixLoadWavefronts, Counter::kAsyncCopyWavefronts});
  counts.shared_ideal = sum({Counter::kSharedLoadWavefrontsIdeal, Counter::kSharedStoreWavefrontsIdeal,
                             Counter::kSharedAtomicWavefronts, Counter::kMatrixLoadWavefrontsIdeal,
                             Counter::kAsyncCopyWavefronts});
  counts.global_lines = sum({Counter::kGlobalLoadSectors, Counter::kGlobalStoreSectors,
                             Counter::kGlobalAtomicSectors, Counter::kAsyncCopySectors}) /
                        kLineSectors;
  counts.instructions = sum({Counter::kWarpInstructions}) -
                        static_cast<double>(c.Warp(ptx::InstructionClass::kMove)) -
                        static_cast<double>(c.Warp(ptx::InstructionClass::kLoadParam));
  counts.tensor_flops = sum({Counter::kTensorFlops});
  return counts;
}

class PtxDriver final : public GpuDriver {
 public:
  PtxDriver(const GpuSpec& gpu, const PtxDriverOptions& options) : gpu_(gpu) {
    launch_.hazards = options.hazards;
    launch_.uninitialised_global = false;  // memory is handed out filled with zeros
    launch_.workers = options.workers;
  }

  std::string Describe() const override {
    return fmt::format("PTX interpreter, kernels for {} ({}){}", gpu_.title, gpu_.Arch(),
                       launch_.hazards ? ", hazard checks on" : "");
  }
  const GpuSpec& gpu() const override { return gpu_; }
  bool Counts() const override { return true; }

  DeviceAddress Allocate(int64_t bytes, const std::string& name) override {
    const DeviceAddress address = memory_.Allocate(static_cast<uint64_t>(bytes), name);
    if (bytes > 0) memory_.Fill(address, 0, static_cast<uint64_t>(bytes));
    return address;
  }
  void Free(DeviceAddress address) override { memory_.Free(address); }
  void Upload(DeviceAddress to, const void* from, int64_t bytes) override {
    if (bytes > 0) memory_.CopyIn(to, from, static_cast<uint64_t>(bytes));
  }
  void Download(void* to, DeviceAddress from, int64_t bytes) override {
    if (bytes > 0) memory_.CopyOut(to, from, static_cast<uint64_t>(bytes));
  }

  std::unique_ptr<GpuModule> Load(const CompiledKernel& kernel, const std::string& name) override {
    return std::make_unique<PtxModule>(ptx::Module::Parse(kernel.ptx, name));
  }

  LaunchCounts Launch(const GpuModule& module, const std::string& kernel, const LaunchSize& size,
                      std::span<const void* const> arguments) override {
    const ptx::LaunchReport report = ptx::Launch(
        memory_, static_cast<const PtxModule&>(module).module, kernel,
        {static_cast<uint32_t>(size.blocks_x), static_cast<uint32_t>(size.blocks_y),
         static_cast<uint32_t>(size.blocks_z)},
        {static_cast<uint32_t>(size.threads)}, static_cast<uint32_t>(size.shared_bytes), arguments, launch_);
    if (!report.hazards.empty()) {
      Fail("kernel {}: {} kind(s) of hazard, first: {}", kernel, report.hazards.size(),
           report.hazards.front().ToString());
    }
    return CountsOf(report.counters);
  }
  void Synchronise() override {}

  std::unique_ptr<GpuGraph> Record(const std::function<void()>&) override { return nullptr; }
  void Replay(const GpuGraph&) override { Fail("the PTX interpreter records no graphs"); }

 private:
  GpuSpec gpu_;
  ptx::Memory memory_;
  ptx::LaunchOptions launch_;
};

}  // namespace

std::unique_ptr<GpuDriver> NewPtxDriver(const GpuSpec& gpu, const PtxDriverOptions& options) {
  return std::make_unique<PtxDriver>(gpu, options);
}

}  // namespace vqllm
