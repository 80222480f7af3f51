"""Pure. Parse and print bytes, counts and durations; integers of bytes inside, GiB only on screen."""

from __future__ import annotations

import re

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "format_bytes",
    "format_duration_s",
    "parse_bytes",
    "parse_count",
    "parse_duration_s",
]

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_FACTORS: dict[str, int] = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": KIB,
    "m": 10**6,
    "mb": 10**6,
    "mib": MIB,
    "g": 10**9,
    "gb": 10**9,
    "gib": GIB,
    "t": 10**12,
    "tb": 10**12,
    "tib": 1024 * GIB,
}
_MAX_SHOWN_CHARS = 60
# No memory is larger than what this many characters can say.
_MAX_SIZE_CHARS = 40
_BYTES = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")

# As vLLM reads its own numbers (utils/argparse_utils.py): k, m are decimal, K, M binary.
_COUNT_FACTORS: dict[str, int] = {"": 1, "k": 10**3, "m": 10**6, "K": KIB, "M": MIB}
_DURATION = re.compile(r"^\s*(\d{1,9}(?:\.\d{1,9})?)\s*([smh])\s*$")
_COUNT = re.compile(r"^\s*([0-9]{1,15})(\.[0-9]{1,9})?([kmKM]?)\s*$")


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."


def parse_bytes(text: str) -> int:
    """Bytes of a size such as ``24GiB``, ``500 MB`` or ``1024``; ValueError names the legal units."""
    match = _BYTES.match(text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None or len(text) > _MAX_SIZE_CHARS:
        raise ValueError(
            f"{_shortened(text)!r} is not a size; write a number with B, KB, KiB, MB, MiB, GB, GiB, TB or TiB"
        )
    return int(float(match.group(1)) * factor)


def parse_count(text: str) -> int:
    """The number in ``8192``, ``256k`` (256,000), ``1.5k`` or ``256K`` (262,144); ValueError for others.

    Decimals go with k and m only, as in vLLM.
    """
    match = _COUNT.match(text)
    if match is None or (match[2] and match[3] not in {"k", "m"}):
        raise ValueError(
            f"{_shortened(text)!r} is no number; write one such as 8192, 256k (256,000) or 256K (262,144)"
        )
    return (
        round(float(match[1] + match[2]) * _COUNT_FACTORS[match[3]])
        if match[2]
        else int(match[1]) * (_COUNT_FACTORS[match[3]])
    )


def parse_duration_s(text: str) -> float:
    """Seconds of a time such as ``15m``, ``90s`` or ``1.5h``; ValueError for others, and for none at all."""
    match = _DURATION.match(text)
    if match is None:
        raise ValueError(f"{_shortened(text)!r} is not a time; write a number with s, m or h, such as 15m")
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
    if seconds <= 0:
        raise ValueError(f"{_shortened(text)!r} is no time at all; write one above 0, such as 15m")
    return seconds


def format_bytes(num_bytes: int) -> str:
    """Bytes for people: ``512 B``, ``1.5 MiB``, ``23.6 GiB``."""
    magnitude = abs(num_bytes)
    for factor, unit in ((1024 * GIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if magnitude >= factor:
            return f"{num_bytes / factor:.{0 if unit == 'KiB' else 1}f} {unit}"
    return f"{num_bytes} B"


def format_duration_s(seconds: float) -> str:
    """Seconds for people: ``350 ms``, ``4.2 s``, ``3m 05s``, ``2h 10m``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest_s:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"
