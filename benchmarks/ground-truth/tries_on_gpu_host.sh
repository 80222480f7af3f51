#!/usr/bin/env bash
# Real `trimtab try` on a GPU host without a registry: tries_on_gpu_host.sh CARRIED OUT SECONDS NAME...
# CARRIED holds site.tar.xz (see on_gpu_host.sh) and wheels of trimtab's own packages that the host lacks.
# Each NAME is a line of `tries` below; what the seconds don't allow is left out. Results land in OUT.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
carried=$1; out=$2; seconds=$3; shift 3; began=$SECONDS
. "$here/unpack_site.sh" "$carried/site.tar.xz"
prepare_trimtab "$root" "$carried"
mkdir -p "$out"
python3 - "$here" <<'PY'
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from configurations import B27_INT4, B35_INT4
from model_folders import make_model_folder
text = {"language_model_only": True}
for name, model in (("Qwen3.5-27B-AWQ-4bit", B27_INT4), ("Qwen3.5-35B-A3B-AWQ-4bit", B35_INT4), ("Qwen3.5-35B-A3B-FP8",) * 2,
                    ("Qwen3.5-27B-FP8",) * 2, ("Qwen3.5-4B",) * 2, ("Llama-3.1-8B",) * 2, ("Qwen3-32B-FP8",) * 2):
    make_model_folder({"id": name, "model": model, "args": text}, Path("/tmp/models"))
PY
hybrid="--set language_model_only=true"
declare -A tries=(
  [27b-int4-24g]="Qwen3.5-27B-AWQ-4bit --context 32768 --concurrency 8 --set gpu_memory_utilization=0.17 --set kv_cache_dtype=fp8 --set max_num_batched_tokens=2048 $hybrid"
  [27b-int4-32g-8k]="Qwen3.5-27B-AWQ-4bit --context 65536 --concurrency 16 --set gpu_memory_utilization=0.225 --set kv_cache_dtype=fp8 --set max_num_batched_tokens=8192 $hybrid"
  [35b-fp8-8k]="Qwen3.5-35B-A3B-FP8 --context 65536 --concurrency 16 --set gpu_memory_utilization=0.35 --set kv_cache_dtype=fp8 --set max_num_batched_tokens=8192 $hybrid"
  [35b-fp8-2k]="Qwen3.5-35B-A3B-FP8 --context 32768 --concurrency 32 --set gpu_memory_utilization=0.35 --set kv_cache_dtype=fp8 --set max_num_batched_tokens=2048 $hybrid"
  [llama-8b-8k]="Llama-3.1-8B --context 32768 --concurrency 32 --set gpu_memory_utilization=0.25 --set max_num_batched_tokens=8192"
  [llama-8b-2k]="Llama-3.1-8B --context 32768 --concurrency 16 --set gpu_memory_utilization=0.25 --set max_num_batched_tokens=2048"
  [32b-fp8-8k]="Qwen3-32B-FP8 --context 32768 --concurrency 16 --set gpu_memory_utilization=0.35 --set max_num_batched_tokens=8192"
)
for name in "$@"; do
  left=$((seconds - SECONDS + began))
  if [ "$name" = sleep ]; then
    [ $left -gt 100 ] && timeout -k 15 $left python3 "$root/benchmarks/sleep/probe.py" "$out/sleep-probe.json" \
      "/tmp/models/Qwen3.5-4B:0.12:--max-model-len:16384:--max-num-seqs:16:--language-model-only:--gdn-prefill-backend:triton" \
      "/tmp/models/Qwen3-32B-FP8:0.3:--max-model-len:16384:--max-num-seqs:16:--kv-cache-dtype:fp8"
    echo "sleep: rc $? after $((SECONDS - began)) s"
    continue
  fi
  budget=$((left - 15)); [ $budget -gt 130 ] && budget=130
  [ $budget -gt 50 ] || { echo "$name: left out, $left s left"; continue; }
  read -ra words <<<"${tries[$name]}"
  XDG_STATE_HOME=/tmp/state/$name XDG_CACHE_HOME=/tmp/try-cache timeout -k 20 $left python3 -m trimtab try "/tmp/models/${words[0]}" "${words[@]:1}" \
    --budget ${budget}s --out "$out/try-$name.json" >"/tmp/try-$name.out" 2>&1
  echo "$name: rc $? after $((SECONDS - began)) s"; grep -vE '^(starting|measuring|stopping)' "/tmp/try-$name.out" | head -45
  cp "/tmp/state/$name"/trimtab/try/logs/*.log "/tmp/try-$name.log" 2>/dev/null
done
(cd /tmp && tar czf "$out/logs.tar.gz" try-*.log try-*.out 2>/dev/null)
ls -la "$out"
