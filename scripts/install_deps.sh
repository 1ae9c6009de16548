# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# Functions for the other scripts, to be sourced.
#
# ensure_packages NAME...: makes sure that what these Debian packages provide is here, however it came. Installs what is
# missing with apt-get, as root or with sudo; where that cannot be, names what is missing and returns 1. A cmake older
# than 3.24 counts as missing and then comes from PyPI into build/cmake-env.
#
# choose_openblas_kernels PROGRAM: where PROGRAM's OpenBLAS does not know the processor, tells it what to take.

radixmlp_deps_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

deps_have_header() { echo "#include <$1>" | "${CXX:-g++}" -E -x c++ - >/dev/null 2>&1; }

deps_have_library() { echo 'int main() {}' | "${CXX:-g++}" -x c++ - "-l$1" -o /dev/null 2>/dev/null; }

deps_have_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*//p') && [[ -n $version ]] &&
    [[ $(printf '%s\n' 3.24 "$version" | sort -V | head -1) == 3.24 ]]
}

# Whether what a package provides is here.
deps_have() {
  case $1 in
    g++) command -v "${CXX:-g++}" >/dev/null ;;
    cmake) deps_have_cmake ;;
    ninja-build) command -v ninja >/dev/null ;;
    clang) command -v clang++ >/dev/null ;;
    catch2) deps_have_header catch2/catch.hpp || deps_have_header catch2/catch_all.hpp ;;
    libbenchmark-dev) deps_have_header benchmark/benchmark.h ;;
    libopenblas-dev) deps_have_library openblas || deps_have_header mkl.h ;;  # cblas.h alone may be the reference BLAS's
    nlohmann-json3-dev) deps_have_header nlohmann/json.hpp ;;
    zlib1g-dev) deps_have_header zlib.h && deps_have_library z ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# Sets `missing` to those of the packages whose content is not here.
deps_find_missing() {
  local package
  missing=()
  for package in "$@"; do
    deps_have "$package" || missing+=("$package")
  done
}

deps_apt_install() {
  command -v apt-get >/dev/null || return 1
  local as_root=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || return 1
    sudo -n true 2>/dev/null || [[ -t 0 ]] || return 1  # no password needed, or someone there to type it
    as_root=(sudo)
  fi
  echo "installing: $*" >&2
  "${as_root[@]}" apt-get update -qq >&2 &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# OpenBLAS takes its oldest kernels, several times slower, on processors that are newer than it is.
choose_openblas_kernels() {
  [[ -z ${OPENBLAS_CORETYPE+set} && -x $1 ]] || return 0
  OPENBLAS_VERBOSE=2 "$1" --help 2>&1 | grep -c '^Core: Prescott' >/dev/null || return 0
  case $(grep -m1 '^flags' /proc/cpuinfo 2>/dev/null) in
    *avx512bw*) export OPENBLAS_CORETYPE=SkylakeX ;;
    *avx2*) export OPENBLAS_CORETYPE=Haswell ;;
  esac
}

ensure_packages() {
  local missing
  PATH=$radixmlp_deps_root/build/cmake-env/bin:$PATH
  deps_find_missing "$@"
  if [[ ${#missing[@]} -gt 0 ]]; then
    deps_apt_install "${missing[@]}" || true
    deps_find_missing "$@"
  fi
  if [[ ${missing[*]} == cmake ]] && { deps_have python3-venv || deps_apt_install python3-venv; }; then
    echo "installing cmake from PyPI into build/cmake-env" >&2
    { python3 -m venv "$radixmlp_deps_root/build/cmake-env" &&
      "$radixmlp_deps_root/build/cmake-env/bin/pip" install --quiet 'cmake>=3.24,<4'; } >&2 || true
    hash -r
    deps_find_missing "$@"
  fi
  if [[ ${#missing[@]} -gt 0 ]]; then
    echo "missing: ${missing[*]}" >&2
    echo "install them first, on Debian or Ubuntu: apt-get install ${missing[*]} (cmake must be 3.24 or newer)" >&2
    return 1
  fi
}
