#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vqllm {

/// A number of a GPU and where it comes from: a citation, or "estimate". Nothing measured on hardware of
/// ours.
struct Figure {
  double value = 0;
  std::string source;
};

/// What the planner and the latency model know of a GPU.
struct GpuSpec {
  std::string name;   ///< as on the command line: "a100"
  std::string title;  ///< "A100 40 GB"
  int arch = 0;       ///< compute capability: 80 for sm_80

  Figure sms;             ///< streaming multiprocessors
  Figure clock_ghz;       ///< boost
  Figure dram_gb_per_s;   ///< 10^9 bytes a second, vendor peak
  Figure l2_mib;          ///< capacity
  Figure l2_gb_per_s;     ///< read bandwidth that a kernel can see
  Figure mma_flop_clock;  ///< fp16 mma.sync with fp32 accumulators: flop a clock and SM
  Figure fp32_lanes;      ///< fp32 FMA a clock and SM

  std::string Arch() const;  ///< "sm_80"
};

/// Resources of a compute capability (CUDA C++ Programming Guide, table "Technical Specifications per Compute
/// Capability").
struct ArchLimits {
  int arch = 0;
  int shared_sm = 0;        ///< bytes of shared memory an SM
  int shared_block = 0;     ///< bytes a block may opt in to
  int shared_reserved = 0;  ///< bytes the system takes a resident block
  int registers_sm = 0;     ///< 32-bit registers an SM
  int warps_sm = 0;
  int blocks_sm = 0;
};

/// The table of gpu.cc, in its order.
const std::vector<GpuSpec>& KnownGpus();

/// A name of the table ("a100", "rtx4090"), a JSON object in text or the path of a .json file with the
/// members of GpuSpec as numbers (name, arch, sms, clock_ghz, dram_gb_per_s, l2_mib and, where known, the
/// others). Throws Error that names the field.
GpuSpec ParseGpu(std::string_view text);

/// Throws Error for an arch that the generator does not serve (sm_80 is the least).
const ArchLimits& LimitsOf(int arch);

/// One JSON object on one line, each figure with its source.
std::string ToJson(const GpuSpec& gpu);

/// What stays of an SM when blocks of one kind fill it.
struct Occupancy {
  int blocks = 0;           ///< resident blocks an SM; 0: the block does not fit
  int warps = 0;            ///< resident warps an SM
  const char* limit = "";   ///< "registers", "shared", "warps", "blocks", or "too large"
  int slack_shared = 0;     ///< bytes more a block at the same number of resident blocks
  int slack_registers = 0;  ///< registers more a thread at the same number of resident blocks
};

/// Resident blocks as cuda_occupancy.h computes them, and the slack of the VQ-LLM paper (section V):
/// registers are allotted a warp in units of 256, shared memory a block in units of 128 bytes after the
/// reserved ones.
Occupancy ComputeOccupancy(const ArchLimits& limits, int threads, int registers, int shared_bytes);

}  // namespace vqllm
