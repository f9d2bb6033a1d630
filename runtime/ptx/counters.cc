#include "runtime/ptx/counters.h"

#include "vq/base/check.h"

namespace vqllm::ptx {
namespace {

constexpr std::string_view kClassNames[] = {
    "integer",    "float32",     "half",        "float64",      "special function", "convert",
    "move",       "compare",     "load global", "store global", "load shared",      "store shared",
    "load local", "store local", "load param",  "atomic",       "shuffle",          "vote",
    "tensor",     "ldmatrix",    "cp.async",    "barrier",      "branch",           "other",
};
static_assert(std::size(kClassNames) == static_cast<size_t>(InstructionClass::kCount));

constexpr CounterInfo kInfos[] = {
    {Counter::kWarpInstructions, "warp instructions", "smsp__inst_executed.sum",
     "PTX instructions issued to warps, those whose guard is false in every lane among them"},
    {Counter::kThreadInstructions, "thread instructions", "smsp__thread_inst_executed_pred_on.sum",
     "the same, once for every active lane whose guard is true"},
    {Counter::kGlobalLoadRequests, "global load requests", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
     "warp loads from global memory"},
    {Counter::kGlobalLoadBytes, "global load bytes", "smsp__sass_data_bytes_mem_global_op_ld.sum",
     "bytes that the lanes asked for"},
    {Counter::kGlobalLoadSectors, "global load sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
     "32-byte sectors, distinct within each request"},
    {Counter::kGlobalStoreRequests, "global store requests",
     "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "warp stores to global memory"},
    {Counter::kGlobalStoreBytes, "global store bytes", "smsp__sass_data_bytes_mem_global_op_st.sum",
     "bytes that the lanes wrote"},
    {Counter::kGlobalStoreSectors, "global store sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
     "32-byte sectors, distinct within each request"},
    {Counter::kGlobalLoadSectorsPerBlock, "global load sectors, first touch per block",
     "lts__t_sectors_srcunit_tex_op_read.sum",
     "sectors distinct within a block, cp.async and atomics included: what L2 serves if L1 never evicts"},
    {Counter::kGlobalStoreSectorsPerBlock, "global store sectors, first touch per block",
     "lts__t_sectors_srcunit_tex_op_write.sum", "sectors distinct within a block"},
    {Counter::kGlobalLoadSectorsPerLaunch, "global load sectors, first touch per launch",
     "dram__sectors_read.sum", "sectors distinct within the launch: what DRAM serves if L2 never evicts"},
    {Counter::kGlobalStoreSectorsPerLaunch, "global store sectors, first touch per launch",
     "dram__sectors_write.sum", "sectors distinct within the launch"},
    {Counter::kGlobalAtomicRequests, "global atomic requests",
     "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum", "warp instructions atom and red on global memory"},
    {Counter::kGlobalAtomicSectors, "global atomic sectors",
     "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum", "32-byte sectors, distinct within each request"},
    {Counter::kLocalLoadRequests, "local load requests", "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
     "warp loads from local memory (arrays that the compiler did not keep in registers)"},
    {Counter::kLocalStoreRequests, "local store requests", "l1tex__t_requests_pipe_lsu_mem_local_op_st.sum",
     "warp stores to local memory"},
    {Counter::kSharedLoadRequests, "shared load requests", "smsp__sass_inst_executed_op_shared_ld.sum",
     "warp loads from shared memory, without ldmatrix"},
    {Counter::kSharedLoadBytes, "shared load bytes", "smsp__sass_data_bytes_mem_shared_op_ld.sum",
     "bytes that the lanes asked for"},
    {Counter::kSharedLoadWavefronts, "shared load wavefronts",
     "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "passes over the 32 banks"},
    {Counter::kSharedLoadWavefrontsIdeal, "shared load wavefronts, ideal",
     "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld_ideal",
     "passes if no two lanes met in a bank"},
    {Counter::kSharedStoreRequests, "shared store requests", "smsp__sass_inst_executed_op_shared_st.sum",
     "warp stores to shared memory"},
    {Counter::kSharedStoreBytes, "shared store bytes", "smsp__sass_data_bytes_mem_shared_op_st.sum",
     "bytes that the lanes wrote"},
    {Counter::kSharedStoreWavefronts, "shared store wavefronts",
     "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum", "passes over the 32 banks"},
    {Counter::kSharedStoreWavefrontsIdeal, "shared store wavefronts, ideal",
     "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st_ideal",
     "passes if no two lanes met in a bank"},
    {Counter::kSharedAtomicRequests, "shared atomic requests", "smsp__inst_executed_op_shared_atom.sum",
     "warp instructions atom and red on shared memory"},
    {Counter::kSharedAtomicWavefronts, "shared atomic wavefronts",
     "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_atom.sum",
     "passes over the 32 banks; lanes with one address take one pass each"},
    {Counter::kMatrixLoadRequests, "ldmatrix requests", "smsp__inst_executed_op_ldsm.sum",
     "ldmatrix and stmatrix instructions"},
    {Counter::kMatrixLoadWavefronts, "ldmatrix wavefronts", "", "passes over the 32 banks of ldmatrix"},
    {Counter::kMatrixLoadWavefrontsIdeal, "ldmatrix wavefronts, ideal", "", "one for each 8x8 matrix"},
    {Counter::kAsyncCopyRequests, "cp.async requests", "smsp__inst_executed_op_ldgsts.sum",
     "warp instructions cp.async"},
    {Counter::kAsyncCopyBytes, "cp.async bytes", "", "bytes read from global memory by cp.async"},
    {Counter::kAsyncCopySectors, "cp.async sectors", "",
     "32-byte sectors of cp.async, distinct within each request; not among the global load sectors"},
    {Counter::kAsyncCopyWavefronts, "cp.async wavefronts", "", "passes over the 32 banks to store the data"},
    {Counter::kBranches, "branches", "smsp__inst_executed_op_branch.sum", "bra and brx of a warp"},
    {Counter::kDivergentBranches, "divergent branches", "smsp__sass_branch_targets_threads_divergent.sum",
     "branches whose lanes went apart"},
    {Counter::kBarriers, "barriers", "smsp__inst_executed_op_barrier.sum", "arrivals of a warp at a barrier"},
    {Counter::kTensorInstructions, "tensor instructions", "sm__inst_executed_pipe_tensor.sum",
     "mma and wmma.mma instructions of a warp"},
    {Counter::kTensorFlops, "tensor operations", "", "multiplications and additions of mma: 2 m n k each"},
    {Counter::kBlocks, "blocks", "launch__grid_size", "blocks that ran"},
    {Counter::kSharedBytesPerBlock, "shared bytes per block", "launch__shared_mem_per_block",
     "static and dynamic shared memory of a block"},
};
static_assert(std::size(kInfos) == static_cast<size_t>(Counter::kCount));

}  // namespace

std::string_view ClassName(InstructionClass cls) { return kClassNames[static_cast<size_t>(cls)]; }

const CounterInfo& Describe(Counter counter) {
  const CounterInfo& info = kInfos[static_cast<size_t>(counter)];
  VQLLM_CHECK(info.counter == counter, "the table of counters is out of order");
  return info;
}

Counters& Counters::operator+=(const Counters& other) {
  for (size_t i = 0; i < values_.size(); ++i) values_[i] += other.values_[i];
  for (size_t i = 0; i < warp_.size(); ++i) warp_[i] += other.warp_[i];
  for (size_t i = 0; i < thread_.size(); ++i) thread_[i] += other.thread_[i];
  return *this;
}

}  // namespace vqllm::ptx
