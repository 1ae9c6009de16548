#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# What only a real GPU can show, in one command of at most 6 minutes: the device tests, the same under compute-sanitizer,
# and the device benchmarks: rows against per-element indexing; the index built on the GPU against the host's, and ahead
# against in turn.
#
#   scripts/gpu_check.sh                          pack and run on this machine
#   scripts/gpu_check.sh --pack [DIR] [-- ARGS]   build for sm_80, sm_90 and sm_100 into DIR; ARGS go to cmake last
#   scripts/gpu_check.sh --run [DIR] [--out OUT]  run what was packed; results go to OUT (default DIR/results)
#
# DIR is build/gpu_check unless named, of at most 60 MiB. It holds programs, data, the sources and a copy of this script,
# and needs nothing else: copy it to a machine with a GPU and call DIR/run.sh OUT there. Where a program does not start there
# (an older C library, an older GPU), all are built anew into OUT/bin, if there is an nvcc. Exit code: 0 all passed, 1 a
# step failed, 77 no GPU here.
set -u

script_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
is_packed=false
[[ -f "$script_dir/packed.txt" ]] && is_packed=true
if $is_packed; then default_dir=$script_dir; else default_dir=$script_dir/../build/gpu_check; fi

die() {
  echo "gpu_check: $*" >&2
  exit 1
}

pack() {
  local dir=$1
  shift
  $is_packed && die "--pack works in the source tree only"
  local source build nvcc toolkit
  source=$(cd "$script_dir/.." && pwd)
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  build=$dir.build
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  [[ -x $nvcc ]] || die "--pack needs nvcc"
  toolkit=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)

  local generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  # Static: the other machine may have no toolkit and an older standard library.
  cmake -S "$source" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_COMPILER="$nvcc" -DRADIXMLP_CUDA=ON \
    -DRADIXMLP_PTXEMU_DIR= -DRADIXMLP_BUILD_EXAMPLES=OFF -DRADIXMLP_INSTALL=OFF \
    "-DCMAKE_CUDA_ARCHITECTURES=80-real;90-real;100" -DCMAKE_CUDA_RUNTIME_LIBRARY=Static \
    -DCUDA_cudart_LIBRARY="$toolkit/lib64/libcudart_static.a" \
    "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc" "$@" || die "cmake failed"
  local targets
  mapfile -t targets < <(cmake --build "$build" --target help |
    sed -nE 's/^(\.\.\. )?([a-z0-9_]+_device_test|radixmlp_bench_device_[a-z0-9_]+)(:.*)?$/\2/p' | grep -v '^cmake_' | sort -u)
  cmake --build "$build" --parallel "${JOBS:-2}" --target "${targets[@]}" || die "the build failed"

  rm -rf "${dir:?}/bin" "${dir:?}/data" "${dir:?}/source"
  mkdir -p "$dir/bin" "$dir/data" "$dir/source"
  find "$build" -type f -executable \( -name '*_device_test' -o -name 'radixmlp_bench_device_*' \) \
    -exec cp -t "$dir/bin" {} +
  strip "$dir"/bin/*
  cp "$source/examples/data/rerank.jsonl" "$dir/data/"
  # More requests to index, where there are some.
  cp "${RADIXMLP_SHARED_DIR:-$source/../shared}"/workloads/*.jsonl "$dir/data/" 2>/dev/null
  cp -r "$source"/{CMakeLists.txt,CMakePresets.json,LICENSE,README.md,benchmarks,c,cmake,docs,examples,include,scripts,tests,tools} \
    "$dir/source/"
  # What a program is made of, a line each, for `rebuild`; an object is named after its source.
  local target object sources
  for target in "${targets[@]}"; do
    sources=
    while read -r object; do
      object=${object#"$build/"}
      sources+=" ${object%%/*}/${object#*/CMakeFiles/"$target".dir/}"
    done < <(find "$build" -path "*/CMakeFiles/$target.dir/*.o")
    [[ $target == *_test ]] && sources+=" tests/support/main.cpp"
    [[ $target == c_abi_* ]] && sources+=" c/radixmlp_c.cpp c/radixmlp_c_cuda.cu"
    echo "$target${sources//.o/}"
  done >"$dir/source/programs.txt"
  local catch2
  catch2=$(echo '#include <catch2/catch.hpp>' | c++ -x c++ -M - 2>/dev/null | grep -o '[^ ]*/catch2/catch.hpp')
  [[ -n $catch2 ]] && cp -rL "$(dirname "$catch2")" "$dir/source/tests/"
  cp "${BASH_SOURCE[0]}" "$dir/gpu_check.sh"
  # run.sh [OUT]
  printf '%s\n' '#!/usr/bin/env bash' 'dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)' \
    'exec bash "$dir/gpu_check.sh" --run "$dir" --out "${1:-$dir/results}"' >"$dir/run.sh"
  {
    echo "revision: $(git -C "$source" describe --always --dirty 2>/dev/null || echo unknown)"
    echo "compiler: $("$nvcc" --version | tail -1)"
    echo "packed: $(date -u +%Y-%m-%dT%H:%MZ)"
  } >"$dir/packed.txt"
  local size
  size=$(du -sm "$dir" | cut -f1)
  echo "packed $(find "$dir/bin" -type f | wc -l) programs, $size MiB, in $dir"
  ((size <= 60)) || die "more than 60 MiB"
}

failed=0
names=() codes=() seconds=()
deadline=$((SECONDS + 345))

# step NAME LIMIT COMMAND...: runs within LIMIT seconds, and within what is left of all steps' time.
step() {
  local name=$1 limit=$2
  shift 2
  local left=$((deadline - SECONDS)) start=$SECONDS code
  ((limit > left)) && limit=$left
  if ((limit < 3)); then
    echo "== $name: not run, the time is used up" | tee -a "$log"
    code=124
  else
    echo "== $name: $*" | tee -a "$log"
    timeout --kill-after=2 "$limit" "$@" 2>&1 | tee -a "$log"
    code=${PIPESTATUS[0]}
  fi
  names+=("$name") codes+=("$code") seconds+=($((SECONDS - start)))
  if ((code == 124)); then echo "== $name: stopped after $limit s" | tee -a "$log"; fi
  if ((code != 0 && code != 77)); then failed=1; fi
}

result_of() {
  case $1 in
    0) echo passed ;;
    77) echo skipped ;;
    124 | 137) echo timeout ;;
    *) echo "failed ($1)" ;;
  esac
}

# rebuild DIR BIN: the packed sources, compiled here and for the GPU that is here, side by side.
rebuild() {
  local source=$1/source bin=$2 nvcc program sources pids=() pid built=0
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  [[ -x $nvcc ]] || { echo "no nvcc here to build them anew" && return 1; }
  mkdir -p "$bin"
  echo "building anew with $nvcc"
  cd "$source" || return 1
  while read -r program sources; do
    # shellcheck disable=SC2086
    "$nvcc" -std=c++20 -O3 -arch=native -Iinclude -Itests -Ibenchmarks -I. "-DRADIXMLP_SHARED_DIR=\"$source/shared\"" \
      "-DRADIXMLP_SOURCE_DIR=\"$source\"" "-DRADIXMLP_SAMPLE=\"$source/examples/data/rerank.jsonl\"" -o "$bin/$program" $sources \
      >"$bin/$program.log" 2>&1 &
    pids+=($!)
  done <programs.txt
  for pid in "${pids[@]}"; do wait "$pid" && ((++built)); done
  echo "built $built of ${#pids[@]} programs"
  ((built == ${#pids[@]})) || { tail -n 3 "$bin"/*.log && return 1; }
}

write_summary() {
  local i table
  {
    echo "{"
    printf ' "gpu": "%s",\n "driver": "%s",\n "date": "%s",\n "command": "%s",\n "revision": "%s",\n "steps": [' \
      "$gpu" "$driver" "$date" "$command" "$revision"
    for i in "${!names[@]}"; do
      ((i > 0)) && printf ','
      printf '\n  {"step": "%s", "result": "%s", "exit_code": %d, "seconds": %d}' \
        "${names[i]}" "$(result_of "${codes[i]}")" "${codes[i]}" "${seconds[i]}"
    done
    printf '\n ]\n}\n'
  } >"$out/gpu_check.json"
  {
    echo "# GPU check"
    echo
    printf -- '- GPU: %s\n- driver: %s\n- date: %s\n- command: %s\n- revision: %s\n\n' \
      "$gpu" "$driver" "$date" "$command" "$revision"
    printf '| step | result | seconds |\n|---|---|--:|\n'
    for i in "${!names[@]}"; do
      printf '| %s | %s | %d |\n' "${names[i]}" "$(result_of "${codes[i]}")" "${seconds[i]}"
    done
    for table in rows index; do
      if [[ -f $out/device_$table.md ]]; then
        printf '\n## Device %s\n\n' "$table"
        cat "$out/device_$table.md"
      fi
    done
  } >"$out/gpu_check.md"
}

run() {
  local dir
  dir=$(cd "$1" 2>/dev/null && pwd) || die "no folder $1: pack first"
  [[ -f $dir/packed.txt ]] || die "$dir was not packed: scripts/gpu_check.sh --pack"
  out=${2:-$dir/results}
  mkdir -p "$out"
  out=$(cd "$out" && pwd)
  rm -f "$out"/gpu_check.{json,md,log} "$out"/device_{rows,index}.{json,md}
  log=$out/gpu_check.log
  : >"$log"

  local bin=$dir/bin sample=(--data "$dir/data/rerank.jsonl")
  local probe code
  probe=$("$bin/radixmlp_bench_device_rows" --check-only "${sample[@]}" 2>&1)
  code=$?
  if ((code != 77)) && [[ $probe != *"GPU: "* || $probe == *"no kernel image"* ]]; then
    echo "gpu_check: the packed programs do not start: $probe" | tee -a "$log"
    bin=$out/bin
    (rebuild "$dir" "$bin") 2>&1 | tee -a "$log"
    ((PIPESTATUS[0] == 0)) || exit 1
    probe=$("$bin/radixmlp_bench_device_rows" --check-only "${sample[@]}" 2>&1)
    code=$?
  fi
  if ((code == 77)); then
    echo "gpu_check: cannot run on this machine: $probe" | tee -a "$log"
    exit 77
  fi
  local bench=$bin/radixmlp_bench_device_rows
  local index_bench=$bin/radixmlp_bench_device_index
  gpu=$(sed -n 's/^GPU: //p' <<<"$probe")
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)
  driver=${driver:-unknown}
  date=$(date -u +%Y-%m-%dT%H:%MZ)
  revision=$(sed -n 's/^revision: //p' "$dir/packed.txt")
  echo "GPU: $gpu, driver $driver, $date, revision $revision, command: $command" | tee -a "$log"

  # In order of what one would miss most if the time ran out.
  local test sanitizer
  step "equality of device rows" 30 "$bench" --check-only "${sample[@]}"
  step "equality of device indices" 30 "$index_bench" --check-only --data "$dir/data"
  for test in "$bin"/*_device_test; do
    step "$(basename "$test")" 45 "$test"
  done
  step "device rows benchmark" 110 "$bench" "${sample[@]}" --json "$out/device_rows.json" \
    --markdown "$out/device_rows.md"
  step "device index benchmark" 80 "$index_bench" --data "$dir/data" --json "$out/device_index.json" \
    --markdown "$out/device_index.md"
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  if [[ -n $sanitizer ]]; then
    for tool in memcheck racecheck; do
      for test in "$bin"/*_device_test; do
        step "$tool $(basename "$test")" 60 "$sanitizer" --tool "$tool" --error-exitcode 9 "$test"
      done
    done
  else
    step "compute-sanitizer" 5 bash -c 'echo "not on this machine"; exit 77'
  fi

  write_summary
  echo "results: $out/gpu_check.md, gpu_check.json, gpu_check.log, device_{rows,index}.{md,json}"
  exit $failed
}

command="$0 $*"
mode=${1:-}
dir=$default_dir
results=
if [[ $mode == --pack || $mode == --run ]]; then
  shift
  if (($# > 0)) && [[ $1 != --* ]]; then
    dir=$1
    shift
  fi
elif [[ -n $mode ]]; then
  die "unknown argument $mode; see the head of this script"
fi
if [[ $mode == --run && ${1:-} == --out ]]; then
  results=${2:?--out needs a folder}
  shift 2
fi
[[ $mode == --pack && ${1:-} == -- ]] && shift
[[ $mode != --pack && $# -gt 0 ]] && die "unknown argument $1"

case $mode in
  --pack) pack "$dir" "$@" ;;
  --run) run "$dir" "$results" ;;
  *)
    $is_packed || pack "$dir"
    run "$dir" "$results"
    ;;
esac
