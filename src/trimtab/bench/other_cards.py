"""Pure. Cards that measurement tables name and the planner's catalogue doesn't hold.

Enough for the speed model (bandwidth, rates, memory); vendor data sheets, from memory. They are no
planning target: memory is the label's size.
"""

from __future__ import annotations

from trimtab.planner.accelerator_specs import CardSpec, find_card
from trimtab.units import GIB, MIB

__all__ = ["find_table_card"]


def _card(
    name: str,
    product: str,
    memory_gib: int,
    chip: tuple[tuple[int, int], int, int],
    rates: tuple[int, float, float],
) -> CardSpec:
    """One row: memory, (capability, SMs, L2 MiB), (GB/s, dense TFLOPS at 16 and 8 bits)."""
    return CardSpec(
        name=name,
        product=product,
        marks=(),
        total_bytes=memory_gib * GIB,
        total_source="label",
        compute_capability=chip[0],
        num_sms=chip[1],
        l2_cache_bytes=chip[2] * MIB,
        memory_bandwidth_bytes_per_s=rates[0] * 10**9,
        dense_flops=rates[1] * 1e12,
        fp8_flops=rates[2] * 1e12,
        has_p2p=False,
        sheet=f"NVIDIA data sheet of the {product}, from memory",
    )


_OTHERS = {
    spec.name: spec
    for spec in (
        _card("rtx3090ti", "NVIDIA GeForce RTX 3090 Ti", 24, ((8, 6), 84, 6), (1008, 80.0, 0)),
        _card("rtx3080-20g", "NVIDIA GeForce RTX 3080 20GB", 20, ((8, 6), 68, 5), (760, 59.5, 0)),
        _card("rtxa6000", "NVIDIA RTX A6000", 48, ((8, 6), 84, 6), (768, 154.8, 0)),
        _card("rtxa5000", "NVIDIA RTX A5000", 24, ((8, 6), 64, 6), (768, 111.1, 0)),
        _card("a40", "NVIDIA A40", 48, ((8, 6), 84, 6), (696, 149.7, 0)),
        _card("rtx5880-ada", "NVIDIA RTX 5880 Ada", 48, ((8, 9), 110, 72), (960, 277.0, 554.0)),
        _card("rtx6000-ada", "NVIDIA RTX 6000 Ada", 48, ((8, 9), 142, 96), (960, 364.2, 728.5)),
        _card("rtx5060ti-16g", "NVIDIA GeForce RTX 5060 Ti", 16, ((12, 0), 36, 32), (448, 47.4, 94.8)),
        _card("rtx5080", "NVIDIA GeForce RTX 5080", 16, ((12, 0), 84, 64), (960, 112.6, 225.1)),
        _card("rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", 16, ((12, 0), 70, 48), (896, 87.9, 175.8)),
    )
}

_TABLE_NAMES = {
    "gb200": "b200",
    "gb300": "b300",
    "rtx-3090-24g": "rtx3090",
    "rtx-4090-24g": "rtx4090",
    "rtx-5090-32g": "rtx5090",
    "rtx-pro-6000-96g": "rtxpro6000",
    "rtx-pro-6000-maxq-96g": "rtxpro6000",
    "l40s-48g": "l40s",
    "a10-24g": "a10",
    "l4-24g": "l4",
    "a100-80g": "a100-80g",
    "rtx-3090ti-24g": "rtx3090ti",
    "rtx-3080-20g": "rtx3080-20g",
    "rtx-a6000-48g": "rtxa6000",
    "rtx-a5000-24g": "rtxa5000",
    "a40-48g": "a40",
    "rtx-5880-ada-48g": "rtx5880-ada",
    "rtx-6000-ada-48g": "rtx6000-ada",
    "rtx-5060ti-16g": "rtx5060ti-16g",
    "rtx-5080-16g": "rtx5080",
    "rtx-5070ti-16g": "rtx5070ti",
}


def find_table_card(name: str) -> CardSpec | None:
    """The card a table's ``gpu`` cell means; of a mixed pair (``a+b``) the one with less bandwidth."""
    found = [_find_one(each) for each in name.strip().lower().split("+")]
    known = [spec for spec in found if spec is not None]
    if not known or len(known) < len(found):
        return None
    return min(known, key=lambda spec: spec.memory_bandwidth_bytes_per_s)


def _find_one(name: str) -> CardSpec | None:
    target = _TABLE_NAMES.get(name, name)
    return _OTHERS.get(target) or find_card(target)
