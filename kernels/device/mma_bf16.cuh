#pragma once

// d += a b for one warp: a 16 x 16 and b 16 x 8 of bf16, d 16 x 8 of fp32 (PTX ISA, mma.m16n8k16). With g = lane / 4
// and q = lane % 4: a holds rows g, g + 8, g, g + 8 at columns 2q, 2q, 2q + 8, 2q + 8; b column g at rows 2q, 2q + 8;
// d rows g, g, g + 8, g + 8 at columns 2q, 2q + 1, 2q, 2q + 1.
__device__ __forceinline__ void Mma(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                    unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
