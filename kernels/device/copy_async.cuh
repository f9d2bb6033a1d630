#pragma once

// Starts a copy of 16 bytes from global to shared memory; where `inside` is false it writes zeros and reads nothing.
__device__ __forceinline__ void CopyAsync(uint4* to, const uint4* from, bool inside) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}
