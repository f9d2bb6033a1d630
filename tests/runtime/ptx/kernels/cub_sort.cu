// CUB: a striped load through shared memory, a radix sort of 512 keys, a striped store.
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_store.cuh>

extern "C" __global__ void __launch_bounds__(128) cub_sort(const int* in, int* out) {
  using Load = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Sort = cub::BlockRadixSort<int, 128, 4>;
  using Store = cub::BlockStore<int, 128, 4, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Sort::TempStorage sort;
    typename Store::TempStorage store;
  } shared;
  int keys[4];
  Load(shared.load).Load(in + blockIdx.x * 512, keys);
  __syncthreads();
  Sort(shared.sort).Sort(keys);
  __syncthreads();
  Store(shared.store).Store(out + blockIdx.x * 512, keys);
}
