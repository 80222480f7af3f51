"""A real Open WebUI for tests: an environment of its own, from a lock with checksums.

    python scripts/open_webui.py install [FOLDER]    make it (about a minute, 1.1 GB); prints its folder
    python scripts/open_webui.py lock                renew requirements-open-webui.lock (needs uv)

It comes from PyPI under its own licence, as a dependency of tests; no file of it is in this repository.
Playwright, which drives the browser that looks at the page, is installed beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from locked_environment import Environment, main

# Imported only by what no test asks for (search in documents, speech, pictures, other databases), and
# two thirds of the whole. Without torch nothing depends on a CPU build of it either.
UNUSED = (
    "accelerate", "av", "azure-ai-documentintelligence", "azure-core", "azure-identity",
    "azure-storage-blob", "ctranslate2", "einops", "faster-whisper", "flatbuffers", "grpcio", "joblib",
    "kubernetes", "mpmath", "networkx", "omegaconf", "onnxruntime", "opencv-python-headless",
    "opensearch-protobufs", "opensearch-py", "pandas", "psycopg", "psycopg-binary", "pyarrow", "pyclipper",
    "rapidocr", "safetensors", "scikit-learn", "scipy", "sentence-transformers", "shapely", "soundfile",
    "sympy", "threadpoolctl", "tokenizers", "torch", "transformers",
)  # fmt: skip


def finish(folder: Path) -> str:
    site = next(folder.glob("lib/python3.*/site-packages"))
    return next(site.glob("open_webui-*.dist-info")).stem


OPEN_WEBUI = Environment(
    name="open-webui",
    what="Open WebUI",
    lock="requirements-open-webui.lock",
    wishes="requirements-open-webui.in",
    left_out=UNUSED,
    needed_bytes=2 * 10**9,
    recipe=1,
    finish=finish,
)

if __name__ == "__main__":
    sys.exit(main(OPEN_WEBUI))
