"""Pure. ModelParts + settings → what vLLM will log as "Model loading took", per pipeline stage and rank.

The load is replayed on an allocator model: parameters in the order the engine creates them, then
the conversions of every quantised module in the same order, then the MTP head. The figure is the
sum of live allocator blocks, as ``torch.cuda.memory_allocated`` counts them; it holds the rope
table and the draft head, and not the runner's buffers (v1/worker/gpu_model_runner.py load_model,
0.17.0, 0.25.1 and 0.33.0 read).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from trimtab.core.model_facts import DTYPE_BYTES, ModelFacts, QuantFacts, QuantScheme, RopeFacts
from trimtab.core.model_parts import ExpertsPart, LinearPart, ModelParts, ParameterPart
from trimtab.planner.cuda_allocator import MIB, CachingAllocator
from trimtab.planner.vllm_expert_repack import load_experts
from trimtab.planner.vllm_repack import LoadLedger, RepackRules, load_linear
from trimtab.planner.vllm_shards import expert_shape, linear_shape, parameter_elements, stage_layers

__all__ = [
    "RankWeights",
    "WeightItem",
    "WeightSettings",
    "add_draft_head",
    "add_online_quantization",
    "estimate_weights",
]

ROUNDING_ITEM = "allocator rounding"
_SPLIT_LIMIT_SINCE = (0, 21)
_AWQ_BY_KERNEL_SINCE = (0, 18)
_EVERY_STAGE_EMBEDS = frozenset(
    {"qwen3_moe", "qwen3_next", "qwen3_5", "mixtral", "gpt_oss", "gemma2", "gemma3", "gemma4"}
)
"""Families whose vLLM classes build embed_tokens on every pipeline stage (models/*.py, 0.25.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSettings:
    """What the size of a rank's weights depends on, besides the model.

    ``engine_version`` as (major, minor); ``compute_capability`` of the card; ``expert_parallel_size``
    is 1 unless whole experts are placed on ranks (then TP x DP); ``is_encoder_replicated`` is
    ``--mm-encoder-tp-mode data``; ``num_speculative_tokens`` > 0 loads the MTP head.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    expert_parallel_size: int = 1
    engine_version: tuple[int, int] = (0, 25)
    compute_capability: tuple[int, int] = (9, 0)
    is_language_model_only: bool = False
    is_encoder_replicated: bool = False
    num_speculative_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightItem:
    """Bytes of one group of tensors on a rank, in words a reader knows."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """One pipeline stage's rank. ``weights_bytes`` is the logged figure: the sum of ``items``.

    ``load_peak_bytes`` is the most that was allocated while loading, conversions and the draft
    head's own embedding copies included; ``error_bytes`` is the half-width of the band;
    ``host_copy_bytes`` is the RAM that a copy of them takes.
    """

    stage: int
    layers: range
    weights_bytes: int
    load_peak_bytes: int
    error_bytes: int
    items: tuple[WeightItem, ...]
    host_copy_bytes: int = 0

    @property
    def rounding_bytes(self) -> int:
        """What allocator blocks add to the tensors."""
        return next((item.nbytes for item in self.items if item.name == ROUNDING_ITEM), 0)


def add_online_quantization(facts: ModelFacts) -> ModelFacts:
    """``--quantization fp8`` on an unquantised checkpoint: every Linear but the head per tensor."""
    scheme = QuantScheme(format="fp8_tensor", bits=8)
    quant = QuantFacts(method="fp8", scheme=scheme, ignored=("lm_head",), is_online=True)
    return replace(facts, quant=quant)


# A search for what would fit asks for the same model cut the same way hundreds of times, in wishes that
# differ in what weights do not depend on.
@lru_cache(maxsize=512)
def estimate_weights(
    facts: ModelFacts, parts: ModelParts, settings: WeightSettings
) -> tuple[RankWeights, ...]:
    """The weights of one rank of each pipeline stage; ranks of a stage are alike."""
    stages = stage_layers(facts.num_layers, settings.pipeline_parallel_size)
    return tuple(
        _estimate_stage(facts, parts, settings, stage, layers) for stage, layers in enumerate(stages)
    )


def _estimate_stage(
    facts: ModelFacts, parts: ModelParts, settings: WeightSettings, stage: int, layers: range
) -> RankWeights:
    split_limit = 20 * MIB if settings.engine_version >= _SPLIT_LIMIT_SINCE else None
    ledger = LoadLedger(allocator=CachingAllocator(split_limit))
    load = _Load(facts, settings, ledger)
    is_first, is_last = stage == 0, stage == settings.pipeline_parallel_size - 1
    if is_first and not settings.is_language_model_only:
        load.tower(parts)
    load.language(parts, layers, is_first=is_first, is_last=is_last)
    ledger.finish()
    if settings.num_speculative_tokens > 0 and facts.mtp is not None and is_last:
        load.draft(parts)
        ledger.finish()
    items: dict[str, int] = {}
    for name, nbytes in ledger.live.values():
        items[name] = items.get(name, 0) + nbytes
    total = ledger.allocator.allocated_bytes
    items[ROUNDING_ITEM] = total - sum(items.values())
    return RankWeights(
        stage=stage,
        layers=layers,
        weights_bytes=total,
        load_peak_bytes=ledger.allocator.peak_bytes,
        error_bytes=int(total * facts.error_ratio),
        items=tuple(WeightItem(name=name, nbytes=nbytes) for name, nbytes in items.items() if nbytes),
        host_copy_bytes=ledger.allocator.host_copy_bytes,
    )


def add_draft_head(
    weights: tuple[RankWeights, ...], facts: ModelFacts, parts: ModelParts, settings: WeightSettings
) -> tuple[RankWeights, ...]:
    """``weights`` (estimated without) with the MTP head on the last stage, as it would load on its own.

    Allocator blocks that it would share with the layers before it are not seen: within a few MiB of
    ``estimate_weights`` with speculation, at a small part of its time.
    """
    split_limit = 20 * MIB if settings.engine_version >= _SPLIT_LIMIT_SINCE else None
    ledger = LoadLedger(allocator=CachingAllocator(split_limit))
    _Load(facts, settings, ledger).draft(parts)
    ledger.finish()
    extra, last = ledger.allocator.allocated_bytes, weights[-1]
    whole = replace(
        last,
        weights_bytes=last.weights_bytes + extra,
        load_peak_bytes=max(last.load_peak_bytes, last.weights_bytes + ledger.allocator.peak_bytes),
        error_bytes=int((last.weights_bytes + extra) * facts.error_ratio),
        items=(*last.items, WeightItem(name="mtp head", nbytes=extra)),
        host_copy_bytes=last.host_copy_bytes + ledger.allocator.host_copy_bytes,
    )
    return (*weights[:-1], whole)


class _Load:
    """One rank's load: walks the parts in the engine's order and books them."""

    def __init__(self, facts: ModelFacts, settings: WeightSettings, ledger: LoadLedger) -> None:
        self.facts = facts
        self.settings = settings
        self.ledger = ledger
        self.ranks = settings.tensor_parallel_size
        self.is_online = facts.quant is not None and facts.quant.is_online
        capability = settings.compute_capability
        self.rules = RepackRules(
            compute_capability=capability,
            is_awq_by_kernel=settings.engine_version >= _AWQ_BY_KERNEL_SINCE,
            is_scale_e8m0=capability[0] == 10 and facts.family not in {"qwen3_5", "qwen3_next"},
        )

    def tower(self, parts: ModelParts) -> None:
        """The vision tower, cut like any other Linear unless it is replicated."""
        ranks = 1 if self.settings.is_encoder_replicated else self.ranks
        found = [part for part in _every(parts) if part.part == "vision"]
        for part in sorted(found, key=_position):
            for _ in part.layers:
                self._create(part, "vision tower", ranks)

    def language(self, parts: ModelParts, layers: range, *, is_first: bool, is_last: bool) -> None:
        """Embeddings, this stage's layers, final norm and head."""
        inside, outside = _by_layer(parts, "language")
        before = [part for part in outside if "embed_tokens" in part.name]
        after = [part for part in outside if "embed_tokens" not in part.name]
        has_tied_copy = is_last and self.facts.has_tied_embeddings
        if is_first or has_tied_copy or self.facts.family in _EVERY_STAGE_EMBEDS:
            self._create_all(before)
        has_rope = False
        for layer in layers:
            for part in inside.get(layer, ()):
                self._create(part, _item_of(part.name), self.ranks)
                if not has_rope and part.name.endswith(("self_attn.o_proj",)):
                    has_rope = True
                    _load_rope(self.ledger, self.facts.rope)
        if is_last:
            self._create_all(after)
        self._absorb_latent(parts, layers)

    def draft(self, parts: ModelParts) -> None:
        """The MTP head; its own embedding and head copies are freed once shared with the model's."""
        rows = -(-self.facts.vocab_size // self.ranks) * self.facts.hidden_size * 2
        copies = [self.ledger.keep("mtp head", rows) for _ in range(2)]
        found = [part for part in _every(parts) if part.part == "mtp"]
        for part in sorted(found, key=_position):
            if "embed_tokens" in part.name or "shared_head.head" in part.name:
                continue
            for _ in part.layers:
                self._create(part, "mtp head", self.ranks)
        self.ledger.drop(*copies)

    def _create_all(self, parts: Iterable[_Part]) -> None:
        for part in parts:
            self._create(part, _item_of(part.name), self.ranks)

    def _create(self, part: _Part, item: str, ranks: int) -> None:
        if isinstance(part, ParameterPart):
            size = DTYPE_BYTES[part.engine_dtype or part.dtype]
            self.ledger.keep(item, parameter_elements(part, ranks) * size)
        elif isinstance(part, ExpertsPart):
            self._create_experts(part, item)
        else:
            self._create_linear(part, item, ranks)

    def _create_linear(self, part: LinearPart, item: str, ranks: int) -> None:
        is_copied = part.name.endswith("in_proj_ba") and self._replicates_ba()
        rows, columns = linear_shape(part, 1 if is_copied else ranks)
        if self.is_online and part.scheme is not None:
            loaded = self.ledger.allocator.allocate(rows * columns * 2)
            self.ledger.keep(item, rows * columns)
            self.ledger.keep(item, 4 * len(part.shards))
            self.ledger.drop(loaded)
        else:
            load_linear(self.ledger, item, (rows, columns), part.scheme, self.rules)
        if part.has_bias:
            self.ledger.keep(item, rows * 2)

    def _replicates_ba(self) -> bool:
        """AWQ and GPTQ configs keep in_proj_ba whole on every rank (0.25, pull request 36329)."""
        quant = self.facts.quant
        return (
            quant is not None
            and quant.method in {"awq", "gptq"}
            and self.facts.family == "qwen3_5"
            and self.settings.engine_version >= (0, 18)
        )

    def _create_experts(self, part: ExpertsPart, item: str) -> None:
        shape = expert_shape(part, self.ranks, self.settings.expert_parallel_size)
        if self.is_online and part.scheme is not None:
            experts, hidden, inner = shape
            loaded = [self.ledger.allocator.allocate(experts * n * inner * hidden * 2) for n in (2, 1)]
            for count in (2, 1):
                self.ledger.keep(item, experts * count * inner * hidden)
                self.ledger.keep(item, experts * 4)
            self.ledger.drop(*loaded)
            return
        load_experts(self.ledger, shape, part.scheme, self.rules, item=item, has_bias=part.has_bias)

    def _absorb_latent(self, parts: ModelParts, layers: range) -> None:
        """MLA keeps a 16-bit copy of a quantised kv_b_proj (attention/mla_attention.py)."""
        for part in parts.linears:
            if part.part == "language" and part.name.endswith("kv_b_proj") and part.scheme is not None:
                rows, columns = linear_shape(part, self.ranks)
                for _ in [layer for layer in part.layers if layer in layers]:
                    self.ledger.put_off(partial(self.ledger.keep, "attention", rows * columns * 2))


_Part = LinearPart | ExpertsPart | ParameterPart


def _position(part: _Part) -> int:
    return part.position


def _every(parts: ModelParts) -> tuple[_Part, ...]:
    return (*parts.linears, *parts.experts, *parts.parameters)


def _by_layer(parts: ModelParts, wanted: str) -> tuple[dict[int, list[_Part]], list[_Part]]:
    """Parts of each numbered layer, and those outside, each in the engine's order."""
    inside: dict[int, list[_Part]] = {}
    outside: list[_Part] = []
    for part in sorted(_every(parts), key=_position):
        if part.part != wanted:
            continue
        if "{l}" not in part.name:
            outside.append(part)
            continue
        for layer in part.layers:
            inside.setdefault(layer, []).append(part)
    return inside, outside


def _item_of(name: str) -> str:
    for mark, item in _ITEMS:
        if mark in name:
            return item
    return "norms"


_ITEMS = (
    ("embed_tokens", "embeddings"),
    ("lm_head", "output head"),
    ("linear_attn", "linear attention"),
    ("self_attn", "attention"),
    ("shared_expert", "shared experts"),
    ("experts", "experts"),
    ("gate.", "routers"),
    ("router", "routers"),
    ("mlp", "mlp"),
)


def _load_rope(ledger: LoadLedger, rope: RopeFacts) -> None:
    """The cos/sin table(s): computed in float32, kept in 16 bits; MRoPE's is four times longer."""
    if rope.rotary_dim < 2:
        return  # nothing is rotated: no table
    for _ in range(rope.variants):
        positions = rope.max_positions * (4 if rope.is_mrope else 1)
        half = positions * rope.rotary_dim // 2 * 4
        angles, cosines, sines = (ledger.allocator.allocate(half) for _ in range(3))
        joined = ledger.allocator.allocate(2 * half)
        ledger.drop(angles, cosines, sines)
        ledger.keep("rope table", half)
        ledger.drop(joined)
