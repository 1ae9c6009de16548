// SPDX-License-Identifier: MIT
#pragma once

// The host side of the library, what an engine needs around a layer. Never touches CUDA; see cuda.cuh for the device
// side.
//
// What makes batches has headers of its own, because it needs more of the standard library and fewer files need it:
// index/batch_planner.hpp, index/sequence_keys.hpp, index/tagged_batch.hpp, pipeline/index_pipeline.hpp.

#include "radixmlp/config.hpp"

#if RADIXMLP_CPLUSPLUS >= 202002L  // else config.hpp has said so, once
#include "radixmlp/block/attention_call.hpp"
#include "radixmlp/block/compacted_block.hpp"
#include "radixmlp/block/compaction_policy.hpp"
#include "radixmlp/error.hpp"
#include "radixmlp/executor.hpp"
#include "radixmlp/index/attention_plan.hpp"
#include "radixmlp/index/compact_inputs.hpp"
#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/index/index_capacity.hpp"
#include "radixmlp/index/index_stats.hpp"
#include "radixmlp/index/pooled_rows.hpp"
#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "radixmlp/index/ragged_batch.hpp"
#include "radixmlp/rows/float_format.hpp"
#include "radixmlp/rows/host_adjoints.hpp"
#include "radixmlp/rows/host_row_ops.hpp"
#include "radixmlp/rows/host_rows.hpp"
#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_planner.hpp"
#include "radixmlp/rows/row_runs.hpp"
#include "radixmlp/rows/row_sums.hpp"
#include "radixmlp/rows/row_units.hpp"
#include "radixmlp/rows/row_view.hpp"
#endif
