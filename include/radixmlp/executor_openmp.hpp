// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "radixmlp/config.hpp"

namespace radixmlp::inline v0 {

// A HostExecutor over the threads of OpenMP, for files compiled with -fopenmp (CMake: OpenMP::OpenMP_CXX). As many as
// OpenMP would take: OMP_NUM_THREADS, omp_set_num_threads, one within a parallel region of the engine's.
struct OpenMpExecutor {
  template <class F>
  void parallel_for(std::int64_t n, F&& f) const {
    static_assert(sizeof(F) != 0 && RADIXMLP_HAS_OPENMP, "radixmlp: OpenMpExecutor needs -fopenmp");
    RADIXMLP_PARALLEL_FOR
    for (std::int64_t i = 0; i < n; ++i) {
      f(i);
    }
  }
};

}  // namespace radixmlp::inline v0
