// SPDX-License-Identifier: MIT

// The calls of the C ABI on a stream (include/radixmlp/c/radixmlp.h).

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "c_abi.hpp"
#include "radixmlp/index/device_index.cuh"
#include "radixmlp/rows/device_row_ops.cuh"
#include "radixmlp/rows/device_rows.cuh"

using namespace radixmlp_c;

extern "C" {

std::int32_t radixmlp_cuda_copy_index(void* stream, const radixmlp_index* index, void* memory,
                                      std::int64_t memory_bytes, radixmlp_index* moved, radixmlp_status* status) {
  return guarded(status, [&] {
    const PrefixIndexView view = index_in_block("index", index);
    const Output<radixmlp_index> out("moved", moved);
    out.set(to_c(copy_to_device(static_cast<cudaStream_t>(stream), view,
                                span_of("memory", static_cast<std::byte*>(memory), memory_bytes))));
  });
}

std::int32_t radixmlp_cuda_gather_rows(void* stream, const radixmlp_index* index, const radixmlp_row_copy* copies,
                                       std::int32_t count, radixmlp_status* status) {
  return guarded(status, [&] {
    const PrefixIndexView view = index_of("index", index, Needs::rows);
    with_copies(copies, count,
                [&](const auto&... all) { gather_rows(static_cast<cudaStream_t>(stream), view, all...); });
  });
}

std::int32_t radixmlp_cuda_scatter_rows(void* stream, const radixmlp_index* index, const radixmlp_row_copy* copies,
                                        std::int32_t count, radixmlp_status* status) {
  return guarded(status, [&] {
    const PrefixIndexView view = index_of("index", index, Needs::rows);
    with_copies(copies, count,
                [&](const auto&... all) { scatter_rows(static_cast<cudaStream_t>(stream), view, all...); });
  });
}

std::int32_t radixmlp_cuda_scatter_to_slots(void* stream, const radixmlp_index* index, radixmlp_array slots,
                                            const radixmlp_row_copy* copies, std::int32_t count,
                                            radixmlp_status* status) {
  return guarded(status, [&] {
    constexpr radixmlp::RowOptions left_out{.bounds = radixmlp::Bounds::zero};
    const PrefixIndexView view = index_of("index", index, Needs::rows);
    const radixmlp::Slots cache_rows = slots_of(slots);
    with_copies(copies, count, [&](const auto&... all) {
      scatter_to_slots<left_out>(static_cast<cudaStream_t>(stream), view, cache_rows, all...);
    });
  });
}

std::int32_t radixmlp_sum_workspace_bytes(std::int64_t value_count, std::int64_t longest, std::int64_t elements,
                                          std::int64_t* bytes, radixmlp_status* status) {
  return guarded(status, [&] {
    required("bytes", bytes);
    const auto check = [](const char* name, std::int64_t value, std::int64_t most) {
      if (value < 0 || value > most) {
        refuse(name, value, "must not be negative, and at most", most);
      }
    };
    check("value_count", value_count, radixmlp::max_rows);
    check("longest", longest, radixmlp::max_rows);
    check("elements", elements, radixmlp::max_rows);
    const std::size_t floats = radixmlp::sum_workspace_floats(value_count, longest, elements);
    *bytes = static_cast<std::int64_t>(floats * sizeof(float));
  });
}

std::int32_t radixmlp_cuda_sum_duplicates(void* stream, const radixmlp_row_lists* lists, std::int32_t format,
                                          const radixmlp_row_copy* rows, float* workspace, std::int64_t workspace_bytes,
                                          std::int64_t longest, radixmlp_status* status) {
  return guarded(status, [&] {
    const radixmlp::RowLists of_rows = lists_of(lists);
    if (longest < 0 || longest > radixmlp::max_rows) {
      refuse("longest", longest, "must not be negative, and at most", radixmlp::max_rows);
    }
    if (workspace_bytes < 0) {
      refuse("workspace_bytes", workspace_bytes, "must be at least", 0);
    }
    const auto floats = span_of("workspace", workspace, workspace_bytes / std::int64_t{sizeof(float)});
    with_format(format, of_rows, rows, [&](const auto& ragged, const auto& compact) {
      sum_duplicates(static_cast<cudaStream_t>(stream), of_rows, ragged, compact, floats, longest);
    });
  });
}

}  // extern "C"
