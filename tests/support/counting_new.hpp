// SPDX-License-Identifier: MIT
#pragma once

// Replaces operator new and delete of a program, in the one unit of it that includes this: allocations are counted, and
// memory ends where a test says so.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace radixmlp_test {

inline std::atomic<std::int64_t> allocations{0};
inline std::atomic<std::int64_t> allocated_bytes{0};
inline bool no_memory = false;

inline void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (no_memory) {
    return nullptr;
  }
  ++allocations;
  allocated_bytes += static_cast<std::int64_t>(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}
inline void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const memory = allocate(bytes, alignment)) {
    return memory;
  }
  throw std::bad_alloc();
}

}  // namespace radixmlp_test

// Not inlined, or g++ sees free() called on what a new-expression returned. The forms for arrays too: a sanitizer's own
// would not come here.
#define RADIXMLP_TEST_NEW(NAME)                                                                                 \
  [[gnu::noinline]] void* NAME(std::size_t bytes) { return radixmlp_test::allocate_or_throw(bytes, 16); }       \
  [[gnu::noinline]] void* NAME(std::size_t bytes, std::align_val_t alignment) {                                 \
    return radixmlp_test::allocate_or_throw(bytes, static_cast<std::size_t>(alignment));                        \
  }                                                                                                             \
  [[gnu::noinline]] void* NAME(std::size_t bytes, const std::nothrow_t&) noexcept {                             \
    return radixmlp_test::allocate(bytes, 16);                                                                  \
  }                                                                                                             \
  [[gnu::noinline]] void* NAME(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept { \
    return radixmlp_test::allocate(bytes, static_cast<std::size_t>(alignment));                                 \
  }
RADIXMLP_TEST_NEW(operator new)
RADIXMLP_TEST_NEW(operator new[])

#define RADIXMLP_TEST_DELETE(NAME)                                                  \
  [[gnu::noinline]] void NAME(void* p) noexcept { std::free(p); }                   \
  [[gnu::noinline]] void NAME(void* p, std::size_t) noexcept { std::free(p); }      \
  [[gnu::noinline]] void NAME(void* p, std::align_val_t) noexcept { std::free(p); } \
  [[gnu::noinline]] void NAME(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
RADIXMLP_TEST_DELETE(operator delete)
RADIXMLP_TEST_DELETE(operator delete[])
