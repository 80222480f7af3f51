"""Pure. What vLLM allocates for a Linear or a set of experts, and what repacking does to it.

Every quantisation method registers its checkpoint layout first and converts it after the whole
model is loaded; converted tensors land in blocks that the conversion's own temporaries left in the
allocator's cache, which is where dense int4 models gain 1-2 %. Sequences follow vLLM 0.25.1:
kernels/linear/mixed_precision/{machete,marlin}.py, quantization/{auto_awq,fp8}.py,
utils/marlin_utils{,_fp8}.py, compressed_tensors_moe_wna16_marlin.py, oracle/mxfp4.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trimtab.core.model_facts import QuantScheme
from trimtab.planner.cuda_allocator import CachingAllocator
from trimtab.planner.vllm_shards import round_up

__all__ = ["LoadLedger", "RepackRules", "load_linear"]

_MACHETE_GROUPS = {-1, 64, 128}
_WORKSPACE_BYTES = 1024
"""Marlin keeps 4 bytes per streaming multiprocessor and layer: under 1 KiB on every card so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackRules:
    """What decides the kernels: the card and the engine's version.

    ``is_awq_by_kernel``: AWQ goes through the common kernel choice (from 0.18, pull request 36505),
    before that always through Marlin. ``is_scale_e8m0``: DeepGEMM on SM 10.x lays block scales out
    per row.
    """

    compute_capability: tuple[int, int]
    is_awq_by_kernel: bool = True
    is_scale_e8m0: bool = False

    @property
    def has_fp8_units(self) -> bool:
        """FP8 matrix units: Ada and newer."""
        return self.compute_capability >= (8, 9)

    def uses_machete(self, scheme: QuantScheme, rows: int, columns: int) -> bool:
        """Machete is Hopper's first choice for int4 Linears of whole tiles and groups of 64, 128 or a row."""
        return (
            self.compute_capability[0] == 9
            and scheme.group_size in _MACHETE_GROUPS
            and rows % 128 == 0
            and columns % 64 == 0
            and (scheme.format != "awq" or self.is_awq_by_kernel)
        )


@dataclass(slots=True)
class LoadLedger:
    """An allocator with a book: which live blocks belong to which item, and what is to be done later."""

    allocator: CachingAllocator
    live: dict[int, tuple[str, int]] = field(default_factory=dict)
    later: list[Callable[[], object]] = field(default_factory=list)

    def keep(self, item: str, nbytes: int) -> int:
        """Allocate something that stays."""
        if nbytes <= 0:
            return -1
        address = self.allocator.allocate(nbytes)
        self.live[address] = (item, nbytes)
        return address

    def drop(self, *addresses: int) -> None:
        """Free blocks, kept or temporary."""
        for address in addresses:
            if address >= 0:
                self.live.pop(address, None)
                self.allocator.release(address)

    def scratch(self, *sizes: int) -> None:
        """Temporaries that live at the same time and are then freed."""
        self.drop(*[self.allocator.allocate(size) for size in sizes if size > 0])

    def put_off(self, step: Callable[[], object]) -> None:
        """Do ``step`` when everything has been created."""
        self.later.append(step)

    def finish(self) -> None:
        """Do what was put off, in order."""
        for step in self.later:
            step()
        self.later.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """One quantised matrix on one rank."""

    item: str
    rows: int
    columns: int
    scheme: QuantScheme

    @property
    def elements(self) -> int:
        return self.rows * self.columns

    @property
    def packed_bytes(self) -> int:
        return self.elements * self.scheme.bits // 8

    @property
    def groups(self) -> int:
        """Scales of 16 bits this weight has."""
        if self.scheme.group_size == -1:
            return self.rows
        return self.rows * -(-self.columns // self.scheme.group_size)


def load_linear(
    ledger: LoadLedger, item: str, shape: tuple[int, int], scheme: QuantScheme | None, rules: RepackRules
) -> None:
    """Create one Linear's weight of ``shape`` (rows, columns); conversions are put off to ``finish``."""
    rows, columns = shape
    if scheme is None or scheme.format == "bf16":
        ledger.keep(item, rows * columns * 2)
        return
    weight = _Weight(item=item, rows=rows, columns=columns, scheme=scheme)
    _LINEAR_LOADERS[scheme.format](ledger, weight, rules)


def _load_fp8_block(ledger: LoadLedger, weight: _Weight, rules: RepackRules) -> None:
    block = weight.scheme.block_shape or (128, 128)
    column_blocks = -(-weight.columns // block[1])
    packed = ledger.keep(weight.item, weight.elements)
    scales = ledger.keep(weight.item, -(-weight.rows // block[0]) * column_blocks * 4)
    if not rules.has_fp8_units:
        grouped = weight.rows * column_blocks * 2
        ledger.put_off(lambda: _marlin_fp8(ledger, weight, (packed, scales), grouped))
    elif rules.is_scale_e8m0:

        def relayout() -> None:
            ledger.keep(weight.item, weight.rows * column_blocks)
            ledger.drop(scales)

        ledger.put_off(relayout)


def _load_fp8_tensor(ledger: LoadLedger, weight: _Weight, rules: RepackRules) -> None:
    scale_bytes = weight.rows * 4 if weight.scheme.group_size == -1 else 4
    packed = ledger.keep(weight.item, weight.elements)
    scales = ledger.keep(weight.item, scale_bytes)
    if weight.scheme.has_static_activation:
        ledger.keep(weight.item, 4)
    if not rules.has_fp8_units:
        ledger.put_off(lambda: _marlin_fp8(ledger, weight, (packed, scales), weight.rows * 2))


def _marlin_fp8(ledger: LoadLedger, weight: _Weight, old: tuple[int, int], scale_bytes: int) -> None:
    """FP8 weights on cards without FP8 units: packed for Marlin, scales widened to 16 bits per group."""
    ledger.keep(weight.item, _WORKSPACE_BYTES)
    transposed = ledger.allocator.allocate(weight.elements)
    ledger.keep(weight.item, weight.elements)
    ledger.drop(old[0])
    ledger.drop(transposed)
    repeated = ledger.allocator.allocate(scale_bytes)
    permuted = ledger.allocator.allocate(scale_bytes)
    ledger.drop(repeated)
    ledger.keep(weight.item, scale_bytes)
    ledger.drop(permuted, old[1])


def _load_packed_int4(ledger: LoadLedger, weight: _Weight, rules: RepackRules) -> None:
    """compressed-tensors: rows are outputs, so Marlin's transpose copies and Machete's does not."""
    item, scale_bytes = weight.item, weight.groups * 2
    packed = ledger.keep(item, weight.packed_bytes)
    scales = ledger.keep(item, scale_bytes)
    ledger.keep(item, 16)
    zeros = -1 if weight.scheme.is_symmetric else ledger.keep(item, weight.groups * weight.scheme.bits // 8)
    order = ledger.keep(item, weight.columns * 4) if weight.scheme.has_act_order else -1
    is_machete = rules.uses_machete(weight.scheme, weight.rows, weight.columns)

    def convert() -> None:
        if is_machete:
            ledger.keep(item, weight.packed_bytes)
            ledger.drop(packed)
            ledger.keep(item, scale_bytes)
            ledger.drop(scales)
            if zeros >= 0:
                _machete_zeros(ledger, weight, zeros)
            return
        ledger.keep(item, _WORKSPACE_BYTES)
        if zeros >= 0:
            _marlin_zeros(ledger, weight, zeros)
        _marlin_weight(ledger, weight, packed, has_copy=True)
        _marlin_scales(ledger, weight, scales, has_copy=True)
        if order >= 0:
            ledger.keep(item, weight.columns * 4)

    ledger.put_off(convert)


def _load_gptq(ledger: LoadLedger, weight: _Weight, rules: RepackRules) -> None:
    item = weight.item
    packed = ledger.keep(item, weight.packed_bytes)
    order = ledger.keep(item, weight.columns * 4)
    scales = ledger.keep(item, weight.groups * 2)
    zeros = ledger.keep(item, weight.groups * weight.scheme.bits // 8)
    is_machete = rules.uses_machete(weight.scheme, weight.rows, weight.columns)

    def convert() -> None:
        if is_machete:
            transposed = ledger.allocator.allocate(weight.packed_bytes)
            ledger.keep(item, weight.packed_bytes)
            ledger.drop(packed, transposed)
            return
        ledger.keep(item, _WORKSPACE_BYTES)
        if not weight.scheme.has_act_order:
            ledger.drop(order)
        ledger.drop(zeros)
        _marlin_weight(ledger, weight, packed, has_copy=False)
        _marlin_scales(ledger, weight, scales, has_copy=False)

    ledger.put_off(convert)


def _load_awq(ledger: LoadLedger, weight: _Weight, rules: RepackRules) -> None:
    """AWQ is unpacked to one int32 per value on the way: nine times its size, in three blocks."""
    item = weight.item
    packed = ledger.keep(item, weight.packed_bytes)
    zeros = ledger.keep(item, weight.groups // 2)
    scales = ledger.keep(item, weight.groups * 2)
    is_machete = rules.uses_machete(weight.scheme, weight.rows, weight.columns)

    def convert() -> None:
        standard, standard_zeros = packed, zeros
        if rules.is_awq_by_kernel:
            standard, unpacked = _awq_unpack(ledger, item, weight.elements)
            ledger.drop(packed)
            standard_zeros, unpacked_zeros = _awq_unpack(ledger, item, weight.groups)
            ledger.drop(zeros, unpacked, unpacked_zeros)
        if is_machete:
            transposed = ledger.allocator.allocate(weight.packed_bytes)
            ledger.keep(item, weight.packed_bytes)
            ledger.drop(standard, transposed)
            _machete_zeros(ledger, weight, standard_zeros)
            return
        ledger.keep(item, _WORKSPACE_BYTES)
        _marlin_zeros(ledger, weight, standard_zeros)
        _marlin_weight(ledger, weight, standard, has_copy=False)
        _marlin_scales(ledger, weight, scales, has_copy=False)

    ledger.put_off(convert)


def _awq_unpack(ledger: LoadLedger, item: str, elements: int) -> tuple[int, int]:
    """Shift, mask, reorder, shift back and sum; returns (new packed block, the unpacked one still held)."""
    shifted = ledger.allocator.allocate(elements * 4)
    masked = ledger.allocator.allocate(elements * 4)
    ledger.drop(shifted)
    ordered = ledger.allocator.allocate(elements * 4)
    ledger.drop(masked)
    spread = ledger.allocator.allocate(elements * 4)
    packed = ledger.keep(item, elements // 2)
    ledger.drop(spread)
    return packed, ordered


def _machete_zeros(ledger: LoadLedger, weight: _Weight, zeros: int) -> None:
    """Machete keeps zero points as 16-bit products with the scales: four times their packed size."""
    unpacked = ledger.allocator.allocate(weight.groups * 4)
    ledger.scratch(weight.groups * 4, weight.groups * 4)
    widened = ledger.allocator.allocate(weight.groups * 2)
    negated = ledger.allocator.allocate(weight.groups * 2)
    ledger.keep(weight.item, weight.groups * 2)
    ledger.drop(widened, negated, zeros, unpacked)


def _marlin_zeros(ledger: LoadLedger, weight: _Weight, zeros: int) -> None:
    unpacked = ledger.allocator.allocate(weight.groups * 4)
    permuted = ledger.allocator.allocate(weight.groups * 4)
    ledger.drop(unpacked)
    ledger.keep(weight.item, weight.groups // 2)
    ledger.drop(permuted, zeros)


def _marlin_weight(ledger: LoadLedger, weight: _Weight, packed: int, *, has_copy: bool) -> None:
    rows, columns = _marlin_tile(weight.rows, weight.columns, weight.scheme.group_size)
    padded_bytes = rows * columns * weight.scheme.bits // 8
    copied = ledger.allocator.allocate(weight.packed_bytes) if has_copy else -1
    ledger.keep(weight.item, padded_bytes)
    ledger.drop(packed, copied)


def _marlin_scales(ledger: LoadLedger, weight: _Weight, scales: int, *, has_copy: bool) -> None:
    copied = ledger.allocator.allocate(weight.groups * 2) if has_copy else -1
    ledger.keep(weight.item, weight.groups * 2)
    ledger.drop(copied, scales)


def _marlin_tile(rows: int, columns: int, group_size: int) -> tuple[int, int]:
    """The cheaper of Marlin's two tile families (marlin_utils.py marlin_padded_nk)."""
    group = max(1, group_size)
    candidates = (
        (round_up(rows, 64), round_up(columns, _lcm(128, group))),
        (round_up(rows, 128), round_up(columns, _lcm(64, group))),
    )
    return min(candidates, key=lambda shape: (shape[0] * shape[1], sum(shape)))


def _lcm(one: int, other: int) -> int:
    big, small = max(one, other), min(one, other)
    return big if big % small == 0 else one * other


def _load_nvfp4(ledger: LoadLedger, weight: _Weight, rules: RepackRules) -> None:
    """NVFP4: FP8 scales per 16, swizzled to 128 x 4 tiles on Blackwell, repacked for Marlin elsewhere."""
    item, columns = weight.item, -(-weight.columns // (weight.scheme.group_size or 16))
    packed = ledger.keep(item, weight.elements // 2)
    scales = ledger.keep(item, weight.rows * columns)
    for _ in range(3):
        ledger.keep(item, 4)

    def convert() -> None:
        if rules.compute_capability[0] >= 10:
            ledger.keep(item, round_up(weight.rows, 128) * round_up(columns, 4))
        else:
            ledger.keep(item, _WORKSPACE_BYTES)
            _marlin_weight(ledger, weight, packed, has_copy=True)
            ledger.scratch(weight.rows * columns * 2, weight.rows * columns * 2)
            ledger.keep(item, weight.rows * columns)
        ledger.drop(scales)

    ledger.put_off(convert)


_LINEAR_LOADERS: dict[str, Callable[[LoadLedger, _Weight, RepackRules], None]] = {
    "fp8_block": _load_fp8_block,
    "fp8_tensor": _load_fp8_tensor,
    "compressed_tensors_int4": _load_packed_int4,
    "gptq": _load_gptq,
    "awq": _load_awq,
    "nvfp4": _load_nvfp4,
    "mxfp4": _load_nvfp4,
}
