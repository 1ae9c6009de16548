#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# What it costs a file to include the library: processor time of the compiler for radixmlp.hpp and cuda.cuh, beyond an empty
# file and in ratio to <vector> with <span> and to <cuda_runtime.h>, compiled in turns, medians. And what a file that uses the
# row kernels carries for each architecture.
#
#   scripts/compile_cost.sh                       all, as docs/benchmarks/compile_time.md has it
#   scripts/compile_cost.sh --check [host|cuda]   only the ratios; fails where one is above its bound
#   CXX=clang++ ROUNDS=9 ARCHS="80 90" scripts/compile_cost.sh
#
# Processor time and ratios, since machines that share their cores know no other.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

check=false
[[ ${1:-} == --check ]] && check=true
parts=${2:-host cuda}
cxx=${CXX:-g++}
rounds=${ROUNDS:-5}
archs=${ARCHS:-75 80 86 89 90 100 120}
host_bound=4.5  # measured: 3.1 to 3.4
cuda_bound=4.0  # measured: 2.3 to 3.3
[[ -d /usr/local/cuda/bin ]] && PATH=$PATH:/usr/local/cuda/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# seconds COMMAND...: processor seconds of a command and its children.
seconds() {
  local TIMEFORMAT='%3U %3S'
  { time "$@" >/dev/null 2>"$work/errors"; } 2>"$work/time" || { cat "$work/errors" >&2; exit 1; }
  awk '{ printf "%.3f\n", $1 + $2 }' "$work/time"
}
median() { sort -n "$1" | awk '{ t[NR] = $1 } END { printf "%.3f", t[int((NR + 1) / 2)] }'; }

# compare KIND SUFFIX STANDARD_HEADERS OUR_HEADER BOUND COMPILER...: a row of the table, and whether the ratio is below BOUND.
compare() {
  local kind=$1 suffix=$2 standard=$3 ours=$4 bound=$5 round unit
  shift 5
  printf 'int main() {}\n' >"$work/empty.$suffix"
  printf '#include <%s>\n' $standard | cat - "$work/empty.$suffix" >"$work/standard.$suffix"
  printf '#include "%s"\n' "$ours" | cat - "$work/empty.$suffix" >"$work/ours.$suffix"
  rm -f "$work"/*.times
  for ((round = 0; round < rounds; ++round)); do
    for unit in empty standard ours; do
      seconds "$@" -c "$work/$unit.$suffix" -o /dev/null >>"$work/$unit.times"
    done
  done
  printf '%s %s %s %s\n' "$(median "$work/empty.times")" "$(median "$work/standard.times")" "$(median "$work/ours.times")" "$bound" |
    awk -v kind="$kind" '{
      printf "| %s | %.2f | %.2f | %.2f | %.2f | %.2f |\n", kind, $1, $2, $3, $3 - $1, $3 / $2
      if ($3 > $4 * $2) { printf "%s: %.2f times the standard headers, bound %.2f\n", kind, $3 / $2, $4 > "/dev/stderr"; exit 1 }
    }'
}

echo '| processor seconds | empty | standard headers | ours | beyond empty | times the standard headers |'
echo '|---|--:|--:|--:|--:|--:|'
[[ $parts == *host* ]] && compare "radixmlp.hpp, ${cxx##*/}" cpp "vector span" radixmlp/radixmlp.hpp $host_bound "$cxx" -std=c++20 "-I$root/include"
[[ $parts == *cuda* ]] || exit 0
command -v nvcc >/dev/null || { echo "compile_cost: no nvcc, so nothing about cuda.cuh" >&2; exit 77; }
compare "cuda.cuh, nvcc, sm_90" cu cuda_runtime.h radixmlp/cuda.cuh $cuda_bound nvcc -std=c++20 -arch=sm_90 "-I$root/include"
$check && exit 0

# Bytes of the cubin: of a file that includes everything and launches nothing, of one gather of one tensor, and of
# every kernel that tests/rows/row_code.cu names.
printf '#include "radixmlp/cuda.cuh"\n' >"$work/none.cu"
cat >"$work/gather.cu" <<'END'
#include "radixmlp/cuda.cuh"
void use(cudaStream_t stream, const radixmlp::PrefixIndexView& index, radixmlp::RowView<float> rows) {
  radixmlp::gather_rows(stream, index, rows, rows);
}
END
cp "$root/tests/rows/row_code.cu" "$work/all.cu"
printf '\n| bytes of the cubin | includes, launches nothing | gather_rows | all kernels of tests/rows/row_code.cu |\n|---|--:|--:|--:|\n'
for arch in $archs; do
  printf '| sm_%s |' "$arch"
  for unit in none gather all; do
    nvcc -std=c++20 -cubin -arch="sm_$arch" "-I$root/include" "$work/$unit.cu" -o "$work/$unit.cubin"
    printf ' %s |' "$(stat -c %s "$work/$unit.cubin")"
  done
  printf '\n'
done
