"""Pure. What was read of one checkpoint, before it becomes facts; also as a document that can be kept.

The raw config is kept, not the facts: a newer trimtab decodes it anew.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from trimtab.core.model_facts import ModelFacts, TensorFact, TensorPart, with_basis
from trimtab.core.model_source import MaskOrigin
from trimtab.errors import StackFileError
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.observed_mask import apply_observed_mask
from trimtab.probes.safetensors_header import HeaderTensor

__all__ = [
    "SURVEY_SCHEMA",
    "CheckpointSurvey",
    "decode_survey",
    "fold_tensors",
    "mask_origin_of",
    "survey_facts",
    "survey_from_document",
    "survey_to_document",
    "with_tensors",
]

SURVEY_SCHEMA: Final = 1
_NUMBERED: Final = re.compile(r"\b(layers|experts|blocks)\.\d+\.")
_PLACES: Final = {"layers": "layers.{l}.", "experts": "experts.{e}.", "blocks": "blocks.{b}."}
_LAYER: Final = re.compile(r"(?:^|\.)(?:h|layer|block|decoder)\.\d+\.")
# Tens of times what the model with the most kinds of tensors has.
_MOST_PATTERNS: Final = 10_000
_MEASURED_ERROR_RATIO: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSurvey:
    """One checkpoint as it was found.

    ``config`` is its config.json with the quantisation of hf_quant_config.json in it; ``tensors``
    are folded by name pattern; ``spared`` names modules that are stored unquantised although the
    config does not say so; ``is_measured`` means that every header was read. ``download_bytes`` is
    what the engine would fetch (None: unknown).
    """

    config: Mapping[str, Any]
    tensors: tuple[TensorFact, ...] = ()
    spared: tuple[str, ...] = ()
    weights_bytes: int | None = None
    is_measured: bool = False
    has_weights: bool = False
    has_generation_config: bool | None = None
    chat_template: str | None = None
    download_bytes: int | None = None
    missing_files: tuple[str, ...] = ()
    damaged_files: tuple[str, ...] = ()


def decode_survey(config: object, where: str) -> tuple[ModelFacts, Mapping[str, Any]]:
    """The config's own facts, and the config as a mapping; errors as for any config.json."""
    return decode_model_config(config, where=where), cast("Mapping[str, Any]", config)


def with_tensors(survey: CheckpointSurvey, tensors: list[HeaderTensor], where: str) -> CheckpointSurvey:
    """The survey with all the checkpoint's tensors: sizes and mask are then the stored ones."""
    folded = fold_tensors(tensors)
    _check_names(folded, where)
    facts = decode_model_config(survey.config, where=where)
    observed = apply_observed_mask(facts, {tensor.name: tensor.dtype for tensor in tensors})
    known = frozenset(facts.quant.ignored) if facts.quant is not None else frozenset()
    spared = tuple(name for name in observed.quant.ignored if name not in known) if observed.quant else ()
    return replace(
        survey,
        tensors=folded,
        spared=spared,
        weights_bytes=sum(tensor.nbytes for tensor in tensors),
        is_measured=True,
    )


def _check_names(folded: tuple[TensorFact, ...], where: str) -> None:
    """StackFileError where no tensor is one of a layer, or there are more kinds than any model has."""
    has_layers = any("{l}" in item.name or "{b}" in item.name or _LAYER.search(item.name) for item in folded)
    if not has_layers or len(folded) > _MOST_PATTERNS:
        name = folded[0].name if len(folded[0].name) <= 60 else folded[0].name[:57] + "..."
        raise StackFileError(
            f"{where}: the tensor names are not this model's ({name!r} and {len(folded) - 1:,} more)",
            hint="put the weights beside the config.json that they were published with",
        )


def survey_facts(survey: CheckpointSurvey, where: str) -> ModelFacts:
    """The facts: the config's, with the stored mask where headers were read."""
    facts = decode_model_config(survey.config, where=where)
    if not survey.is_measured:
        return facts
    if facts.quant is not None and survey.spared:
        quant = replace(facts.quant, ignored=(*facts.quant.ignored, *survey.spared))
        facts = replace(facts, quant=quant)
    return with_basis(
        facts,
        basis="measured from the files",
        error_ratio=min(facts.error_ratio, _MEASURED_ERROR_RATIO),
    )


def mask_origin_of(survey: CheckpointSurvey, facts: ModelFacts) -> MaskOrigin:
    """Who says which Linears are quantised."""
    if facts.quant is None:
        return "not quantised"
    return "safetensors headers" if survey.is_measured else "config"


def fold_tensors(tensors: Iterable[HeaderTensor]) -> tuple[TensorFact, ...]:
    """Tensors grouped by name pattern, shape and dtype."""
    counts: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    for tensor in tensors:
        pattern = _NUMBERED.sub(lambda found: _PLACES[found[1]], tensor.name)
        counts[pattern, tensor.shape, tensor.dtype] += 1
    return tuple(
        TensorFact(name=name, shape=shape, dtype=dtype, count=count, part=_part_of(name))
        for (name, shape, dtype), count in counts.items()
    )


def _part_of(name: str) -> TensorPart:
    if ".visual." in name or "vision" in name:
        return "vision"
    return "mtp" if name.startswith("mtp.") else "language"


def survey_to_document(survey: CheckpointSurvey) -> dict[str, Any]:
    """The survey as JSON values."""
    return {
        "schema": SURVEY_SCHEMA,
        "config": dict(survey.config),
        "tensors": [[item.name, item.shape, item.dtype, item.count] for item in survey.tensors],
        "spared": survey.spared,
        "weights_bytes": survey.weights_bytes,
        "is_measured": survey.is_measured,
        "has_weights": survey.has_weights,
        "has_generation_config": survey.has_generation_config,
        "chat_template": survey.chat_template,
        "download_bytes": survey.download_bytes,
    }


def survey_from_document(document: Mapping[str, Any]) -> CheckpointSurvey | None:
    """What ``survey_to_document`` wrote; None when it is of another version or damaged."""
    try:
        if document["schema"] != SURVEY_SCHEMA:
            return None
        return CheckpointSurvey(
            config=dict(document["config"]),
            tensors=tuple(
                TensorFact(name=name, shape=tuple(shape), dtype=dtype, count=int(count), part=_part_of(name))
                for name, shape, dtype, count in document["tensors"]
            ),
            spared=tuple(document["spared"]),
            weights_bytes=document["weights_bytes"],
            is_measured=bool(document["is_measured"]),
            has_weights=bool(document["has_weights"]),
            has_generation_config=document["has_generation_config"],
            chat_template=document["chat_template"],
            download_bytes=document["download_bytes"],
        )
    except (KeyError, TypeError, ValueError):
        return None
