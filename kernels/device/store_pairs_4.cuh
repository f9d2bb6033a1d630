#pragma once

// Four pairs to shared memory in one store of 16 bytes. As plain C++ some stores came out as four of 4 bytes.
__device__ __forceinline__ void StorePairs(void* to, unsigned a, unsigned b, unsigned c, unsigned d) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
