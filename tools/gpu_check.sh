#!/usr/bin/env bash
# What must hold on a machine with an NVIDIA GPU: tests, then timings; about twelve minutes. Run from the project's root.
# Usage: gpu_check.sh BUILD [tests|sanitize|timings]...    BUILD: a build tree with QUIRE_CUDA on and the target
# cuda_kernel_bench built; all three parts by default.
set -euo pipefail
build=${1:?gpu_check.sh: name the build tree}
shift
parts=("${@:-tests sanitize timings}")
quire=$build/bin/quire

title() { printf '\n== %s\n' "$1"; }

run_tests() {
  title "kernels"
  "$build/bin/cuda_tests" --gtest_brief=1
  title "golden models, invariance, graphs"
  "$build/bin/engine_tests" --gtest_brief=1 --gtest_filter='*cuda*'
  title "engine on the GPU"
  QUIRE_TEST_DEVICE=cuda "$build/bin/engine_tests" --gtest_brief=1 --gtest_filter='EngineTest*:PipeliningTest*'
  title "memory held and planned"
  "$build/bin/inspect_tests" --gtest_brief=1 --gtest_filter='CapacityTest*'
}

# Memory errors and races on all of the above; every line is a process of its own, side by side. Racecheck makes some
# kernels a thousand times slower: of each test it looks at the first launches. About ten minutes on 16 cores.
run_sanitizer() {
  local logs
  logs=$(mktemp -d)
  title "compute-sanitizer: logs in $logs"
  local i shards=4
  check() {  # NAME PROGRAM FILTER TOOL...
    compute-sanitizer --error-exitcode 1 --print-limit 5 "${@:4}" "$build/bin/$2" --gtest_filter="$3" \
      > "$logs/$1" 2>&1 || echo "FAILED: $logs/$1"
  }
  export -f check
  export logs build
  title "memcheck"
  for ((i = 0; i < shards; ++i)); do
    export GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i
    check "memory_models.$i" engine_tests '*cuda*' --tool memcheck &
    check "memory_kernels.$i" cuda_tests '*' --tool memcheck &
  done
  wait
  unset GTEST_TOTAL_SHARDS GTEST_SHARD_INDEX
  title "racecheck"
  { list_tests engine_tests '*cuda*'; list_tests cuda_tests '*-DecodeWorkspaceTest.*'; } |
    xargs -P 8 -L 1 bash -c 'check "races.${1//\//.}" "$0" "$1" --tool racecheck --launch-count 200'
  ! grep -l "ERROR SUMMARY: [1-9]\|RACECHECK SUMMARY: [1-9]" "$logs"/*
}

# PROGRAM and NAME of each test that FILTER leaves, a line each.
list_tests() {
  "$build/bin/$1" --gtest_list_tests --gtest_filter="$2" |
    awk -v program="$1" '/^[^ ]/ { suite = $1; next } { print program, suite $1 }'
}

run_timings() {
  title "this machine"
  "$quire" doctor
  title "kernels"
  for bench in "$build"/bin/*_bench; do "$bench"; done
  title "standard workload, Qwen3-0.6B (must 27,000 output tokens/s, goal 32,000)"
  "$quire" bench throughput --shape qwen3-0.6b --workload standard
  title "one stream, Qwen3-0.6B (must 1,500, goal 2,800 tokens/s)"
  "$quire" bench latency --shape qwen3-0.6b --input-len 128 --output-len 512
  title "the modes: op by op, and deterministic"
  "$quire" bench throughput --shape qwen3-0.6b --enforce-eager
  "$quire" bench throughput --shape qwen3-0.6b --deterministic
  title "one stream, Qwen3-8B (must 235, goal 255 tokens/s; first token must 10 ms, goal 6)"
  "$quire" bench latency --shape qwen3-8b --input-len 128 --output-len 128
}

for part in ${parts[*]}; do
  case "$part" in
    tests) run_tests ;;
    sanitize) run_sanitizer ;;
    timings) run_timings ;;
    *) echo "gpu_check.sh: unknown part '$part'; use tests, sanitize or timings" >&2; exit 2 ;;
  esac
done
