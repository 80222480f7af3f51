# Sourced: unpack_site.sh ARCHIVE. Puts real vLLM beside a host's own torch, compiled once: without bytecode every start
# spends a minute on compiling the same files. prepare_trimtab ROOT CARRIED then makes `python3 -m trimtab` of the checkout run it.
site=/tmp/site
if [ ! -d "$site/vllm" ]; then
  mkdir -p "$site" && tar xJf "$1" -C "$site"
  python3 -m compileall -q -j 0 "$site" >/dev/null 2>&1 || true
fi
unset PYTHONDONTWRITEBYTECODE
export PYTHONUNBUFFERED=1 VLLM_USE_DEEP_GEMM=0 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
# A package that the multimodal imports ask for and nothing uses.
stub=/tmp/ground-truth/stub; mkdir -p "$stub"
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

prepare_trimtab() {
  # CARRIED holds wheels of trimtab's own packages that the host lacks.
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/own "$2"/*.whl
  mkdir -p /tmp/bin
  cat >/tmp/bin/vllm <<PY
#!$(python3 -c 'import sys; print(sys.executable)')
import sys
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
PY
  chmod +x /tmp/bin/vllm
  export PYTHONPATH="$1/src:$site:/tmp/own:$stub" TRIMTAB_VLLM=/tmp/bin/vllm TRITON_CACHE_DIR=/tmp/ground-truth/cache/triton
}
