#pragma once

// The score of a token that a query does not see: minus infinity.
__device__ __forceinline__ float Unseen() { return __int_as_float(0xff800000); }

// What exponents are taken against; 0 for a query that has seen nothing, so that no infinity meets another.
__device__ __forceinline__ float SoftmaxBase(float top) { return top == Unseen() ? 0.0f : top; }
