// SPDX-License-Identifier: MIT

//! The C ABI from Rust: the index of a file of token lines, and rows moved along it and back.
//!   RADIXMLP_LIB_DIR=... cargo run --release -- ../data/rerank.jsonl

mod radixmlp;

use std::{env, fs, process};

const WIDTH: usize = 8;

/// {"id":"...","tokens":[1,2,3]}, one request a line.
fn read_token_lines(text: &str) -> Option<(Vec<i32>, Vec<i32>)> {
    let (mut tokens, mut cu_seqlens) = (Vec::new(), vec![0]);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (_, list) = line.split_once("\"tokens\":[")?;
        let (list, _) = list.split_once(']')?;
        for token in list.split(',').filter(|token| !token.is_empty()) {
            tokens.push(token.trim().parse().ok()?);
        }
        cu_seqlens.push(i32::try_from(tokens.len()).ok()?);
    }
    Some((tokens, cu_seqlens))
}

fn run(tokens: &[i32], cu_seqlens: &[i32]) -> Result<bool, radixmlp::Error> {
    // [rust]
    let mut trie = radixmlp::Trie::new()?; // keep one; it reuses its memory
    let index = trie.build(tokens, cu_seqlens)?;
    println!("N = {}, N' = {}, gamma = {:.4}", index.ragged_rows(), index.compact_rows(), index.ratio());

    let ragged: Vec<f32> = (0..tokens.len() * WIDTH).map(|i| tokens[i / WIDTH] as f32 + (i % WIDTH) as f32).collect();
    let mut compact = vec![0.0f32; index.compact_rows() * WIDTH];
    index.gather(&ragged, &mut compact, WIDTH)?;
    // ... norms, projections and MLP on the rows of `compact` ...
    let mut back = vec![0.0f32; ragged.len()];
    index.scatter(&compact, &mut back, WIDTH)?;
    // [/rust]
    let same = back == ragged;

    // What is malformed is refused with its argument, index and value.
    let mut short = cu_seqlens.to_vec();
    *short.last_mut().expect("at least one entry") -= 1;
    match trie.build(tokens, &short) {
        Err(error) => println!("refused: {} (code {})", error.message, error.code),
        Ok(_) => return Ok(false),
    }
    Ok(same)
}

fn main() {
    let path = env::args().nth(1).unwrap_or_else(|| "../data/rerank.jsonl".to_owned());
    let text = fs::read_to_string(&path).unwrap_or_else(|error| {
        eprintln!("{path}: {error}");
        process::exit(2);
    });
    let Some((tokens, cu_seqlens)) = read_token_lines(&text) else {
        eprintln!("{path}: not a request {{\"tokens\":[1,2,3]}} a line");
        process::exit(2);
    };
    match run(&tokens, &cu_seqlens) {
        Ok(true) => println!("rows gathered and scattered are the same"),
        Ok(false) => process::exit(1),
        Err(error) => {
            eprintln!("{}", error.message);
            process::exit(1);
        }
    }
}
