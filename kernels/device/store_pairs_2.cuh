#pragma once

// Two pairs to shared memory in one store of 8 bytes. As plain C++ some stores came out as two of 4 bytes.
__device__ __forceinline__ void StorePairs(void* to, unsigned a, unsigned b) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
