#pragma once

// As LoadMatrices of four, each matrix transposed: a lane gets rows 2q, 2q + 1 of column g of each, g = l / 4,
// q = l % 4.
__device__ __forceinline__ void LoadMatricesTransposed(unsigned (&matrices)[4], const void* row) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(address)
               : "memory");
}
