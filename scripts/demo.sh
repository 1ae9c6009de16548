#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Builds the demo and runs it: decoder layers of a Qwen3 model on a batch of token ids, with and without compaction. On a
# GPU where there is one (and nvcc), else on the CPU.
#
#   scripts/demo.sh                               the sample, examples/data/rerank.jsonl
#   scripts/demo.sh my_tokens.jsonl --layers 2    your own batch: {"id":"...","tokens":[...]} a line
#   scripts/demo.sh --help                        all options
#
# Installs what is missing when it may (root or sudo), else names it and stops. Everything goes to build/demo. The table
# goes to standard output, all else to standard error.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/install_deps.sh"
build=$root/build/demo

configure() {
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRADIXMLP_BUILD_EXAMPLES=ON \
    -DRADIXMLP_BUILD_TESTS=OFF -DRADIXMLP_BUILD_BENCHMARKS=OFF "$@" >&2
}
has_target() { cmake --build "$build" --target help | grep -q "^$1: "; }

[[ -d /usr/local/cuda/bin ]] && PATH=$PATH:/usr/local/cuda/bin
program=radixmlp_demo
ensure_packages g++ cmake ninja-build nlohmann-json3-dev
if command -v nvcc >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  configure -DRADIXMLP_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native
  if has_target radixmlp_cuda_demo; then
    program=radixmlp_cuda_demo
  fi
fi
if [[ $program == radixmlp_demo ]]; then
  ensure_packages libopenblas-dev
  configure -DRADIXMLP_CUDA=OFF
fi
cmake --build "$build" --target "$program" --parallel "${JOBS:-$(nproc)}" >&2
[[ $program == radixmlp_demo ]] && choose_openblas_kernels "$build/examples/$program"
exec "$build/examples/$program" "$@"
