"""Pure. What is known about the model a user named, and where each part of it is from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trimtab.core.model_facts import ModelFacts, TensorFact
from trimtab.core.model_parts import ModelParts
from trimtab.core.plan import PlanWarning

__all__ = ["FactsOrigin", "GgufSource", "MaskOrigin", "ModelSource"]

FactsOrigin: TypeAlias = Literal["folder", "config file", "hub cache", "hub", "modelscope", "built in"]
MaskOrigin: TypeAlias = Literal["not quantised", "config", "safetensors headers", "inferred"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A safetensors model as a plan needs it.

    ``checkpoint`` is what the engine is given: a repo id, or a folder's absolute path; ``revision``
    is the commit the facts are of (empty: none is known). ``tensors`` and ``weights_bytes`` are the
    stored weights, empty and None where no header was read. ``local_path`` is a folder that holds
    the whole checkpoint. ``has_generation_config`` and ``chat_template`` are None where nobody
    looked; an empty template means that there is none. ``download_bytes`` is what a start would
    have to fetch, None where unknown, 0 for a local one.
    """

    checkpoint: str
    facts: ModelFacts
    parts: ModelParts
    origin: FactsOrigin
    mask_origin: MaskOrigin
    revision: str = ""
    tensors: tuple[TensorFact, ...] = ()
    weights_bytes: int | None = None
    download_bytes: int | None = None
    has_generation_config: bool | None = None
    chat_template: str | None = None
    local_path: str | None = None
    warnings: tuple[PlanWarning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufSource:
    """A model for llama.cpp: ``checkpoint`` as the user named it, to be resolved as a GGUF file."""

    checkpoint: str
