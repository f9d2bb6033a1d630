#pragma once

// Starts a copy of 4 bytes from global to shared memory; where `inside` is false it writes zeros and reads nothing.
__device__ __forceinline__ void CopyAsync(unsigned* to, const unsigned* from, bool inside) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(inside ? 4 : 0)
               : "memory");
}
