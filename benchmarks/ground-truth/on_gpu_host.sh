#!/usr/bin/env bash
# Unpack vLLM beside a host's own torch and run the matrix: on_gpu_host.sh SITE_ARCHIVE OUT_FOLDER [options of run_matrix.py]
# SITE_ARCHIVE holds vLLM 0.25.1 (CUDA build for torch 2.11) and the Python packages that the host lacks.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); archive=$1; out=$2; shift 2
mkdir -p "$out"
. "$here/unpack_site.sh" "$archive"
export PYTHONPATH="$site" TORCHINDUCTOR_COMPILE_THREADS=3 OMP_NUM_THREADS=4
python3 "$here/run_matrix.py" "$out" --record "$here/h200-vllm-0.25.1.json" "$@"
