"""Pure. The speed model against somebody's measurements: a prediction per row, and how far off.

A row that cannot be asked keeps its place with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal, TypeAlias

from trimtab.bench.known_models import ALIASES, decode_known_model, known_models
from trimtab.bench.score_cache import estimate_row_cache_tokens, logged_cache_tokens
from trimtab.bench.score_rows import (
    SpeedCase,
    base_name,
    decode_consumer_row,
    decode_serving_row,
    quantize_parts,
)
from trimtab.core.model_facts import ModelFacts
from trimtab.core.model_parts import ModelParts
from trimtab.errors import MissingFactError, TrimtabError
from trimtab.planner.gpu_spec import make_gpu
from trimtab.planner.latency import SpeedEstimate, estimate_speed
from trimtab.planner.model_parts import decode_parts

__all__ = [
    "ErrorSummary",
    "ModelShelf",
    "ScoredRow",
    "TableFormat",
    "find_shape_name",
    "score_rows",
    "summarize_errors",
]

TableFormat: TypeAlias = Literal["serving", "consumer"]
Row: TypeAlias = Mapping[str, str]

_CLOSE_RATIO = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRow:
    """One row with what was predicted; ``reason`` says why nothing was (empty when something was).

    Measured figures are None where the row has none. ``group`` is model and card. Cache tokens are
    the engine's printed figure, predicted even for rows whose speed is not.
    """

    row: Row
    group: str = ""
    predicted_ttft_ms: float | None = None
    predicted_tpot_ms: float | None = None
    measured_ttft_ms: float | None = None
    measured_tpot_ms: float | None = None
    predicted_cache_tokens: int | None = None
    measured_cache_tokens: int | None = None
    source: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Relative errors of one figure over rows that have it: |predicted / measured - 1|.

    ``bias_ratio`` is the median of predicted over measured; ``close_share`` is the share within 20 %.
    """

    figure: str
    num_rows: int
    median_ratio: float
    mean_ratio: float
    p90_ratio: float
    bias_ratio: float
    close_share: float


def find_shape_name(model: str, known: Iterable[str]) -> str | None:
    """The known name that a table's model name means: itself, an alias, or the longest one inside it.

    ``known`` are lower-case base names.
    """
    plain = base_name(model).lower() if "(" not in model else model.lower()
    names = set(known)
    if plain in names:
        return plain
    for mark, target in ALIASES:
        if mark in plain and target.lower() in names:
            return target.lower()
    return max((name for name in names if name in plain), key=len, default=None)


class ModelShelf:
    """Facts and parts by model name, decoded once: a folder's configs first, then the known shapes.

    ``configs`` maps lower-case base names to a function that gives the facts or raises TrimtabError.
    """

    def __init__(self, configs: Mapping[str, Callable[[], ModelFacts]]) -> None:
        self._readers = dict(configs)
        for name in known_models():
            self._readers.setdefault(name.lower(), _reader_of(name))
        self._facts: dict[str, ModelFacts] = {}
        self._parts: dict[tuple[object, ...], ModelParts] = {}

    def find_facts(self, model: str) -> tuple[str, ModelFacts]:
        """(shape name, facts) of a table's model name; MissingFactError without a config."""
        name = find_shape_name(model, self._readers)
        if name is None:
            raise MissingFactError(f"no config of {model} is at hand")
        if name not in self._facts:
            self._facts[name] = self._readers[name]()
        return name, self._facts[name]

    def find(self, case: SpeedCase) -> tuple[str, ModelFacts, ModelParts]:
        """(shape name, facts, parts quantised as the row says); MissingFactError without a config."""
        name, facts = self.find_facts(case.model)
        key = (name, case.scheme, case.moe_scheme, case.head_scheme)
        if key not in self._parts:
            self._parts[key] = quantize_parts(facts, decode_parts(facts), case)
        return name, facts, self._parts[key]


def _reader_of(name: str) -> Callable[[], ModelFacts]:
    return lambda: decode_known_model(name)


def score_rows(rows: Iterable[Row], shelf: ModelShelf, table: TableFormat) -> tuple[ScoredRow, ...]:
    """Every row in order, predicted or with a reason."""
    if table == "serving":
        return tuple(_score_row(row, shelf, decode_serving_row) for row in rows)
    return tuple(_add_cache(_score_row(row, shelf, decode_consumer_row), shelf) for row in rows)


def _add_cache(scored: ScoredRow, shelf: ModelShelf) -> ScoredRow:
    """The same row with cache tokens where it logged them; a row that can't be asked stays as it is."""
    logged = logged_cache_tokens(scored.row)
    if logged is None:
        return scored
    try:
        _, facts = shelf.find_facts(scored.row.get("model") or "")
        tokens = estimate_row_cache_tokens(scored.row, facts)
    except (TrimtabError, ValueError):
        return scored
    return replace(scored, predicted_cache_tokens=tokens, measured_cache_tokens=logged)


def _score_row(row: Row, shelf: ModelShelf, decode: Callable[[Row], SpeedCase]) -> ScoredRow:
    try:
        case = decode(row)
        estimate = estimate_case(case, shelf)
    except TrimtabError as error:
        return ScoredRow(row=row, reason=str(error))
    return ScoredRow(
        row=row,
        group=f"{base_name(case.model)} on {case.card.name}",
        predicted_ttft_ms=estimate.ttft_ms,
        predicted_tpot_ms=estimate.tpot_ms,
        measured_ttft_ms=case.measured.ttft_ms,
        measured_tpot_ms=case.measured.tpot_ms,
        source=estimate.source,
    )


def estimate_case(case: SpeedCase, shelf: ModelShelf) -> SpeedEstimate:
    """The speed model's answer for one case."""
    _, facts, parts = shelf.find(case)
    gpus = tuple(make_gpu(case.card, index=index) for index in range(case.num_gpus))
    return estimate_speed(facts, parts, case.settings, gpus, case.workload)


def summarize_errors(rows: Sequence[ScoredRow]) -> tuple[ErrorSummary, ...]:
    """One summary per figure that some row measured."""
    ttft = [(r.predicted_ttft_ms, r.measured_ttft_ms) for r in rows]
    tpot = [(r.predicted_tpot_ms, r.measured_tpot_ms) for r in rows]
    cache = [(r.predicted_cache_tokens, r.measured_cache_tokens) for r in rows]
    found = (
        _summarize("ttft_ms", ttft),
        _summarize("tpot_ms", tpot),
        _summarize("kv_cache_tokens", cache),
    )
    return tuple(summary for summary in found if summary is not None)


def _summarize(figure: str, pairs: Sequence[tuple[float | None, float | None]]) -> ErrorSummary | None:
    ratios = [got / truth for got, truth in pairs if got is not None and truth]
    if not ratios:
        return None
    errors = sorted(abs(ratio - 1.0) for ratio in ratios)
    return ErrorSummary(
        figure=figure,
        num_rows=len(ratios),
        median_ratio=median(errors),
        mean_ratio=fmean(errors),
        p90_ratio=errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        bias_ratio=median(ratios),
        close_share=sum(1 for error in errors if error <= _CLOSE_RATIO) / len(errors),
    )
