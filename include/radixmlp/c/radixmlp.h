// SPDX-License-Identifier: MIT
#ifndef RADIXMLP_C_RADIXMLP_H
#define RADIXMLP_C_RADIXMLP_H

// The library for C99 and everything that can call C. Link radixmlp::c, and radixmlp::c_cuda for the calls on a stream.
//
//   Errors.    A call returns a code, RADIXMLP_OK = 0, and fills `status` if it is not NULL. Nothing throws, nothing
//              aborts: null pointers, negative sizes, misaligned arrays and malformed batches are refused before
//              anything is written or enqueued, and the message names argument, index and value.
//   Memory.    What the library allocates it owns and frees: tries and key tables. Everything else is the caller's,
//              and views point into it. Sizes of memory have a call that computes them.
//   Structs.   Start from zeros: a zero is the default everywhere. A struct with a member `size` may grow: set it to
//              sizeof the struct, in structs that a call fills too.
//   Threads.   A trie or a key table serves one thread at a time. No other call has state.
//   Contents.  Maps, lists and plans are trusted, like the arrays of a BLAS: a call checks their sizes and pointers.
//
// A count is in elements, a width and a stride in bytes. B sequences, N ragged rows, N' compact rows.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Changes when a struct or a call changes in a way that breaks callers that were compiled before.
#define RADIXMLP_ABI_VERSION 1
int32_t radixmlp_abi_version(void);
const char* radixmlp_version(void);  // "0.1.0"

// --- Status ---

enum radixmlp_code {
  RADIXMLP_OK = 0,
  RADIXMLP_INVALID_BATCH = 1,     // a batch, or an option of its index or plan, that breaks a rule
  RADIXMLP_INVALID_ROWS = 2,      // rows or workspaces that do not fit the index or each other
  RADIXMLP_OUT_OF_MEMORY = 3,     //
  RADIXMLP_CUDA_ERROR = 4,        // a CUDA call failed: argument is its name, value its cudaError_t
  RADIXMLP_INVALID_ARGUMENT = 5,  // a null or misaligned pointer, a negative count, an unknown type or struct size
  RADIXMLP_INTERNAL_ERROR = 6     // anything else that the library threw
};

typedef struct radixmlp_status {
  int32_t code;
  int64_t index;      // of the entry or tensor that is at fault; -1 where the argument is not an array
  int64_t value;      // what it is
  char argument[64];  // its name, as below; "" if the code is RADIXMLP_OK
  char message[256];  // "radixmlp: cu_seqlens[2] = 5: must be the number of rows, 4"
} radixmlp_status;

// --- Batch ---

enum radixmlp_type {
  RADIXMLP_INT8 = 1,
  RADIXMLP_UINT8 = 2,
  RADIXMLP_INT16 = 3,
  RADIXMLP_UINT16 = 4,
  RADIXMLP_INT32 = 5,
  RADIXMLP_UINT32 = 6,
  RADIXMLP_INT64 = 7,
  RADIXMLP_UINT64 = 8,
  RADIXMLP_KEY128 = 9  // two uint64, the low one first; aligned like them
};

// count elements of a radixmlp_type; count 0: absent.
typedef struct radixmlp_array {
  const void* data;
  int64_t count;
  int32_t type;
} radixmlp_array;

typedef struct radixmlp_int32s {
  const int32_t* data;
  int64_t count;  // 0: absent
} radixmlp_int32s;

typedef struct radixmlp_bytes {
  const void* data;
  int64_t count;  // 0: absent
} radixmlp_bytes;

// B sequences laid end to end in N rows, in host memory. Two rows are one row of the index exactly if their sequences
// agree in key and past length, and the two rows and all rows before them agree in token, positions and token key.
typedef struct radixmlp_batch {
  size_t size;
  radixmlp_array tokens;          // [N] INT32, UINT32 or INT64; may be absent where token_keys identify every row
  radixmlp_int32s cu_seqlens;     // [B+1]: sequence s is rows cu_seqlens[s] .. cu_seqlens[s+1]
  radixmlp_array positions;       // any integer type; absent: a row's place in its sequence
  int64_t position_token_stride;  // row i on axis a is positions[i * token_stride + a * axis_stride]; axes and strides
  int64_t position_axis_stride;   // all 0: one axis, contiguous
  int32_t position_axes;          //
  radixmlp_array token_keys;      // [N] UINT64 or KEY128: what a token stands for beside its id
  radixmlp_array sequence_keys;   // [B] UINT64 or KEY128: adapter, tenant, identity of the past
  radixmlp_int32s past_lengths;   // [B]: rows that are already in the engine's KV cache
  radixmlp_bytes opt_out;         // [B]: nonzero: the sequence shares with no other
} radixmlp_batch;

// Where host work runs: parallel_for calls task(task_context, i) for every i in [0, n), in any order, possibly on
// several threads, and returns when all calls have. It must not throw. A NULL executor is the calling thread.
typedef struct radixmlp_executor {
  void* context;
  void (*parallel_for)(void* context, int64_t n, void (*task)(void* task_context, int64_t i), void* task_context);
} radixmlp_executor;

// --- Index ---

#define RADIXMLP_INDEX_ALIGNMENT 64  // of an index's memory, in bytes

// The maps between ragged and compact rows. They lie in one block: in the trie, valid until its next build, or in the
// caller's memory, on the host or on a device. The counts are host values in either case. Maps from elsewhere can be
// moved along too: gather and scatter with their counts, the others NULL.
typedef struct radixmlp_index {
  size_t size;
  const int32_t* gather;      // [padded_rows]: compact[j] = ragged[gather[j]]; 0 from compact_rows on
  const int32_t* scatter;     // [N]: ragged[i] = compact[scatter[i]]
  const int32_t* compact_cu;  // [B+1]: offsets of each sequence's new rows in compact space
  const int32_t* ragged_cu;   // [B+1]: the batch's cu_seqlens
  const int32_t* parent;      // [N']: compact row before this one in its sequences; -1 at a first row
  const int32_t* last_rows;   // [B]: compact row of a sequence's last token; -1 if it is empty
  const void* block;          // the memory that all maps lie in
  int64_t block_bytes;        //
  double ratio;               // gamma = N'/N, the share of position-wise work that is left; 1 without rows
  int32_t ragged_rows;        // N
  int32_t compact_rows;       // N'
  int32_t padded_rows;        // N' rounded up to a multiple of pad_to
  int32_t sequences;          // B
  int32_t max_seqlen;         // longest sequence
} radixmlp_index;

typedef struct radixmlp_build_options {
  size_t size;
  void* memory;                       // where the index goes, aligned to RADIXMLP_INDEX_ALIGNMENT; NULL: into the trie
  int64_t memory_bytes;               // at least radixmlp_index_bytes
  const radixmlp_executor* executor;  // the same index on several threads; pays from a million rows on
  int32_t pad_to;                     // padded_rows is N' rounded up to a multiple of this; 0 is 1
} radixmlp_build_options;

// Builds indices; keep one, its memory only grows.
typedef struct radixmlp_trie radixmlp_trie;
int32_t radixmlp_trie_create(radixmlp_trie** trie, radixmlp_status* status);
void radixmlp_trie_destroy(radixmlp_trie* trie);  // NULL is none

// Bytes that hold the index of any batch of N rows and B sequences, whatever it shares.
int32_t radixmlp_index_bytes(int64_t rows, int64_t sequences, int32_t pad_to, int64_t* bytes, radixmlp_status* status);

// O(N + B). options may be NULL. `index` is written only if the code is RADIXMLP_OK.
int32_t radixmlp_build(radixmlp_trie* trie, const radixmlp_batch* batch, const radixmlp_build_options* options,
                       radixmlp_index* index, radixmlp_status* status);

// The same index after its block has been copied to `base`: to other memory, a device, another rank. No memory is read.
int32_t radixmlp_index_relocated(const radixmlp_index* index, const void* base, radixmlp_index* moved,
                                 radixmlp_status* status);

// --- What follows from an index on the host ---

// Token ids of the compact rows: out[j] = tokens[gather[j]], 0 behind N'. `out` has out_count elements of the tokens'
// type, at least padded_rows.
int32_t radixmlp_compact_tokens(const radixmlp_batch* batch, const radixmlp_index* index, void* out, int64_t out_count,
                                radixmlp_status* status);

// Positions of the compact rows: axis a of row j is out[a * padded_rows + j], 0 behind N'; where the batch has none, a
// row's place in its sequence behind the sequence's past. out_count at least axes * padded_rows.
int32_t radixmlp_compact_positions(const radixmlp_batch* batch, const radixmlp_index* index, int32_t* out,
                                   int64_t out_count, radixmlp_status* status);

// For each compact row j a list of integers: values[offsets[j]] .. values[offsets[j + 1]].
typedef struct radixmlp_row_lists {
  const int32_t* offsets;  // [rows + 1]
  const int32_t* values;   // [value_count]
  int64_t rows;
  int64_t value_count;
} radixmlp_row_lists;

// int32 entries of memory that the lists of an index need.
int32_t radixmlp_row_lists_entries(const radixmlp_index* index, int64_t* entries, radixmlp_status* status);

// The inverse of scatter: the ragged rows of each compact row, rising. O(N).
int32_t radixmlp_duplicates(const radixmlp_index* index, int32_t* memory, int64_t entries, radixmlp_row_lists* lists,
                            radixmlp_status* status);

// The sequences of each compact row, rising. O(N), the same memory.
int32_t radixmlp_row_sequences(const radixmlp_index* index, int32_t* memory, int64_t entries, radixmlp_row_lists* lists,
                               radixmlp_status* status);

// The inverse of any map to `rows` rows, such as a plan's key_slots. Needs rows + 1 + map.count entries. Its values are
// checked.
int32_t radixmlp_inverse_of(radixmlp_int32s map, int32_t rows, int32_t* memory, int64_t entries,
                            radixmlp_row_lists* lists, radixmlp_status* status);

// out[j] = number of ragged rows that compact row j stands for. out_count at least N'.
int32_t radixmlp_multiplicities(const radixmlp_index* index, int32_t* out, int64_t out_count, radixmlp_status* status);

enum radixmlp_pooled_row { RADIXMLP_FIRST_ROW = 0, RADIXMLP_LAST_ROW = 1 };
enum radixmlp_row_space { RADIXMLP_RAGGED_SPACE = 0, RADIXMLP_COMPACT_SPACE = 1 };

// out[s] = the row of each sequence's first or last token; 0 where a sequence is empty. out_count at least B.
int32_t radixmlp_pooled_rows(const radixmlp_index* index, int32_t pooled_row, int32_t row_space, int32_t* out,
                             int64_t out_count, radixmlp_status* status);

// out[i] = the compact row of ragged row rows[i]. out_count at least rows.count.
int32_t radixmlp_compact_rows_of(const radixmlp_index* index, radixmlp_int32s rows, int32_t* out, int64_t out_count,
                                 radixmlp_status* status);

typedef struct radixmlp_stats {
  size_t size;
  int64_t attention_pairs;          // query-key pairs of causal attention over the ragged rows, past included
  int64_t compact_attention_pairs;  // of the compact rows' queries alone
  int32_t shared_rows[33];          // sequences by rows shared with an earlier one: [0] none, [b] 2^(b-1) to 2^b - 1
} radixmlp_stats;

// O(B). past_lengths as in the batch.
int32_t radixmlp_index_stats(const radixmlp_index* index, radixmlp_int32s past_lengths, radixmlp_stats* stats,
                             radixmlp_status* status);

// --- Whether to compact ---

enum radixmlp_layout {
  RADIXMLP_LAYOUT_RAGGED = 0,         // Q, K and V are scattered, the output is gathered
  RADIXMLP_LAYOUT_COMPACT_QUERY = 1,  // K and V are scattered
  RADIXMLP_LAYOUT_PAGED = 2           // nothing moves: K and V are read through the plan's key_slots
};

enum radixmlp_reason {
  RADIXMLP_NOTHING_SHARED = 0,   // N' = N
  RADIXMLP_TOO_FEW_ROWS = 1,     // N below min_rows
  RADIXMLP_RATIO_TOO_HIGH = 2,   // gamma above max_ratio
  RADIXMLP_RATIO_LOW_ENOUGH = 3  // gamma at most max_ratio: compacts
};

typedef struct radixmlp_decision {
  int32_t compacts;  // 0 or 1
  int32_t layout;    // the one that was asked for, or RADIXMLP_LAYOUT_RAGGED
  int32_t reason;
} radixmlp_decision;

// A pure function of the counts, so that all ranks decide alike. max_ratio 0.9 leaves the last tenth, which moving rows
// costs; min_rows leaves small batches alone, whose GEMMs are bound by their weights.
int32_t radixmlp_decide(const radixmlp_index* index, double max_ratio, int32_t min_rows, int32_t layout,
                        radixmlp_decision* decision, radixmlp_status* status);

// --- Keys of sequences ---

// Gives out sequence_keys: two identities have the same key exactly if all their fields are equal. Keys hold within one
// table until it is cleared.
typedef struct radixmlp_sequence_keys radixmlp_sequence_keys;
int32_t radixmlp_sequence_keys_create(radixmlp_sequence_keys** keys, radixmlp_status* status);
void radixmlp_sequence_keys_destroy(radixmlp_sequence_keys* keys);  // NULL is none

typedef struct radixmlp_identity {
  size_t size;
  radixmlp_bytes adapter;          // LoRA adapter by name, ...
  radixmlp_bytes adapter_version;  // ... and the version of its weights
  radixmlp_bytes tenant;           // or cache salt
  radixmlp_bytes other;            // attention bias, window, anything else that changes its rows
  uint64_t past[2];                // identity of the KV cache that it continues
} radixmlp_identity;

int32_t radixmlp_sequence_key(radixmlp_sequence_keys* keys, const radixmlp_identity* identity, uint64_t* key,
                              radixmlp_status* status);
int32_t radixmlp_sequence_keys_clear(radixmlp_sequence_keys* keys, radixmlp_status* status);

// --- Attention plans, on the host ---

enum radixmlp_partition {
  RADIXMLP_BY_SEQUENCES = 0,  // the new rows of each sequence: at most B segments, N keys
  RADIXMLP_BY_EDGES = 1       // the same, cut where other sequences branch off: at most 2B - 1 segments, 2N keys
};

typedef struct radixmlp_plan_options {
  size_t size;
  radixmlp_int32s past_lengths;      // [B]: rows in the engine's cache before each sequence
  radixmlp_int32s slots;             // [N']: row of the engine's cache that has compact row j; absent: j
  radixmlp_int32s past_page_indptr;  // [B+1]: row r of the past of sequence s is at past_pages[past_page_indptr[s] +
  radixmlp_int32s past_pages;        // r / past_page_size] * past_page_size + r % past_page_size; absent: slot 0
  int32_t past_page_size;            // 0 is 1
  int32_t partition;                 // a radixmlp_partition
  int32_t keep_empty;                // nonzero: always B segments (2B - 1 by edges), for graphs
  int32_t query_tile;                // a segment's first query is rounded down to a multiple of this; 0 is 1
  int32_t window;                    // keys that a row sees, itself included; 0: all
} radixmlp_plan_options;

// Which queries see which keys, for E segments, in the arrays that attention kernels take. FlashAttention varlen:
// cu_seqlens_q, cu_seqlens_k. FlashInfer paged, page size 1: these are qo_indptr and paged_kv_indptr, key_slots is
// paged_kv_indices, last_page_len is paged_kv_last_page_len. In segment e, query i of nq sees keys 0 .. nk - nq + i of
// nk. The arrays lie in the caller's memory, or in the index where they equal its maps.
typedef struct radixmlp_plan {
  size_t size;
  const int32_t* cu_seqlens_q;   // [E+1]
  const int32_t* cu_seqlens_k;   // [E+1]
  const int32_t* key_slots;      // [keys]: where each key lies; by segment, past first
  const int32_t* last_page_len;  // [E]: all 1
  const int32_t* sequences;      // [E]: a sequence that has the segment's path; -1: no segment
  const int32_t* past_k;         // [E]: first keys that are of the past
  const int32_t* query_rows;     // [queries], with query_tile above 1, else NULL: query i is compact row query_rows[i]
  const int32_t* output_rows;    // [N'], likewise: the output of row j is that of query output_rows[j]
  const int32_t* block;          // the part of the memory that is in use
  int64_t block_entries;         //
  int32_t segments;              // E
  int32_t queries;               //
  int32_t keys;                  //
  int32_t max_seqlen_q;          //
  int32_t max_seqlen_k;          //
  int32_t window;                // as asked for
  int32_t past_keys;             // keys of the past without a page: their slots are 0
  int32_t in_cache;              // 1: key_slots are rows of the engine's cache
} radixmlp_plan;

// int32 entries of memory that suffice for the plan of an index. O(B). options may be NULL here and below.
int32_t radixmlp_plan_entries(const radixmlp_index* index, const radixmlp_plan_options* options, int64_t* entries,
                              radixmlp_status* status);
int32_t radixmlp_make_plan(const radixmlp_index* index, const radixmlp_plan_options* options, int32_t* memory,
                           int64_t entries, radixmlp_plan* plan, radixmlp_status* status);

// The same plan after its block has been copied to `base`, and the index it was made from to where `moved_index` is.
int32_t radixmlp_plan_relocated(const radixmlp_plan* plan, const int32_t* base, const radixmlp_index* index,
                                const radixmlp_index* moved_index, radixmlp_plan* moved, radixmlp_status* status);

// The keys of a plan as a dense table, for FlashAttention 3. Refused above max_entries; 0 is 2^26.
typedef struct radixmlp_page_table {
  const int32_t* pages;      // [E, width]: key k of segment e is at pages[e * width + k]; 0 behind
  const int32_t* seqused_k;  // [E]
  int32_t width;             // the plan's max_seqlen_k
} radixmlp_page_table;
int32_t radixmlp_page_table_entries(const radixmlp_plan* plan, int64_t* entries, radixmlp_status* status);
int32_t radixmlp_make_page_table(const radixmlp_plan* plan, int64_t max_entries, int32_t* memory, int64_t entries,
                                 radixmlp_page_table* table, radixmlp_status* status);

// The trie as intervals, for masks that are functions of two rows (FlexAttention): row q sees row k exactly if
// pre[k] <= pre[q] < pre_end[k], and within a window of w rows if also depth[q] - depth[k] < w.
typedef struct radixmlp_tree_mask {
  const int32_t* pre;      // [padded_rows] each
  const int32_t* pre_end;  //
  const int32_t* depth;    //
} radixmlp_tree_mask;
int32_t radixmlp_tree_mask_entries(const radixmlp_index* index, int64_t* entries, radixmlp_status* status);
int32_t radixmlp_make_tree_mask(const radixmlp_index* index, int32_t* memory, int64_t entries, radixmlp_tree_mask* mask,
                                radixmlp_status* status);

// --- Rows, on the host ---

#define RADIXMLP_MAX_TENSORS 8  // of a call, which on a stream is one launch

// Rows of `width` bytes, `stride` bytes from one row's start to the next, of any alignment. A source's stride may be 0:
// one row for all. Source and target must not overlap.
typedef struct radixmlp_source_rows {
  const void* data;
  int64_t rows;
  int64_t width;
  int64_t stride;
} radixmlp_source_rows;

typedef struct radixmlp_target_rows {
  void* data;
  int64_t rows;
  int64_t width;
  int64_t stride;
} radixmlp_target_rows;

// One tensor of a call that moves several; the index of a status is its number.
typedef struct radixmlp_row_copy {
  radixmlp_source_rows source;
  radixmlp_target_rows target;
} radixmlp_row_copy;

// compact[j] = ragged[gather[j]] for j < N', zeros up to padded_rows, for every {ragged, compact}.
int32_t radixmlp_gather_rows(const radixmlp_index* index, const radixmlp_row_copy* copies, int32_t count,
                             const radixmlp_executor* executor, radixmlp_status* status);

// ragged[i] = compact[scatter[i]] for i < N, for every {compact, ragged}.
int32_t radixmlp_scatter_rows(const radixmlp_index* index, const radixmlp_row_copy* copies, int32_t count,
                              const radixmlp_executor* executor, radixmlp_status* status);

// cache[slots[i]] = compact[scatter[i]] for i < N where slots[i] is not negative, for every {compact, cache}. slots:
// [N] INT32 or INT64, below every cache's rows, or the call is refused. Where two rows go to one slot, they must be
// copies of one compact row: radixmlp_check_slots finds others.
int32_t radixmlp_scatter_to_slots(const radixmlp_index* index, radixmlp_array slots, const radixmlp_row_copy* copies,
                                  int32_t count, const radixmlp_executor* executor, radixmlp_status* status);

// memory: cache_rows entries or more.
int32_t radixmlp_check_slots(const radixmlp_index* index, radixmlp_array slots, int64_t cache_rows, int32_t* memory,
                             int64_t entries, radixmlp_status* status);

enum radixmlp_format { RADIXMLP_FP32 = 0, RADIXMLP_FP16 = 1, RADIXMLP_BF16 = 2 };

// compact[j] = sum of ragged[i] over i in list j, the backward of a scatter: {ragged, compact}, rows of whole, aligned
// elements of a radixmlp_format. Sums in fp32 in a fixed order, the same bits on the host and on a stream.
int32_t radixmlp_sum_duplicates(const radixmlp_row_lists* lists, int32_t format, const radixmlp_row_copy* rows,
                                const radixmlp_executor* executor, radixmlp_status* status);

// --- On a stream: radixmlp::c_cuda ---
//
// `stream` is a cudaStream_t; NULL is the default stream. Maps, lists and rows lie in device memory. Every call
// enqueues and returns: nothing allocates or synchronises, so all can be captured. The calls of the host, where not
// said.

// Enqueues the one copy that brings an index from the host to `memory` on the device, block_bytes or more, aligned to
// RADIXMLP_INDEX_ALIGNMENT. The host block must stay until the copy is done.
int32_t radixmlp_cuda_copy_index(void* stream, const radixmlp_index* index, void* memory, int64_t memory_bytes,
                                 radixmlp_index* moved, radixmlp_status* status);

int32_t radixmlp_cuda_gather_rows(void* stream, const radixmlp_index* index, const radixmlp_row_copy* copies,
                                  int32_t count, radixmlp_status* status);
int32_t radixmlp_cuda_scatter_rows(void* stream, const radixmlp_index* index, const radixmlp_row_copy* copies,
                                   int32_t count, radixmlp_status* status);

// Slots lie in device memory too, so those beyond a cache are left out and not refused.
int32_t radixmlp_cuda_scatter_to_slots(void* stream, const radixmlp_index* index, radixmlp_array slots,
                                       const radixmlp_row_copy* copies, int32_t count, radixmlp_status* status);

// Bytes of device memory that a sum needs for lists of value_count entries in all, none longer than `longest` (the
// number of sequences bounds the lists of an index), and rows of so many elements. 0 up to longest = 64.
int32_t radixmlp_sum_workspace_bytes(int64_t value_count, int64_t longest, int64_t elements, int64_t* bytes,
                                     radixmlp_status* status);

// No list is longer than `longest`; 0: value_count.
int32_t radixmlp_cuda_sum_duplicates(void* stream, const radixmlp_row_lists* lists, int32_t format,
                                     const radixmlp_row_copy* rows, float* workspace, int64_t workspace_bytes,
                                     int64_t longest, radixmlp_status* status);

#ifdef __cplusplus
}
#endif

#endif
