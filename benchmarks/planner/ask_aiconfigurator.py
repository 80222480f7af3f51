"""aiconfigurator's memory estimate: python ask_aiconfigurator.py FOLDER JSON   (in its environment)

The estimate is asked with the same budget, batch, tokens, parallelism and quantisation that vLLM was given.
Its tables for vLLM are of 0.24.0 ("current").
"""

import contextlib
import io
import json
import sys

from aiconfigurator_core.sdk.memory import estimate_kv_cache

folder, options = sys.argv[1], json.loads(sys.argv[2])
length = options.pop("length")
with contextlib.redirect_stdout(io.StringIO()):
    found = estimate_kv_cache(
        folder, "h200_sxm", "vllm", "current", memory_fraction_kind="of_total", **options
    )
available, tokens = found["total_kv_size_bytes"], found["total_kv_size_tokens"]
print(
    json.dumps(
        {
            "weights_bytes": found["memory_breakdown"]["weights_bytes"],
            "kv_cache_bytes": available,
            "kv_cache_tokens": tokens,
            "request_kv_bytes": int(available * length / tokens) if tokens else None,
            "breakdown": found["memory_breakdown"],
        }
    )
)
