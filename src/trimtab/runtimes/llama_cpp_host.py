"""I/O. The program that is the llama.cpp engine: loads one GGUF file and serves it until told to stop.

Run as ``python -m trimtab.runtimes.llama_cpp_host --model FILE --port N …``; the flags are spelled
as llama-server spells them. It imports nothing of trimtab, so that it starts at once. Exit code 0
after SIGTERM or SIGINT (while it still loads the signal itself ends it), 1 with one line on stderr
when the model cannot be served, 2 on bad flags.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

__all__ = ["main"]

# Flag → the field of CommonParams it sets, and how its text is read.
_VALUES: dict[str, tuple[str, type]] = {
    "--ctx-size": ("n_ctx", int),
    "--parallel": ("n_parallel", int),
    "--threads": ("cpuparams.n_threads", int),
    "--threads-batch": ("cpuparams_batch.n_threads", int),
    "--threads-http": ("n_threads_http", int),
    "--batch-size": ("n_batch", int),
    "--ubatch-size": ("n_ubatch", int),
    "--cache-ram": ("cache_ram_mib", int),
    "--ctx-checkpoints": ("n_ctx_checkpoints", int),
    "--sse-ping-interval": ("sse_ping_interval", int),
    "--rope-freq-base": ("rope_freq_base", float),
    "--rope-freq-scale": ("rope_freq_scale", float),
    "--yarn-orig-ctx": ("yarn_orig_ctx", int),
    "--slot-prompt-similarity": ("slot_prompt_similarity", float),
    "--cache-reuse": ("n_cache_reuse", int),
    "--chat-template": ("chat_template", str),
    "--verbosity": ("verbosity", int),
}
# Flag → the field it sets, the enumeration of xllamacpp, and word → member of it.
_CHOICES: dict[str, tuple[str, str, dict[str, str]]] = {
    **{
        f"--cache-type-{which}": (
            f"cache_type_{which}",
            "ggml_type",
            {
                name: f"GGML_TYPE_{name.upper()}"
                for name in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
            },
        )
        for which in ("k", "v")
    },
    "--flash-attn": (
        "flash_attn_type",
        "llama_flash_attn_type",
        {
            "auto": "LLAMA_FLASH_ATTN_TYPE_AUTO",
            "on": "LLAMA_FLASH_ATTN_TYPE_ENABLED",
            "off": "LLAMA_FLASH_ATTN_TYPE_DISABLED",
        },
    ),
    "--load-mode": (
        "load_mode",
        "llama_load_mode",
        {name: f"LLAMA_LOAD_MODE_{name.upper()}" for name in ("mmap", "none", "mlock")},
    ),
    "--pooling": (
        "pooling_type",
        "llama_pooling_type",
        {name: f"LLAMA_POOLING_TYPE_{name.upper()}" for name in ("none", "mean", "cls", "last", "rank")},
    ),
    "--rope-scaling": (
        "rope_scaling_type",
        "llama_rope_scaling_type",
        {name: f"LLAMA_ROPE_SCALING_TYPE_{name.upper()}" for name in ("none", "linear", "yarn")},
    ),
    "--reasoning-format": (
        "reasoning_format",
        "common_reasoning_format",
        {
            "none": "COMMON_REASONING_FORMAT_NONE",
            "auto": "COMMON_REASONING_FORMAT_AUTO",
            "deepseek": "COMMON_REASONING_FORMAT_DEEPSEEK",
            "deepseek-legacy": "COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY",
        },
    ),
    "--numa": (
        "numa",
        "ggml_numa_strategy",
        {name: f"GGML_NUMA_STRATEGY_{name.upper()}" for name in ("distribute", "isolate", "numactl")},
    ),
}
# Flag (with its --no- form) → the field it sets, and the value of the field when it is on.
_SWITCHES: dict[str, tuple[str, bool]] = {
    "--kv-unified": ("kv_unified", True),
    "--swa-full": ("swa_full", True),
    "--repack": ("no_extra_bufts", False),
    "--embeddings": ("embedding", True),
    "--context-shift": ("ctx_shift", True),
    "--check-tensors": ("check_tensors", True),
}
# What never varies. The planner has done the fitting: the engine must obey or fail, not shrink by
# itself. Browsers reach the model through the gateway alone, which decides about other origins.
_FIXED: dict[str, object] = {
    "endpoint_metrics": True,
    "endpoint_slots": True,
    "fit_params": False,
    "warmup": True,
    "ui": False,
    "cors_origins": "",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; gives the exit code when there is nothing to serve."""
    options = vars(_parser().parse_args(argv))
    faulthandler.enable()
    # Guard: loading holds the interpreter's lock, so no Python handler runs meanwhile; the default
    # action ends the process at once (a large model loads for minutes).
    _on_stop(signal.SIG_DFL)
    try:
        import xllamacpp  # noqa: PLC0415 - a bad flag should not pay for loading 100 MB

        # Guard: the server ends with this object; it is needed for as long as the process lives.
        server = xllamacpp.Server(_to_params(xllamacpp, options))
    except (AttributeError, ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        _tell(f"cannot serve {options['--model']}: {error}")
        return 1
    _on_stop(_leave)
    _tell(f"ready at {server.listening_address}")
    while True:
        signal.pause()


def _on_stop(action: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, action)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once, streams in flight or not.

    All state is in memory, and the kernel frees that faster than the server's own shutdown, which
    waits for what is being generated.
    """
    del number, frame
    os._exit(0)


def _tell(text: str) -> None:
    sys.stderr.write(f"llama_cpp_host: {text}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    """Every flag is stored under its own spelling; flags that are absent keep llama.cpp's default."""
    parser = argparse.ArgumentParser(prog="trimtab.runtimes.llama_cpp_host", allow_abbrev=False)
    parser.add_argument("--model", dest="--model", required=True, metavar="FILE")
    parser.add_argument("--alias", dest="--alias", required=True, metavar="NAME")
    parser.add_argument("--host", dest="--host", default="127.0.0.1", metavar="ADDRESS")
    parser.add_argument("--port", dest="--port", required=True, type=int, metavar="N")
    for flag, (_, kind) in _VALUES.items():
        parser.add_argument(flag, dest=flag, type=kind, metavar="VALUE")
    for flag, (_, _, members) in _CHOICES.items():
        parser.add_argument(flag, dest=flag, choices=tuple(members))
    for flag in _SWITCHES:
        parser.add_argument(flag, dest=flag, action=argparse.BooleanOptionalAction)
    return parser


def _to_params(xllamacpp: Any, options: dict[str, Any]) -> Any:
    """CommonParams with every given flag set; AttributeError names a field that this build lacks."""
    params = xllamacpp.CommonParams()
    _set(params, "model.path", options["--model"])
    _set(params, "model_alias", {options["--alias"]})
    _set(params, "hostnames", [options["--host"]])
    _set(params, "port", options["--port"])
    for field, value in _FIXED.items():
        _set(params, field, value)
    for flag, (field, _) in _VALUES.items():
        if options[flag] is not None:
            _set(params, field, options[flag])
    for flag, (field, enumeration, members) in _CHOICES.items():
        if options[flag] is not None:
            _set(params, field, getattr(getattr(xllamacpp, enumeration), members[options[flag]]))
    for flag, (field, value_when_on) in _SWITCHES.items():
        if options[flag] is not None:
            _set(params, field, value_when_on if options[flag] else not value_when_on)
    return params


def _set(params: Any, field: str, value: object) -> None:
    owner_name, _, name = field.rpartition(".")
    owner = getattr(params, owner_name) if owner_name else params
    # Guard: CommonParams may take unknown attributes in silence, and then the setting is lost.
    if not hasattr(owner, name):
        raise AttributeError(f"CommonParams has no {field}; another xllamacpp is installed than required")
    setattr(owner, name, value)


if __name__ == "__main__":
    sys.exit(main())
