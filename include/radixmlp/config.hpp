// SPDX-License-Identifier: MIT
#pragma once

#include "radixmlp/version.hpp"

// Every preprocessor conditional of the library is in this file.

#if defined(_MSVC_LANG)
#define RADIXMLP_CPLUSPLUS _MSVC_LANG
#else
#define RADIXMLP_CPLUSPLUS __cplusplus
#endif
#if RADIXMLP_CPLUSPLUS < 202002L
#error "radixmlp needs C++20: compile with -std=c++20 (CMake: link radixmlp::radixmlp, which asks for cxx_std_20)"
#endif

// Namespaces. `radixmlp::v0` holds the types that cross between translation units (batches, views, errors); no
// body in it depends on a compiler flag. `radixmlp::v0::RADIXMLP_MODE` holds the code: its name carries the flags
// that change what a compiler makes of an inline body, so that the linker never merges a function compiled for
// AVX-512 into a program that runs without it, nor one that throws into an engine built with -fno-exceptions.
// Both are inline: users write radixmlp::PrefixTrie.
#if defined(__AVX512F__)
#define RADIXMLP_MODE_SIMD avx512
#elif defined(__AVX2__)
#define RADIXMLP_MODE_SIMD avx2
#elif defined(__AVX__)
#define RADIXMLP_MODE_SIMD avx
#elif defined(__SSE4_2__)
#define RADIXMLP_MODE_SIMD sse42
#elif defined(__ARM_FEATURE_SVE)
#define RADIXMLP_MODE_SIMD sve
#else
#define RADIXMLP_MODE_SIMD base
#endif

#if defined(__cpp_exceptions)
#define RADIXMLP_MODE_ERRORS throws
#define RADIXMLP_RAISE(error) throw error
#else
#define RADIXMLP_MODE_ERRORS calls_hook
#define RADIXMLP_RAISE(error) ::radixmlp::call_error_hook(error)
#endif

#define RADIXMLP_JOIN_EXPANDED(a, b) mode_##a##_##b
#define RADIXMLP_JOIN(a, b) RADIXMLP_JOIN_EXPANDED(a, b)
#define RADIXMLP_MODE RADIXMLP_JOIN(RADIXMLP_MODE_SIMD, RADIXMLP_MODE_ERRORS)

// Kernels and what launches them are named after the architectures of their translation unit as well, in an inline
// namespace of its own, so that a unit compiled for sm_80 never launches the kernels of one for sm_90, or has them
// launched.
#if defined(__CUDA_ARCH_LIST__)
#define RADIXMLP_JOIN_ARCHS_EXPANDED(a, b, c, d, e, f, g, h, i, j, k, l, ...) \
  archs_##a##_##b##_##c##_##d##_##e##_##f##_##g##_##h##_##i##_##j##_##k##_##l
#define RADIXMLP_JOIN_ARCHS(...) RADIXMLP_JOIN_ARCHS_EXPANDED(__VA_ARGS__, , , , , , , , , , , , )
#define RADIXMLP_ARCHS RADIXMLP_JOIN_ARCHS(__CUDA_ARCH_LIST__)
#else
#define RADIXMLP_ARCHS archs_unknown
#endif

// Kernels and what launches them stay inside the shared object that was compiled with them.
#define RADIXMLP_HIDDEN __attribute__((visibility("hidden")))

// Never left as a function of its own. For templates that lead to a launch: their symbols could be taken from another
// shared object, and nvcc does not hide templates over a user's local types. And for constructors in v0 that copy more
// than a register: the linker could give a copy compiled for AVX to a translation unit without.
#define RADIXMLP_ALWAYS_INLINE __attribute__((always_inline))

// Accessors of the types in v0 that device code calls too.
#if defined(__CUDACC__)
#define RADIXMLP_HOST_DEVICE __host__ __device__
#else
#define RADIXMLP_HOST_DEVICE
#endif

// The loop behind it runs on OpenMP's threads.
#if defined(_OPENMP)
#define RADIXMLP_HAS_OPENMP 1
#define RADIXMLP_PARALLEL_FOR _Pragma("omp parallel for schedule(dynamic)")
#else
#define RADIXMLP_HAS_OPENMP 0
#define RADIXMLP_PARALLEL_FOR
#endif

// A store of 16 bytes, aligned to 16, that goes past the caches, and the fence that orders such stores before what
// other threads see next. An ordinary store where a target has none.
#if defined(__SSE2__)
#include <emmintrin.h>
#define RADIXMLP_STREAM_16(target, vector) _mm_stream_si128(reinterpret_cast<__m128i*>(target), vector)
#define RADIXMLP_STREAM_FENCE() _mm_sfence()
#else
#define RADIXMLP_STREAM_16(target, vector) __builtin_memcpy(target, &(vector), 16)
#define RADIXMLP_STREAM_FENCE() static_cast<void>(0)
#endif

// What the compilers' vector language has no word for: the signs of the sixteen 4-byte words of four vectors of 0 and
// -1, a bit each, and of the 32 bytes of one vector. Whether the processor that runs this has AVX2, and what a function
// needs that uses it.
#if defined(__SSE2__)
#define RADIXMLP_HAS_SSE2 true
#define RADIXMLP_SIGNS_OF_WORDS(a, b, c, d)                                                                          \
  static_cast<std::uint32_t>(                                                                                        \
      _mm_movemask_epi8(_mm_packs_epi16(_mm_packs_epi32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)), \
                                        _mm_packs_epi32(reinterpret_cast<__m128i>(c), reinterpret_cast<__m128i>(d)))))
#define RADIXMLP_HAS_AVX2() (__builtin_cpu_supports("avx2") != 0)
#define RADIXMLP_TARGET_AVX2 __attribute__((target("avx2")))
#define RADIXMLP_SIGNS_OF_BYTES(vector) static_cast<std::uint32_t>(__builtin_ia32_pmovmskb256(vector))
#else
#define RADIXMLP_HAS_SSE2 false
#define RADIXMLP_SIGNS_OF_WORDS(a, b, c, d) \
  std::uint32_t { 0 }
#define RADIXMLP_HAS_AVX2() false
#define RADIXMLP_TARGET_AVX2
#define RADIXMLP_SIGNS_OF_BYTES(vector) (static_cast<void>(vector), std::uint32_t{0})
#endif

// Asks for huge pages in place of all pages of these bytes, where the kernel gives them on request.
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(MADV_HUGEPAGE)
#define RADIXMLP_ASK_FOR_HUGE_PAGES(memory, bytes) static_cast<void>(::madvise(memory, bytes, MADV_HUGEPAGE))
#else
#define RADIXMLP_ASK_FOR_HUGE_PAGES(memory, bytes) static_cast<void>(0)
#endif

// Whether the processor that runs this is AMD's.
#if defined(__x86_64__) || defined(__i386__)
#define RADIXMLP_ON_AMD() (__builtin_cpu_is("amd") != 0)
#else
#define RADIXMLP_ON_AMD() false
#endif

// Whether the device code can wait for the kernels before it (griddepcontrol).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define RADIXMLP_DEVICE_HAS_DEPENDENT_LAUNCH true
#else
#define RADIXMLP_DEVICE_HAS_DEPENDENT_LAUNCH false
#endif

// Widest vector, in bytes, that one load of the device code takes: 256-bit accesses came with sm_100.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define RADIXMLP_DEVICE_VECTOR_BYTES 32
#else
#define RADIXMLP_DEVICE_VECTOR_BYTES 16
#endif
