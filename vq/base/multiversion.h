#pragma once

/// Compiles a function once more for AVX2 with FMA and picks at load time. For hot loops of vq that the
/// compiler vectorises by itself; the kernels of kernels/cpu use Highway instead. Off under sanitizers, whose
/// runtime is not up when ifuncs resolve.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define VQLLM_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VQLLM_MULTIVERSION
#endif
