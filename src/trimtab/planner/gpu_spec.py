"""Pure. GPU text → cards.

``4xrtx4090`` · ``2x rtx5090, 1x rtx3090`` · ``1x custom:mem=24GiB,bw=1000GB/s,cc=8.9``
"""

from __future__ import annotations

import re

from trimtab.core.hardware import Gpu
from trimtab.errors import StackFileError
from trimtab.planner.accelerator_specs import CARDS, CardSpec, find_card, nearest_cards
from trimtab.units import GIB, parse_bytes

__all__ = ["MOST_GPUS", "decode_gpu_spec", "make_gpu"]

MOST_GPUS = 64
"""More than any one host holds (16 today); a larger count is a typing error."""

_MAX_SHOWN_CHARS = 60
_SMALLEST_BYTES = GIB
_LARGEST_BYTES = 1024 * GIB
_ITEM = re.compile(r"^\s*(?:([+-]?\d+(?:\.\d+)?)\s*[x*]\s*)?(\S.*?)\s*$", re.IGNORECASE)
_NEXT_ITEM = re.compile(r",(?=\s*[+-]?\d+(?:\.\d+)?\s*[x*])", re.IGNORECASE)
# Product names of AMD's and Intel's accelerators and cards.
_OTHER_MAKER = re.compile(
    r"(?P<amd>\b(?:amd|radeon|instinct)\b|\bmi ?-?\d{2,3}[a-z]?\b|\brx ?\d{4})"
    r"|(?P<intel>\b(?:intel|arc|gaudi ?\d?)\b)",
    re.IGNORECASE,
)
_HOW = "describe it: 1x custom:mem=24GiB,bw=1000GB/s,cc=8.9"


def decode_gpu_spec(text: str) -> tuple[Gpu, ...]:
    """The cards a text names, numbered from 0; StackFileError says what is wrong and what would work."""
    if not text.strip():
        raise StackFileError("gpus is empty", hint="write it like 4xrtx4090")
    gpus: list[Gpu] = []
    items = _split(text)
    if not items:
        raise StackFileError(f"gpus {_cut(text)} names no card", hint="write it like 4xrtx4090")
    for item in items:
        count, name = _decode_item(item, text)
        if name.lower().startswith("custom"):
            made = [_decode_custom(name, index=len(gpus) + offset) for offset in range(count)]
        else:
            spec = _find(name)
            made = [make_gpu(spec, index=len(gpus) + offset) for offset in range(count)]
        gpus.extend(made)
        if len(gpus) > MOST_GPUS:
            raise StackFileError(f"gpus {_cut(text)} names {len(gpus)} cards, above {MOST_GPUS} of one host")
    return tuple(gpus)


def _cut(text: str) -> str:
    """A piece of the text for a message, in quotes."""
    return repr(text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "...")


def make_gpu(spec: CardSpec, *, index: int) -> Gpu:
    """A described card of a known kind."""
    return Gpu(
        index=index,
        name=spec.product,
        total_bytes=spec.total_bytes,
        compute_capability=spec.compute_capability,
        memory_bandwidth_bytes_per_s=spec.memory_bandwidth_bytes_per_s,
        dense_flops=spec.dense_flops,
        fp8_flops=spec.fp8_flops,
        num_sms=spec.num_sms,
        l2_cache_bytes=spec.l2_cache_bytes,
        has_p2p=spec.has_p2p,
        spec=spec.name,
    )


def _split(text: str) -> list[str]:
    """Items between commas; a custom card's own commas stay inside it."""
    parts: list[str] = []
    for piece in _NEXT_ITEM.split(text):
        if "custom" in piece.lower():
            parts.append(piece)
        else:
            parts.extend(part for part in piece.split(",") if part.strip())
    return parts


def _decode_item(item: str, text: str) -> tuple[int, str]:
    match = _ITEM.match(item)
    if match is None:
        raise StackFileError(f"gpus {_cut(text)} isn't a list of cards", hint="write it like 4xrtx4090")
    count_text, name = match.group(1) or "1", match.group(2)
    count = float(count_text)
    if not count.is_integer() and count != float("inf"):
        raise StackFileError(
            f"gpus {_cut(item.strip())} asks for {count_text[:20]} cards, expected a whole number"
        )
    if count < 1:
        raise StackFileError(
            f"gpus {_cut(item.strip())} asks for {count_text[:20]} cards, expected 1 or more",
            hint="leave gpus out to use the machine's own",
        )
    if count > MOST_GPUS:
        raise StackFileError(
            f"gpus {_cut(item.strip())} asks for {count_text[:20]} cards, above {MOST_GPUS} of one host"
        )
    return int(count), name


def _find(name: str) -> CardSpec:
    spec = find_card(name)
    if spec is not None:
        return spec
    other = _OTHER_MAKER.search(name)
    if other is not None:
        maker = "AMD" if other.lastgroup == "amd" else "Intel"
        raise StackFileError(
            f"gpus names {_cut(name)}, a card by {maker}, and only NVIDIA cards are planned",
            hint=f"known cards: {', '.join(CARDS)}",
        )
    near = nearest_cards(name) or tuple(CARDS)
    raise StackFileError(
        f"gpus names {_cut(name)}, which isn't a known card; nearest: {', '.join(near)}",
        hint=f"if it is another card, {_HOW}",
    )


def _decode_custom(text: str, *, index: int) -> Gpu:
    _, _, fields = text.partition(":")
    values: dict[str, str] = {}
    for field in fields.split(","):
        key, sign, value = field.partition("=")
        if not sign:
            raise StackFileError(f"gpus {_cut(text)}: {_cut(field.strip())} isn't key=value", hint=_HOW)
        name = key.strip().lower()
        if name in values:
            raise StackFileError(f"gpus {_cut(text)}: {_cut(name)} is given twice", hint=_HOW)
        values[name] = value.strip()
    unknown = [key for key in values if key not in {"mem", "bw", "cc", "name", "p2p"}]
    if unknown:
        raise StackFileError(
            f"gpus {_cut(text)}: {_cut(unknown[0])} isn't one of mem, bw, cc, p2p, name", hint=_HOW
        )
    missing = [key for key in ("mem", "cc") if key not in values]
    if missing:
        raise StackFileError(f"gpus {_cut(text)}: {missing[0]} is missing", hint=_HOW)
    return Gpu(
        index=index,
        name=values.get("name", "custom"),
        total_bytes=_decode_memory(values["mem"], text),
        compute_capability=_decode_capability(values["cc"], text),
        memory_bandwidth_bytes_per_s=_decode_bandwidth(values["bw"], text) if "bw" in values else None,
        has_p2p=values["p2p"].lower() in {"1", "true", "yes"} if "p2p" in values else None,
    )


def _decode_memory(value: str, text: str) -> int:
    try:
        total = parse_bytes(value)
    except ValueError as error:
        raise StackFileError(f"gpus {_cut(text)}: mem: {error}", hint=_HOW) from None
    if not _SMALLEST_BYTES <= total <= _LARGEST_BYTES:
        raise StackFileError(
            f"gpus {_cut(text)}: mem is {_cut(value)}, expected 1 GiB to 1 TiB per card", hint=_HOW
        )
    return total


def _decode_bandwidth(value: str, text: str) -> int:
    try:
        rate = parse_bytes(value.removesuffix("/s"))
    except ValueError as error:
        raise StackFileError(f"gpus {_cut(text)}: bw: {error}", hint=_HOW) from None
    if not 10**9 <= rate <= 10**14:
        raise StackFileError(
            f"gpus {_cut(text)}: bw is {_cut(value)}, expected 1 GB/s to 100 TB/s", hint=_HOW
        )
    return rate


def _decode_capability(value: str, text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", value)
    if match is None or not (7, 0) <= (int(match.group(1)), int(match.group(2))) <= (13, 0):
        raise StackFileError(
            f"gpus {_cut(text)}: cc is {_cut(value)}, expected a compute capability of 7.0 to 13.0 like 8.9",
            hint=_HOW,
        )
    return int(match.group(1)), int(match.group(2))
