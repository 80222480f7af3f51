"""Pure. What vLLM allocates for a layer's routed experts, and what repacking does to it.

Same sources as ``vllm_repack``; experts are stacked, so blocks are large and rounding is small.
"""

from __future__ import annotations

from trimtab.core.model_facts import QuantScheme
from trimtab.planner.vllm_repack import LoadLedger, RepackRules
from trimtab.planner.vllm_shards import ExpertShape, round_up

__all__ = ["load_experts"]

_ITEM = "experts"


def load_experts(
    ledger: LoadLedger,
    shape: ExpertShape,
    scheme: QuantScheme | None,
    rules: RepackRules,
    *,
    item: str = _ITEM,
    has_bias: bool = False,
) -> None:
    """Create w13 and w2 of one layer on one rank; conversions are put off to ``finish``."""
    experts, hidden, inner = shape
    if has_bias:
        ledger.keep(item, experts * 2 * inner * 2)
        ledger.keep(item, experts * hidden * 2)
    if scheme is None or scheme.format == "bf16":
        ledger.keep(item, experts * 2 * inner * hidden * 2)
        ledger.keep(item, experts * inner * hidden * 2)
    elif scheme.format in {"fp8_block", "fp8_tensor"}:
        _load_fp8(ledger, shape, scheme, rules, item)
    elif scheme.format == "mxfp4":
        _load_mxfp4(ledger, shape, rules, item)
    elif scheme.format == "nvfp4":
        _load_nvfp4(ledger, shape, scheme, item)
    else:
        _load_int4(ledger, shape, scheme, item)


def _load_fp8(
    ledger: LoadLedger, shape: ExpertShape, scheme: QuantScheme, rules: RepackRules, item: str
) -> None:
    experts, hidden, inner = shape
    matrices = ((2 * inner, hidden), (hidden, inner))
    weights = [ledger.keep(item, experts * rows * columns) for rows, columns in matrices]
    if scheme.format == "fp8_block":
        block = scheme.block_shape or (128, 128)
        counts = [
            (2 * -(-inner // block[0])) * -(-hidden // block[1]),
            -(-hidden // block[0]) * -(-inner // block[1]),
        ]
        grouped = [rows * -(-columns // block[1]) for rows, columns in matrices]
    else:
        counts = [2 * inner, hidden] if scheme.group_size == -1 else [2, 1]
        grouped = [rows for rows, _ in matrices]
    scales = [ledger.keep(item, experts * count * 4) for count in counts]
    if rules.has_fp8_units:
        return

    def convert() -> None:
        for rows, columns in matrices:
            pieces = ledger.allocator.allocate(experts * rows * columns)
            ledger.keep(item, experts * rows * columns)
            ledger.drop(pieces)
        for count in grouped:
            ledger.scratch(experts * count * 2)
            ledger.keep(item, experts * count * 2)
        ledger.drop(*weights, *scales)

    ledger.put_off(convert)


def _load_int4(ledger: LoadLedger, shape: ExpertShape, scheme: QuantScheme, item: str) -> None:
    """Marlin experts of AWQ, GPTQ and compressed-tensors: one pass over the experts, then swapped."""
    experts, hidden, inner = shape
    groups = (
        (1, 1) if scheme.group_size == -1 else (hidden // scheme.group_size, -(-inner // scheme.group_size))
    )
    counts = (groups[0] * 2 * inner, groups[1] * hidden)
    sizes = [experts * 2 * inner * hidden // 2, experts * inner * hidden // 2]
    scale_sizes = [experts * count * 2 for count in counts]
    zero_sizes = [] if scheme.is_symmetric else [experts * count // 2 for count in counts]
    old = [ledger.keep(item, size) for size in (*sizes, *scale_sizes, *zero_sizes)]
    orders: list[int] = []
    if scheme.format != "awq":
        orders = [ledger.keep(item, experts * size * 4) for size in (hidden, inner, hidden, inner)]
    if scheme.format == "compressed_tensors_int4":
        ledger.keep(item, experts * 2 * 2)
        ledger.keep(item, experts * 2 * 2)

    def convert() -> None:
        for size in sizes:
            ledger.keep(item, size)
            ledger.scratch(size // experts)
        for size in (*scale_sizes, *zero_sizes):
            ledger.keep(item, size)
            ledger.scratch(size // experts)
        ledger.drop(*old)
        if not scheme.has_act_order:
            ledger.drop(*orders)

    ledger.put_off(convert)


def _load_nvfp4(ledger: LoadLedger, shape: ExpertShape, scheme: QuantScheme, item: str) -> None:
    experts, hidden, inner = shape
    group = scheme.group_size or 16
    for rows, columns in ((2 * inner, hidden), (hidden, inner)):
        packed = ledger.keep(item, experts * rows * columns // 2)
        scales = ledger.keep(item, experts * rows * -(-columns // group))
        ledger.keep(item, experts * 4)
        ledger.keep(item, experts * 4)

        def convert(
            rows: int = rows, columns: int = columns, packed: int = packed, scales: int = scales
        ) -> None:
            ledger.keep(item, experts * rows * columns // 2)
            ledger.keep(item, experts * round_up(rows, 128) * round_up(-(-columns // group), 4))
            ledger.drop(packed, scales)

        ledger.put_off(convert)


def _load_mxfp4(ledger: LoadLedger, shape: ExpertShape, rules: RepackRules, item: str) -> None:
    """GPT-OSS, padded to the tiles of Triton (SM 9.0), TRT-LLM (10.x) or Marlin (oracle/mxfp4.py)."""
    experts, hidden, inner = shape
    major = rules.compute_capability[0]
    if major == 9:
        inner = round_up(inner, 64)
    elif major == 10:
        hidden, inner = round_up(hidden, 256), round_up(inner, 256)
    else:
        hidden, inner = round_up(hidden, 256), round_up(inner, 128)
    old = []
    for rows, columns in ((2 * inner, hidden), (hidden, inner)):
        old.append(ledger.keep(item, experts * rows * columns // 2))
        old.append(ledger.keep(item, experts * rows * -(-columns // 32)))

    def convert() -> None:
        for rows, columns in ((2 * inner, hidden), (hidden, inner)):
            ledger.keep(item, experts * rows * columns // 2)
            ledger.keep(item, experts * rows * -(-columns // 32))
        ledger.drop(*old)

    ledger.put_off(convert)
