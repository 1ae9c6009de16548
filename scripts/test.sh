#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Builds and tests all that this machine can: the host part with g++ and clang++ and under sanitizers, and, where nvcc is,
# the device part for sm_80, sm_90 and sm_100 (the code of its kernels for sm_75 to sm_120), with its tests on a GPU or in
# the PTX emulator.
#
#   scripts/test.sh            everything
#   scripts/test.sh STEP...    some of: host clang asan tsan cuda ptxemu
#
# Installs what is missing when it may (root or sudo), else names it and stops. Everything goes to build/.
#   JOBS=n                     parallel jobs, default all cores
#   RADIXMLP_REQUIRE_DEVICE=1  fail where nvcc or the emulator is missing, instead of leaving the device part out
#   RADIXMLP_PTXEMU_DIR=dir    the emulator, default ../shared/tools/ptxemu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install_deps.sh

jobs=${JOBS:-$(nproc)}
emulator=${RADIXMLP_PTXEMU_DIR:-../shared/tools/ptxemu}
[[ -d /usr/local/cuda/bin ]] && PATH=$PATH:/usr/local/cuda/bin
started=$SECONDS
passed=0 failed=0 skipped=0
report=()

say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - started)); }

# build NAME PRESET TARGET [CMAKE ARGUMENTS]
build() {
  local name=$1 preset=$2 target=$3
  shift 3
  say "$name: build"
  cmake --preset "$preset" -B "build/$name" "$@" >"build/$name.configure.log" 2>&1 ||
    { cat "build/$name.configure.log"; exit 1; }
  cmake --build "build/$name" --target "$target" --parallel "$jobs"
}

# run NAME WHERE [CTEST ARGUMENTS]: counts what ctest says of each test.
run() {
  local name=$1 where=$2 status=0
  shift 2
  say "$name: test"
  choose_openblas_kernels "build/$name/examples/radixmlp_demo"
  ctest --test-dir "build/$name" --output-on-failure --no-tests=error "$@" 2>&1 | tee "build/$name.test.log" || status=$?
  local ok skip bad
  ok=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.* Passed ' "build/$name.test.log" || true)
  skip=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#.*\*\*\*Skipped' "build/$name.test.log" || true)
  bad=$(($(grep -cE '^ *[0-9]+/[0-9]+ Test +#' "build/$name.test.log" || true) - ok - skip))
  passed=$((passed + ok)) skipped=$((skipped + skip)) failed=$((failed + bad))
  last=$name
  report+=("$(printf '%-8s %-16s %3d passed, %d failed, %d skipped' "$name" "$where" "$ok" "$bad" "$skip")")
  return $status
}

have_nvcc() { command -v nvcc >/dev/null; }
have_emulator() { [[ -x $emulator/ptxemu-run ]]; }

steps=("$@")
if [[ $# -eq 0 ]]; then
  steps=(host clang asan tsan cuda ptxemu)
  if [[ ${RADIXMLP_REQUIRE_DEVICE:-0} == 1 ]]; then
    have_nvcc || { echo "test.sh: nvcc is required here and was not found" >&2; exit 1; }
    have_emulator || { echo "test.sh: no emulator at $emulator, and it is required here" >&2; exit 1; }
  fi
fi

ensure_packages g++ make cmake ninja-build catch2 libbenchmark-dev libopenblas-dev nlohmann-json3-dev zlib1g-dev
mkdir -p build
status=0
for step in "${steps[@]}"; do
  case $step in
    host)
      build host host all && run host host || status=1
      ;;
    clang)
      ensure_packages clang
      # Of the packaging tests, those whose outcome depends on the compiler: modes and misuse.
      build clang host all -DCMAKE_CXX_COMPILER=clang++ && run clang host -E 'packaging[.](add|find|install|shared|no_ex|engines|headers|layers|c_abi|rust|pkg)' || status=1
      ;;
    asan)
      # clang's sanitizers build in two thirds of g++'s time and look at pointers too. The clang step has the fuzzers.
      ensure_packages clang
      build asan asan all -DCMAKE_CXX_COMPILER=clang++ -Dradixmlp_has_libfuzzer=OFF && run asan host -LE packaging || status=1
      ;;
    tsan)
      # The workloads have no second thread, and take minutes here; the Llama example has none but the BLAS's own, which a
      # sanitizer cannot see through. The C ABI has no thread of its own.
      build tsan tsan all -DRADIXMLP_C=OFF && run tsan host -LE packaging -E 'workloads|llama' || status=1
      ;;
    cuda)
      if ! have_nvcc; then
        report+=("cuda     left out: no nvcc")
        continue
      fi
      build cuda cuda radixmlp_device && run cuda "device (GPU)" -L device || status=1
      ;;
    ptxemu)
      if ! have_nvcc || ! have_emulator; then
        report+=("ptxemu   left out: no nvcc, or no emulator at $emulator")
        continue
      fi
      say "ptxemu: build the emulator"
      make -C "$emulator" BUILD="$PWD/build/ptxemu-lib" -j "$jobs" >build/ptxemu-lib.log 2>&1 ||
        { tail build/ptxemu-lib.log; exit 1; }
      build ptxemu ptxemu radixmlp_device -DRADIXMLP_PTXEMU_DIR="$(realpath "$emulator")" -DRADIXMLP_PTXEMU_LIB="$PWD/build/ptxemu-lib" &&
        run ptxemu emulator -L emulator || status=1
      ;;
    *)
      echo "test.sh: no step $step; there are: host clang asan tsan cuda ptxemu" >&2
      exit 2
      ;;
  esac
  [[ $status -eq 0 ]] || break
done

{
  printf '\n'
  printf '%s\n' "${report[@]}"
  printf '\nall: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  # ctest's own words for the last step.
  sed -n '/tests passed, /,$p' "build/$last.test.log"
} | tee build/test-summary.txt
exit $status
