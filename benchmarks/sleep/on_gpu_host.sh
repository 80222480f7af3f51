#!/usr/bin/env bash
# run.py on a GPU host without a registry: on_gpu_host.sh CARRIED OUT SECONDS auto|off [more words of run.py]
# CARRIED holds site.tar.xz (see ../ground-truth/on_gpu_host.sh) and wheels of trimtab's own packages that the host lacks.
# Both models are Llama-3.1-8B with dummy weights (one folder: what is compiled for one serves both), each with 0.6 of the card.
# The result lands in OUT/sleep-auto.json.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd); ground=$root/benchmarks/ground-truth
carried=$1; out=$2; seconds=$3; phase=$4; shift 4
. "$ground/unpack_site.sh" "$carried/site.tar.xz"
prepare_trimtab "$root" "$carried"
mkdir -p "$out"; export VLLM_CACHE_ROOT=/tmp/ground-truth/cache/vllm
python3 - "$ground" <<'PY'
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from model_folders import make_model_folder
make_model_folder({"id": "Llama-3.1-8B", "model": "Llama-3.1-8B", "args": {}}, Path("/tmp/models"))
PY
python3 "$here/run.py" "$out/sleep-$phase.json" /tmp/models/Llama-3.1-8B /tmp/models/Llama-3.1-8B --only "$phase" --seconds "$seconds" "$@"
