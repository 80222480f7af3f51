"""I/O. The program that is the llama.cpp engine: loads one GGUF file and serves it until told to stop.

Run as ``python -m trimtab.runtimes.llama_cpp_host --model FILE --port N …``; the flags are spelled
as llama-server spells them. It imports nothing of trimtab, so that it starts at once. Exit code 0
after SIGTERM or SIGINT, 1 with one line on stderr when the model cannot be loaded, 2 on bad flags.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

__all__ = ["main"]

# Cache type as the flag spells it → name of the member of xllamacpp.ggml_type.
_CACHE_TYPES = {
    "f32": "GGML_TYPE_F32",
    "f16": "GGML_TYPE_F16",
    "bf16": "GGML_TYPE_BF16",
    "q8_0": "GGML_TYPE_Q8_0",
    "q5_1": "GGML_TYPE_Q5_1",
    "q5_0": "GGML_TYPE_Q5_0",
    "q4_1": "GGML_TYPE_Q4_1",
    "q4_0": "GGML_TYPE_Q4_0",
}
_FLASH_ATTENTION = {
    "auto": "LLAMA_FLASH_ATTN_TYPE_AUTO",
    "on": "LLAMA_FLASH_ATTN_TYPE_ENABLED",
    "off": "LLAMA_FLASH_ATTN_TYPE_DISABLED",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; gives the exit code."""
    options = _parse(argv)
    # While the library loads a model no Python code runs, so a handler would wait for minutes: until
    # then the kernel's own action ends the program.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import xllamacpp  # noqa: PLC0415 - a bad flag should not pay for loading 100 MB

    try:
        params = _to_params(xllamacpp, options)
    except AttributeError as error:
        _complain(f"xllamacpp {xllamacpp.__version__} has another interface than expected: {error}")
        return 1
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        _complain(f"cannot serve {options.model}: {error}")
        return 1
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    print(f"listening on {server.listening_address}", file=sys.stderr, flush=True)
    while True:
        signal.pause()


def _leave(signum: int, frame: FrameType | None) -> None:
    """Leave at once. The work of this process is in memory alone; the kernel frees it faster than
    the server's own shutdown, which waits for streams in flight.
    """
    del signum, frame
    os._exit(0)


def _complain(text: str) -> None:
    print(f"llama_cpp_host: {text}", file=sys.stderr, flush=True)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trimtab.runtimes.llama_cpp_host", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ctx-size", type=int, required=True, help="tokens, shared by all slots")
    parser.add_argument("--parallel", type=int, required=True, help="slots")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--threads-batch", type=int, required=True)
    parser.add_argument("--threads-http", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--ubatch-size", type=int, required=True)
    parser.add_argument("--cache-type-k", choices=sorted(_CACHE_TYPES), default="f16")
    parser.add_argument("--cache-type-v", choices=sorted(_CACHE_TYPES), default="f16")
    parser.add_argument("--flash-attn", choices=sorted(_FLASH_ATTENTION), default="auto")
    parser.add_argument("--cache-ram", type=int, required=True, help="MiB of remembered prompts, 0 for none")
    parser.add_argument("--ctx-checkpoints", type=int, required=True)
    parser.add_argument("--rope-freq-base", type=float, default=0.0)
    parser.add_argument("--rope-freq-scale", type=float, default=0.0)
    parser.add_argument("--embeddings", action="store_true")
    return parser.parse_args(argv)


def _to_params(xllamacpp: Any, options: argparse.Namespace) -> Any:
    params = xllamacpp.CommonParams()
    values = {
        "model_alias": {options.alias},
        "hostnames": [options.host],
        "port": options.port,
        "n_ctx": options.ctx_size,
        "n_parallel": options.parallel,
        "n_threads_http": options.threads_http,
        "n_batch": options.batch_size,
        "n_ubatch": options.ubatch_size,
        "cache_type_k": getattr(xllamacpp.ggml_type, _CACHE_TYPES[options.cache_type_k]),
        "cache_type_v": getattr(xllamacpp.ggml_type, _CACHE_TYPES[options.cache_type_v]),
        "flash_attn_type": getattr(xllamacpp.llama_flash_attn_type, _FLASH_ATTENTION[options.flash_attn]),
        "cache_ram_mib": options.cache_ram,
        "n_ctx_checkpoints": options.ctx_checkpoints,
        "rope_freq_base": options.rope_freq_base,
        "rope_freq_scale": options.rope_freq_scale,
        "embedding": options.embeddings,
        "endpoint_metrics": True,
        "endpoint_slots": True,
        # The planner has done the fitting; the engine must obey or fail, not shrink silently.
        "fit_params": False,
        "warmup": True,
        "ui": False,
        "cors_origins": "",
    }
    params.model.path = options.model
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads_batch
    for name, value in values.items():
        if not hasattr(params, name):
            raise AttributeError(f"CommonParams has no {name}")
        setattr(params, name, value)
    return params


if __name__ == "__main__":
    sys.exit(main())
