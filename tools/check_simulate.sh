#!/bin/bash
# Measures what steps cost, a load in process and one on a server whose KV cache is too small for it, and simulates both:
# prints figures side by side. Usage: tools/check_simulate.sh BUILD [ENGINE FLAGS...]
# TURNS: how often each is measured (3); SECONDS_OF_COSTS: how long costs are (60); RATE: of the served requests (40).
set -euo pipefail

quire=$1/bin/quire
shift
dir=$(mktemp -d)
server=
cleanup() {
  [ -z "$server" ] || { kill "$server" && wait "$server"; } || true
  rm -rf "$dir"
}
trap cleanup EXIT
engine=(--max-num-seqs 32 --max-model-len 2048 "$@")
load=(--num-prompts 200 --random-input-len 100 --random-output-len 100 --random-range-ratio 0.8 --request-rate "${RATE:-40}")

show() { # NAME FILE: a report of either kind, on one line
  python3 - "$@" <<'EOF'
import json
import sys

run = json.load(open(sys.argv[2]))
run = run.get("runs", [run])[0]
ms = {name: "/".join(f"{run[name][p]:.1f}" for p in ("p50", "p99")) for name in ("ttft_ms", "itl_ms")}
more = f", {run['preemptions']} preempted" if "preemptions" in run else ""
print(f"{sys.argv[1]:<24}{run['output_tokens_per_s']:9.1f} tokens/s, TTFT {ms['ttft_ms']} ms, ITL {ms['itl_ms']} ms{more}")
EOF
}

for turn in $(seq "${TURNS:-3}"); do
  "$quire" bench costs "${engine[@]}" --seconds "${SECONDS_OF_COSTS:-60}" --output "$dir/costs"
  "$quire" bench throughput "${engine[@]}" --requests 64 --json >"$dir/out"
  show "standard, measured" "$dir/out"
  "$quire" simulate --costs "$dir/costs" --workload standard --num-prompts 64 --json >"$dir/out"
  show "standard, simulated" "$dir/out"

  blocks=60
  bytes=$((blocks * $(python3 -c "import json; print(int(json.load(open('$dir/costs'))['block_bytes']))")))
  port=$((20000 + RANDOM % 20000))
  "$quire" serve "${engine[@]}" --port $port --kv-cache-memory $bytes --record "$dir/trace" >"$dir/log" 2>&1 &
  server=$!
  until curl -sf "http://127.0.0.1:$port/health" >"$dir/health"; do sleep 0.2; done
  "$quire" bench serve --url "http://127.0.0.1:$port" --ignore-eos --seed "$turn" --vocab-size 512 "${load[@]}" --json >"$dir/out"
  kill "$server" && wait "$server" || true
  server=
  show "served, measured" "$dir/out"
  "$quire" simulate --costs "$dir/costs" --num-blocks $blocks --seed "$turn" "${load[@]}" --json >"$dir/out"
  show "served, simulated" "$dir/out"
  "$quire" simulate --costs "$dir/costs" --trace "$dir/trace" --json >"$dir/out"
  show "its trace, simulated" "$dir/out"
done
