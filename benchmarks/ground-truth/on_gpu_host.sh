#!/usr/bin/env bash
# Unpack vLLM beside a host's own torch and run the matrix: on_gpu_host.sh SITE_ARCHIVE OUT_FOLDER [options of run_matrix.py]
# SITE_ARCHIVE holds vLLM 0.25.1 (CUDA build for torch 2.11) and the Python packages that the host lacks.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); archive=$1; out=$2; shift 2
site=/tmp/site
[ -d "$site/vllm" ] || { mkdir -p "$site" && tar xJf "$archive" -C "$site"; }
stub=/tmp/ground-truth/stub; mkdir -p "$stub" "$out"
# A package that the multimodal imports ask for and nothing uses.
cat >"$stub/pycountry.py" <<'PY'
class _Rows(list):
    def get(self, **_):
        return None
languages = countries = language_families = historic_countries = currencies = scripts = subdivisions = _Rows()
PY
export PYTHONPATH="$site" PYTHONUNBUFFERED=1 VLLM_USE_DEEP_GEMM=0 VLLM_USE_FLASHINFER_SAMPLER=0 \
  VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 TORCHINDUCTOR_COMPILE_THREADS=3 OMP_NUM_THREADS=4
python3 "$here/run_matrix.py" "$out" --record "$here/h200-vllm-0.25.1.json" "$@"
