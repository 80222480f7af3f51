"""Pure. What a word such as ``--tensor-parallel-size`` or ``-tp`` means, in whichever version knows it.

vLLM's own table answers first (the version at hand, then every other one); flags that were gone before
the oldest version of that table are listed here, so that an old script is still read rightly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from trimtab.engines.vllm_flags import FLAG_VERSIONS, FlagKind, find_flag, find_option, flag_names

__all__ = ["Option", "argument_name_of", "resolve_option"]

# Flags of vLLM 0.4 to 0.16 that no version of the table has, with what follows them. From the argument
# parsers of those releases (engine/arg_utils.py, entrypoints/openai/cli_args.py).
_PAST_KINDS: Final[dict[str, FlagKind]] = {
    "device": "text",
    "disable_log_requests": "switch_on",
    "enable_reasoning": "switch_on",
    "engine_use_ray": "switch_on",
    "gpu_device": "text",
    "guided_decoding_backend": "text",
    "long_lora_scaling_factors": "list",
    "max_context_len_to_capture": "integer",
    "max_seq_len_to_capture": "integer",
    "multi_step_stream_outputs": "switch",
    "num_lookahead_slots": "integer",
    "num_scheduler_steps": "integer",
    "preemption_mode": "text",
    "rope_scaling": "json",
    "rope_theta": "number",
    "scheduler_delay_factor": "number",
    "speculative_model": "text",
    "num_speculative_tokens": "integer",
    "task": "text",
    "use_v2_block_manager": "switch_on",
    "worker_use_ray": "switch_on",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """``name`` is the Python argument name; ``kind`` is None where no version knows the flag.

    ``key`` is the path after a dot, ``is_negated`` ``--no-x``, ``is_abbreviated`` a beginning only.
    """

    name: str
    kind: FlagKind | None
    key: str = ""
    is_negated: bool = False
    is_abbreviated: bool = False


def argument_name_of(word: str) -> str:
    """The Python argument name that a long flag would have."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", word.lstrip("-").partition(".")[0]).lower()


def resolve_option(word: str, version: str | None) -> Option:
    """The meaning of a flag without its ``=value``."""
    match = find_option(version or FLAG_VERSIONS[-1], word)
    if match is not None:
        return Option(
            name=match.flag.name,
            kind=match.flag.kind,
            key=match.key,
            is_negated=match.is_negated,
            is_abbreviated=match.is_abbreviated,
        )
    head, _, key = word.partition(".")
    known = _every_spelling().get(head.replace("_", "-"))
    if known is not None:
        return Option(name=known.name, kind=known.kind, key=key, is_negated=known.is_negated)
    name = argument_name_of(word)
    if name in _PAST_KINDS:
        return Option(name=name, kind=_PAST_KINDS[name])
    return Option(name=name or word, kind=None, key=word.partition(".")[2])


@cache
def _every_spelling() -> Mapping[str, Option]:
    """Each spelling that any version of the table takes; where they differ, the newest counts."""
    found: dict[str, Option] = {}
    for version in FLAG_VERSIONS:
        for name in flag_names(version):
            flag = find_flag(version, name)
            if flag is None:
                continue
            found |= dict.fromkeys(flag.options, Option(name=name, kind=flag.kind))
            if flag.negative_option is not None:
                found[flag.negative_option] = Option(name=name, kind=flag.kind, is_negated=True)
    return found
