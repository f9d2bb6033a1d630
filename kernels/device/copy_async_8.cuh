#pragma once

// Starts a copy of 8 bytes from global to shared memory; where `inside` is false it writes zeros and reads nothing.
__device__ __forceinline__ void CopyAsync(uint2* to, const uint2* from, bool inside) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(address), "l"(from), "r"(inside ? 8 : 0)
               : "memory");
}
