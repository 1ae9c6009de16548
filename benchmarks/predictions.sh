#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# What radixmlp-analyze predicts for the CPU example beside what the example then measures, as a table: the first requests
# of each file, one Qwen3-0.6B-shaped layer, one thread. The rates are measured once, on a batch that has nothing to do
# with the files. Processor time, since others may use the machine.
#
#   benchmarks/predictions.sh BUILD FILE.jsonl...     BUILD: build/host, say
#   TOKENS=n    of each file, default 8192
#   REPEAT=n    rounds, of which medians are taken; default 3
#   RATES=...   of an earlier run, instead of measuring them
#   LAYOUTS=... attention layouts, default "ragged compact_query paged"
set -euo pipefail
build=$1 tokens=${TOKENS:-8192}
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/install_deps.sh"
choose_openblas_kernels "$build/examples/radixmlp_demo"
read -ra layouts <<<"${LAYOUTS:-ragged compact_query paged}"
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
demo=("$build/examples/radixmlp_demo" --threads 1 --cpu-time --max-ratio 1 --repeat "${REPEAT:-3}")

number() { sed -n "s/^ *\"$1\": *\([-0-9.e+]*\).*/\1/p" "$2" | head -1; }

rates=${RATES:-$("${demo[@]}" --calibrate 2>"$scratch/log")}
echo "rates: $rates"
echo
echo "| workload | N | gamma |$(printf ' `%s` |' "${layouts[@]}") largest error |"
echo "|---|--:|--:|$(printf -- '--:|%.0s' "${layouts[@]}")--:|"
for file in "$@"; do
  # A request has a comma between tokens and one or two more.
  awk -v most="$tokens" '{ n += gsub(/,/, ","); if (n > most) exit; print }' "$file" >"$scratch/part.jsonl"
  "$build/tools/radixmlp-analyze" --json --budget "$tokens" --model qwen3-0.6b --rates "$rates" "$scratch/part.jsonl" >"$scratch/predicted.json"
  cells=
  errors=
  for layout in "${layouts[@]}"; do
    "${demo[@]}" --layout "$layout" --json "$scratch/measured.json" "$scratch/part.jsonl" >/dev/null 2>>"$scratch/log"
    measured=$(number speedup "$scratch/measured.json")
    predicted=$(number "$layout" "$scratch/predicted.json")
    cells+=$(printf ' %.2f (%.2f) |' "$measured" "$predicted")
    errors+=$(awk "BEGIN { printf \"%.1f\\n\", 100 * ($predicted / $measured - 1) }")$'\n'
  done
  worst=$(printf '%s' "$errors" | sort -g | awk 'NR == 1 { low = $1 } { high = $1 } END { print (-low > high ? low : high) }')
  printf '| %s | %d | %.3f |%s %+.1f%% |\n' "$(basename "$file" .jsonl)" "$(number tokens "$scratch/predicted.json")" \
    "$(number gamma "$scratch/predicted.json")" "$cells" "$worst"
done
