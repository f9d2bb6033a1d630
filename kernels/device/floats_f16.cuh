#pragma once

// Both fp16 values of a register as fp32; exact.
__device__ __forceinline__ float2 HalfFloats(unsigned pair) { return __half22float2(AsHalf2(pair)); }
