"""I/O. Configs that ship with trimtab, so that well-known repositories can be planned offline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from trimtab.core.model_facts import ModelFacts, with_basis
from trimtab.planner.model_config import decode_model_config

__all__ = ["BuiltinModel", "list_builtin_models", "read_builtin_config", "read_builtin_model"]

_FILE: Final = "builtin_models.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """One repository's facts: ``source`` says where they are from.

    ``is_inferred`` marks masks that were worked out from published sizes; a plan must say so.
    """

    repo_id: str
    facts: ModelFacts
    source: str
    is_inferred: bool


@lru_cache(maxsize=1)
def _document() -> Mapping[str, Any]:
    text = resources.files("trimtab.probes").joinpath("data", _FILE).read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document


def list_builtin_models() -> tuple[str, ...]:
    """Every repository id with facts of its own, sorted."""
    return tuple(sorted(_document()["models"]))


def read_builtin_model(repo_id: str) -> BuiltinModel | None:
    """The facts of ``repo_id`` (case does not matter), or None when it isn't built in."""
    models: Mapping[str, Mapping[str, Any]] = _document()["models"]
    names = {name.lower(): name for name in models}
    name = names.get(repo_id.strip().lower())
    if name is None:
        return None
    entry = models[name]
    facts = decode_model_config(_config_of(models, entry), where=f"built-in config of {name}")
    is_inferred = entry["certainty"] == "inferred"
    ratio = max(facts.error_ratio, float(entry.get("error_ratio", 0)))
    return BuiltinModel(
        repo_id=name,
        facts=with_basis(facts, basis=f"built in: {entry['source']}", error_ratio=ratio),
        source=str(entry["source"]),
        is_inferred=is_inferred,
    )


def read_builtin_config(repo_id: str) -> dict[str, Any] | None:
    """The config.json of ``repo_id`` as an engine reads it, or None when it isn't built in."""
    models: Mapping[str, Mapping[str, Any]] = _document()["models"]
    name = next((name for name in models if name.lower() == repo_id.strip().lower()), None)
    return None if name is None else _config_of(models, models[name])


def _config_of(models: Mapping[str, Mapping[str, Any]], entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry's config: its own or its base's, with its changes and quantisation on top."""
    config = dict(entry["config"] if "config" in entry else _config_of(models, models[entry["base"]]))
    config |= entry.get("overrides", {})
    if "quantization" in entry:
        config["quantization_config"] = _document()["quantizations"][entry["quantization"]]
    return config
