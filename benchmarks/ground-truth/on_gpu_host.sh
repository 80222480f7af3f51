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
from types import SimpleNamespace as Row
class Rows(list):
    def get(self, **_):
        return self[0]
languages = language_families = Rows([Row(alpha_2="en", alpha_3="eng", name="English")])
countries = historic_countries = Rows([Row(alpha_2="FR", alpha_3="FRA", numeric="250", name="France", official_name="France")])
currencies = Rows([Row(alpha_3="EUR", numeric="978", name="Euro")])
scripts = Rows([Row(alpha_4="Latn", numeric="215", name="Latin")])
subdivisions = Rows()
PY
export PYTHONPATH="$site" PYTHONUNBUFFERED=1 VLLM_USE_DEEP_GEMM=0 VLLM_USE_FLASHINFER_SAMPLER=0 \
  VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 TORCHINDUCTOR_COMPILE_THREADS=3 OMP_NUM_THREADS=4
python3 "$here/run_matrix.py" "$out" --record "$here/h200-vllm-0.25.1.json" "$@"
