"""Pure. Contexts beyond what a checkpoint was made for: YaRN, pinned by a user or documented by its authors.

vLLM takes it as ``hf_overrides={"rope_parameters": {...}}`` (docs.vllm.ai, context extension); the longest
context is then ``original_max_position_embeddings`` times ``factor`` (vllm/config/model.py, 0.25.1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from trimtab.core.model_facts import ModelFacts
from trimtab.core.stack import SettingValue
from trimtab.errors import StackFileError

__all__ = ["find_documented_stretch", "is_only_stretch", "stretch_facts"]

_KEYS: Final = ("rope_parameters", "rope_scaling")
_MOST_TIMES: Final = 128.0
# Qwen3's cards (Qwen/Qwen3-32B, "Processing Long Texts"): trained on 32,768 positions, 40,960 with the
# answer, validated to 131,072 with YaRN; factor 2 where 65,536 do.
_QWEN3_POSITIONS: Final = 40_960
_QWEN3_ORIGINAL: Final = 32_768
_QWEN3_FACTORS: Final = (2.0, 4.0)
_QWEN3_THETA: Final = 1_000_000


def stretch_facts(facts: ModelFacts, pins: Mapping[str, SettingValue]) -> ModelFacts:
    """``facts`` with the YaRN of a pinned ``hf_overrides``; unchanged where it has none.

    StackFileError for overrides that are no JSON object or whose factor makes no sense.
    """
    settings = _rope_settings(pins.get("hf_overrides"))
    if settings is None or settings.get("rope_type", settings.get("type")) != "yarn":
        return facts
    factor = settings.get("factor")
    original = settings.get("original_max_position_embeddings", facts.max_position_embeddings)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= _MOST_TIMES:
        raise StackFileError(f"hf_overrides: YaRN's factor is {factor!r}, expected 1 to {_MOST_TIMES:.0f}")
    if isinstance(original, bool) or not isinstance(original, int) or not 1 <= original <= 2**31:
        raise StackFileError(
            f"hf_overrides: original_max_position_embeddings is {original!r}, expected a number of tokens"
        )
    positions = int(original * factor)
    rope = replace(facts.rope, rope_type="yarn", factor=float(factor), max_positions=positions)
    return replace(facts, rope=rope)


def find_documented_stretch(facts: ModelFacts, tokens: int) -> str | None:
    """``hf_overrides`` with which the authors say that ``tokens`` can be used; None where none is known."""
    is_qwen3 = facts.model_type in {"qwen3", "qwen3_moe"}
    if not is_qwen3 or facts.max_position_embeddings != _QWEN3_POSITIONS or facts.rope.rope_type == "yarn":
        return None
    for factor in _QWEN3_FACTORS:
        if tokens <= _QWEN3_ORIGINAL * factor:
            settings = {
                "rope_type": "yarn",
                "rope_theta": _QWEN3_THETA,
                "factor": factor,
                "original_max_position_embeddings": _QWEN3_ORIGINAL,
            }
            return json.dumps({"rope_parameters": settings})
    return None


def is_only_stretch(overrides: SettingValue | Mapping[str, object]) -> bool:
    """Nothing but rotary settings of YaRN is overridden."""
    found, settings = _decode(overrides), _rope_settings(overrides)
    if not isinstance(found, Mapping) or settings is None or settings.get("rope_type") != "yarn":
        return False
    inner = found.get("text_config", {})
    names = {*found, *(inner if isinstance(inner, Mapping) else ())} - {"text_config"}
    return names <= set(_KEYS)


def _decode(overrides: SettingValue | Mapping[str, object]) -> object:
    if not isinstance(overrides, str):
        return overrides
    try:
        return json.loads(overrides)
    except (ValueError, RecursionError):
        raise StackFileError(
            f"hf_overrides is {overrides[:80]!r}, which isn't JSON that can be read"
        ) from None


def _rope_settings(overrides: SettingValue | Mapping[str, object]) -> Mapping[str, object] | None:
    """The rotary settings among ``hf_overrides``, of the text model where it has its own section."""
    found = _decode(overrides)
    if not isinstance(found, Mapping):
        return None
    for section in (found, found.get("text_config")):
        if isinstance(section, Mapping):
            for key in _KEYS:
                settings = section.get(key)
                if isinstance(settings, Mapping):
                    return settings
    return None
