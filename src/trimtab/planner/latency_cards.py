"""Pure. Which rates and fitted timings hold for a card and the wires between cards."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeAlias

from trimtab.core.hardware import Gpu
from trimtab.planner.latency_profile import Interconnect
from trimtab.planner.latency_steps import CardRates, CardTiming
from trimtab.planner.latency_table import CARD_TIMINGS, LINK_TIMINGS

__all__ = ["CardClass", "card_class", "choose_interconnect", "choose_timing", "make_rates"]

CardClass: TypeAlias = Literal["hopper", "blackwell", "gddr6", "gddr7"]

_SWITCHED = frozenset({"h100", "h200", "b200", "b300", "a100-80g"})
"""Catalogue cards sold on boards whose cards all reach each other over NVLink."""


def card_class(gpu: Gpu) -> CardClass:
    """Cards that share fitted figures: by generation, and stacked against GDDR memory.

    A100 goes with Hopper (both read HBM with one generation's kernels); where nothing is known,
    GDDR6 is the cautious guess.
    """
    major, minor = gpu.compute_capability or (8, 6)
    if major == 9 or (major, minor) == (8, 0):
        return "hopper"
    if major in (10, 11):
        return "blackwell"
    return "gddr7" if major >= 12 else "gddr6"


def choose_interconnect(gpu: Gpu) -> Interconnect:
    """What links cards of this kind when nobody says: NVLink on boards, else PCIe as the driver allows."""
    if gpu.spec in _SWITCHED:
        return "nvlink"
    return "pcie_p2p" if gpu.has_p2p else "pcie"


def make_rates(gpu: Gpu, four_bit: str) -> CardRates | None:
    """A card's peak rates for 4-bit weights of a kind; None where the card's figures aren't known.

    Cards without 8-bit units unpack to 16 bits. Data-centre Blackwell runs nvfp4 and mxfp4 at twice
    the 8-bit rate; elsewhere 4-bit weights count as unpacked: GeForce and RTX PRO Blackwell have
    FP4 units, but prompts of nvfp4 and int4 checkpoints ran alike there (Qwen3.6-35B-A3B on 5090,
    Qwen3.5-397B-A17B on RTX PRO 6000, vLLM 0.17 to 0.25).
    """
    if gpu.memory_bandwidth_bytes_per_s is None or gpu.dense_flops is None:
        return None
    flops_8 = gpu.fp8_flops or gpu.dense_flops
    has_fp4 = gpu.compute_capability is not None and gpu.compute_capability[0] in (10, 11)
    return CardRates(
        bandwidth=float(gpu.memory_bandwidth_bytes_per_s),
        flops_16=gpu.dense_flops,
        flops_8=flops_8,
        flops_4=2.0 * flops_8 if has_fp4 and four_bit != "weight_only" else gpu.dense_flops,
    )


@lru_cache(maxsize=64)
def choose_timing(kind: CardClass, link: Interconnect) -> CardTiming:
    """The fitted timings of a class with its all-reduce over ``link``."""
    reduce_s, growth, bytes_per_s = LINK_TIMINGS[(kind, link)]
    timing = CARD_TIMINGS[kind]
    return replace(timing, reduce_s=reduce_s, reduce_growth=growth, reduce_bytes_per_s=bytes_per_s)
