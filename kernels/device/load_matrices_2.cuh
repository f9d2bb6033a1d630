#pragma once

// Two 8 x 8 matrices of 16-bit values from shared memory: lane l < 16 gives the address of row l % 8 of matrix l / 8;
// lane l gets columns 2q, 2q + 1 of row g of each, g = l / 4, q = l % 4: fragment B of an mma.
__device__ __forceinline__ void LoadMatrices(unsigned (&matrices)[2], const void* row) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(matrices[0]), "=r"(matrices[1])
               : "r"(address)
               : "memory");
}
