#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Formats the C, C++ and CUDA sources; with --check only says which are not formatted. Uses clang-format 14, the version that
# .clang-format is pinned to: from the system, else from PyPI into build/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

formatter=
for candidate in clang-format-14 clang-format build/format-env/bin/clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then
    formatter=$candidate
    break
  fi
done
if [[ -z $formatter ]]; then
  python3 -m venv build/format-env
  build/format-env/bin/pip install --quiet clang-format==14.0.6
  formatter=build/format-env/bin/clang-format
fi

mode=(-i)
[[ ${1:-} == --check ]] && mode=(--dry-run --Werror)
git ls-files -z '*.hpp' '*.cpp' '*.cuh' '*.cu' '*.h' '*.c' | xargs -0 "$formatter" "${mode[@]}"
