// SPDX-License-Identifier: MIT

// Row kernels for check_row_code.cmake to compile and read; never run.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "radixmlp/cuda.cuh"

using namespace radixmlp;

void instantiate(cudaStream_t stream, const PrefixIndexView& index, const RowMap& map, const Slots& slots,
                 const RowRuns& runs, const RowLists& lists, const RowCopy<RowView<const float>, RowView<float>>& rows,
                 const RowCopy<RowView<const __half>, RowView<__half>>& half_rows, std::span<float> workspace) {
  gather_rows(stream, index, rows);
  map_rows<RowOptions{.bounds = Bounds::clamp, .caching = Caching::streaming}>(stream, map, rows);
  map_rows<RowOptions{.order = LaunchOrder::programmatic}>(stream, map, rows);
  scatter_to_slots<RowOptions{.bounds = Bounds::zero}>(stream, index, slots, rows, rows);
  copy_runs(stream, runs, rows);
  multicast_rows(stream, lists, rows, rows);
  sum_duplicates(stream, lists, rows.source, rows.target, workspace);
  sum_duplicates(stream, lists, half_rows.source, half_rows.target, workspace);
}
