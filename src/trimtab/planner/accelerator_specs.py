"""Pure. What each known card has: literals with their source and date.

``total_bytes`` is what the driver reports to a program (cudaMemGetInfo), which is what vLLM's
utilisation is a share of; it is below the label's size. Values move by some MiB with the driver
and with ECC, so each carries ``total_error_bytes``. Bandwidth and dense operation rates are the
vendor's (without sparsity; GeForce: FP16/BF16 and FP8 with FP32 accumulation); ``sheet`` says where
they were read.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from trimtab.core.hardware import Gpu
from trimtab.units import GIB, MIB

__all__ = ["CARDS", "CardSpec", "complete_gpu", "find_card", "nearest_cards"]

_TERA = 10**12
_GIGA = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSpec:
    """One kind of card; ``marks`` are words whose presence in a driver's name means this card.

    ``total_source`` says where ``total_bytes`` was seen, ``sheet`` where the rates were read.
    """

    name: str
    product: str
    marks: tuple[str, ...]
    total_bytes: int
    total_source: str
    compute_capability: tuple[int, int]
    num_sms: int
    l2_cache_bytes: int
    memory_bandwidth_bytes_per_s: int
    dense_flops: float
    fp8_flops: float
    has_p2p: bool
    sheet: str
    total_error_bytes: int = 128 * MIB


def _card(
    name: str,
    product: str,
    memory: tuple[float, str],
    chip: tuple[tuple[int, int], int, int],
    rates: tuple[int, float, float, str],
    *,
    has_p2p: bool,
) -> CardSpec:
    """One row: memory (GiB, source), chip (capability, SMs, L2 MiB), rates (GB/s, TFLOPS, FP8, source)."""
    return CardSpec(
        name=name,
        product=product,
        marks=tuple(product.lower().removeprefix("nvidia ").removeprefix("geforce ").split()),
        total_bytes=int(memory[0] * GIB),
        total_source=memory[1],
        compute_capability=chip[0],
        num_sms=chip[1],
        l2_cache_bytes=chip[2] * MIB,
        memory_bandwidth_bytes_per_s=rates[0] * _GIGA,
        dense_flops=rates[1] * _TERA,
        fp8_flops=rates[2] * _TERA,
        has_p2p=has_p2p,
        sheet=rates[3],
    )


_SMI = "nvidia-smi's total less the driver's reserve, no log found, +-0.2 GiB"
_AIC = "NVIDIA, aiconfigurator-core 0.12.0 systems/{}.yaml (Apache-2.0), read 2026-11-30"
_GEFORCE = "per clock and SM as NVIDIA's {} whitepaper; agrees with hmc-tech.com's table, read 2026-11-30"

CARDS: dict[str, CardSpec] = {
    spec.name: spec
    for spec in (
        _card(
            "h100",
            "NVIDIA H100",
            (79.19, "vLLM start-up logs of SXM cards, 2025"),
            ((9, 0), 132, 50),
            (3350, 989, 1978, _AIC.format("h100_sxm")),
            has_p2p=True,
        ),
        _card(
            "h200",
            "NVIDIA H200",
            (150109880320 / GIB, "cudaMemGetInfo, measured 2026-11-30, driver 580"),
            ((9, 0), 132, 60),
            (4800, 989, 1978, _AIC.format("h200_sxm") + "; SMs and L2 from CUDA on the card"),
            has_p2p=True,
        ),
        _card(
            "b200",
            "NVIDIA B200",
            (178.35, _SMI),
            ((10, 0), 148, 126),
            (7700, 2250, 4500, _AIC.format("b200_sxm")),
            has_p2p=True,
        ),
        _card(
            "b300",
            "NVIDIA B300",
            (267.69, f"{_SMI} (275,040 MiB)"),
            ((10, 3), 148, 126),
            (7750, 2250, 4500, _AIC.format("b300_sxm") + "; GB300 modules are clocked for 2500 and 5000"),
            has_p2p=True,
        ),
        _card(
            "a100-80g",
            "NVIDIA A100 80GB",
            (79.15, "PyTorch message, github.com/vllm-project/vllm issue 4408, 2024-04"),
            ((8, 0), 108, 40),
            (2039, 312, 0, _AIC.format("a100_sxm")),
            has_p2p=True,
        ),
        _card(
            "l40s",
            "NVIDIA L40S",
            (44.4, "PyTorch messages of the field, 2025; nvidia-smi says 46,068 MiB"),
            ((8, 9), 142, 96),
            (864, 362.05, 733, _AIC.format("l40s")),
            has_p2p=True,
        ),
        _card(
            "l4",
            "NVIDIA L4",
            (22.05, "vLLM message, github.com/pytorch/pytorch issue 175666, 2026-02"),
            ((8, 9), 58, 48),
            (300, 121, 242, _AIC.format("l4")),
            has_p2p=True,
        ),
        _card(
            "a10",
            "NVIDIA A10",
            (22.06, "PyTorch messages of the field, 2025"),
            ((8, 6), 72, 6),
            (600, 125, 0, "NVIDIA data sheet of the A10, from memory, not looked up again"),
            has_p2p=True,
        ),
        _card(
            "rtx3090",
            "NVIDIA GeForce RTX 3090",
            (23.56, "vLLM start-up log, github.com/wtdcode/vllm-backport issue 34, 2026-08"),
            ((8, 6), 82, 6),
            (936, 71.2, 0, _GEFORCE.format("GA102")),
            has_p2p=False,
        ),
        _card(
            "rtx4090",
            "NVIDIA GeForce RTX 4090",
            (23.52, "PyTorch message, github.com/Soul-AILab/SoulX-FlashTalk issue 5, 2026-01; 23.64 in 2024"),
            ((8, 9), 128, 72),
            (1008, 165.2, 330.3, _GEFORCE.format("Ada")),
            has_p2p=False,
        ),
        _card(
            "rtx5090",
            "NVIDIA GeForce RTX 5090",
            (31.39, "28.88 GiB at 0.92, github.com/noonghunna/club-3090 issue 1087, 2026"),
            ((12, 0), 170, 96),
            (1792, 209.5, 419, _GEFORCE.format("RTX Blackwell")),
            has_p2p=False,
        ),
        _card(
            "rtxpro6000",
            "NVIDIA RTX PRO 6000 Blackwell",
            (94.97, f"{_SMI} (97,887 MiB)"),
            ((12, 0), 188, 128),
            (
                1792,
                503.8,
                1007.6,
                "Workstation Edition, hmc-tech.com, 2026-11-30; Server Edition 467.8, 935.6",
            ),
            has_p2p=True,
        ),
    )
}
"""Known cards by the name a user writes."""

_ALIASES = {
    "a100": "a100-80g",
    "a100-80gb": "a100-80g",
    "a10080g": "a100-80g",
    "3090": "rtx3090",
    "4090": "rtx4090",
    "5090": "rtx5090",
    "rtx-pro-6000": "rtxpro6000",
    "pro6000": "rtxpro6000",
}


def find_card(name: str) -> CardSpec | None:
    """The card a user's or the driver's name means: ``rtx4090``, ``RTX 4090``, ``NVIDIA H200``; else None."""
    plain = name.strip().lower()
    joined = plain.replace(" ", "").replace("_", "").removeprefix("nvidia").removeprefix("geforce")
    found = CARDS.get(joined) or CARDS.get(_ALIASES.get(joined, ""))
    if found is not None:
        return found
    words = set(plain.replace("-", " ").split())
    if "laptop" in words:
        return None
    matches = [spec for spec in CARDS.values() if set(spec.marks) <= words]
    return max(matches, key=lambda spec: len(spec.marks), default=None)


def nearest_cards(name: str) -> tuple[str, ...]:
    """Up to three known names that look like ``name``."""
    plain = name.strip().lower().replace(" ", "")
    near = difflib.get_close_matches(plain, [*CARDS, *_ALIASES], n=3, cutoff=0.4)
    return tuple(dict.fromkeys(_ALIASES.get(found, found) for found in near))


def complete_gpu(gpu: Gpu) -> Gpu:
    """The same card with what the catalogue knows added; figures the driver gave are kept."""
    spec = find_card(gpu.spec or gpu.name)
    if spec is None:
        return gpu
    return Gpu(
        index=gpu.index,
        name=gpu.name,
        total_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes,
        compute_capability=gpu.compute_capability or spec.compute_capability,
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s or spec.memory_bandwidth_bytes_per_s,
        dense_flops=spec.dense_flops if gpu.dense_flops is None else gpu.dense_flops,
        fp8_flops=spec.fp8_flops if gpu.fp8_flops is None else gpu.fp8_flops,
        num_sms=gpu.num_sms or spec.num_sms,
        l2_cache_bytes=gpu.l2_cache_bytes or spec.l2_cache_bytes,
        has_p2p=spec.has_p2p if gpu.has_p2p is None else gpu.has_p2p,
        spec=spec.name,
    )
