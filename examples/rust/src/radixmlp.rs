// SPDX-License-Identifier: MIT

//! What of radixmlp/c/radixmlp.h this program calls, and a safe way to call it.

use std::ffi::{c_char, c_void, CStr};
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr;

mod ffi {
    use super::*;

    // [ffi]
    #[repr(C)]
    pub struct Status {
        pub code: i32,
        pub index: i64,
        pub value: i64,
        pub argument: [c_char; 64],
        pub message: [c_char; 256],
    }

    #[repr(C)]
    pub struct Array {
        pub data: *const c_void,
        pub count: i64,
        pub kind: i32, // a radixmlp_type
    }

    #[repr(C)]
    pub struct Slice {
        pub data: *const c_void, // radixmlp_int32s, radixmlp_bytes
        pub count: i64,
    }

    #[repr(C)]
    pub struct Batch {
        pub size: usize,
        pub tokens: Array,
        pub cu_seqlens: Slice,
        pub positions: Array,
        pub position_token_stride: i64,
        pub position_axis_stride: i64,
        pub position_axes: i32,
        pub token_keys: Array,
        pub sequence_keys: Array,
        pub past_lengths: Slice,
        pub opt_out: Slice,
    }

    #[repr(C)]
    pub struct Index {
        pub size: usize,
        pub gather: *const i32,
        pub scatter: *const i32,
        pub compact_cu: *const i32,
        pub ragged_cu: *const i32,
        pub parent: *const i32,
        pub last_rows: *const i32,
        pub block: *const c_void,
        pub block_bytes: i64,
        pub ratio: f64,
        pub ragged_rows: i32,
        pub compact_rows: i32,
        pub padded_rows: i32,
        pub sequences: i32,
        pub max_seqlen: i32,
    }

    #[repr(C)]
    pub struct Rows {
        pub data: *const c_void, // radixmlp_source_rows; *mut in radixmlp_target_rows
        pub rows: i64,
        pub width: i64,
        pub stride: i64,
    }

    #[repr(C)]
    pub struct RowCopy {
        pub source: Rows,
        pub target: Rows,
    }

    extern "C" {
        pub fn radixmlp_abi_version() -> i32;
        pub fn radixmlp_trie_create(trie: *mut *mut c_void, status: *mut Status) -> i32;
        pub fn radixmlp_trie_destroy(trie: *mut c_void);
        pub fn radixmlp_build(
            trie: *mut c_void,
            batch: *const Batch,
            options: *const c_void,
            index: *mut Index,
            status: *mut Status,
        ) -> i32;
        pub fn radixmlp_gather_rows(
            index: *const Index,
            copies: *const RowCopy,
            count: i32,
            executor: *const c_void,
            status: *mut Status,
        ) -> i32;
        pub fn radixmlp_scatter_rows(
            index: *const Index,
            copies: *const RowCopy,
            count: i32,
            executor: *const c_void,
            status: *mut Status,
        ) -> i32;
    }
    // [/ffi]
}

const INT32: i32 = 5;

/// What a call refused: the code, and the argument, index and value in words.
#[derive(Debug)]
pub struct Error {
    pub code: i32,
    pub message: String,
}

fn checked(call: impl FnOnce(*mut ffi::Status) -> i32) -> Result<(), Error> {
    // SAFETY: zeros are a status.
    let mut status: ffi::Status = unsafe { std::mem::zeroed() };
    let code = call(&mut status);
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the library ends the message with a zero.
    let message = unsafe { CStr::from_ptr(status.message.as_ptr()) };
    Err(Error { code, message: message.to_string_lossy().into_owned() })
}

/// Builds indices; keep one, it reuses its memory.
pub struct Trie(*mut c_void);

impl Trie {
    pub fn new() -> Result<Trie, Error> {
        // SAFETY: no arguments.
        assert_eq!(unsafe { ffi::radixmlp_abi_version() }, 1, "another ABI of libradixmlp_c than this file's");
        let mut trie = ptr::null_mut();
        checked(|status| unsafe { ffi::radixmlp_trie_create(&mut trie, status) })?;
        Ok(Trie(trie))
    }

    /// The index lies in the trie's memory, so the trie cannot build another while it is in use.
    pub fn build(&mut self, tokens: &[i32], cu_seqlens: &[i32]) -> Result<Index<'_>, Error> {
        // SAFETY: zeros are absent arrays, and an index to be filled.
        let mut batch: ffi::Batch = unsafe { std::mem::zeroed() };
        batch.size = size_of::<ffi::Batch>();
        batch.tokens = ffi::Array { data: tokens.as_ptr().cast(), count: tokens.len() as i64, kind: INT32 };
        batch.cu_seqlens = ffi::Slice { data: cu_seqlens.as_ptr().cast(), count: cu_seqlens.len() as i64 };
        let mut index: ffi::Index = unsafe { std::mem::zeroed() };
        index.size = size_of::<ffi::Index>();
        checked(|status| unsafe { ffi::radixmlp_build(self.0, &batch, ptr::null(), &mut index, status) })?;
        Ok(Index { index, trie: PhantomData })
    }
}

impl Drop for Trie {
    fn drop(&mut self) {
        // SAFETY: made by radixmlp_trie_create, and destroyed once.
        unsafe { ffi::radixmlp_trie_destroy(self.0) }
    }
}

pub struct Index<'trie> {
    index: ffi::Index,
    trie: PhantomData<&'trie mut Trie>,
}

impl Index<'_> {
    pub fn ragged_rows(&self) -> usize {
        self.index.ragged_rows as usize
    }
    pub fn compact_rows(&self) -> usize {
        self.index.compact_rows as usize
    }
    pub fn ratio(&self) -> f64 {
        self.index.ratio
    }

    /// compact[j] = ragged[gather[j]], rows of `width` elements.
    pub fn gather<T: Copy>(&self, ragged: &[T], compact: &mut [T], width: usize) -> Result<(), Error> {
        let copy = row_copy(ragged, compact, width);
        checked(|status| unsafe { ffi::radixmlp_gather_rows(&self.index, &copy, 1, ptr::null(), status) })
    }

    /// ragged[i] = compact[scatter[i]].
    pub fn scatter<T: Copy>(&self, compact: &[T], ragged: &mut [T], width: usize) -> Result<(), Error> {
        let copy = row_copy(compact, ragged, width);
        checked(|status| unsafe { ffi::radixmlp_scatter_rows(&self.index, &copy, 1, ptr::null(), status) })
    }
}

fn row_copy<T: Copy>(source: &[T], target: &mut [T], width: usize) -> ffi::RowCopy {
    let bytes = (width * size_of::<T>()) as i64;
    let rows = |data: *const T, elements: usize| ffi::Rows {
        data: data.cast(),
        rows: (elements / width) as i64,
        width: bytes,
        stride: bytes,
    };
    ffi::RowCopy { source: rows(source.as_ptr(), source.len()), target: rows(target.as_mut_ptr(), target.len()) }
}
