"""Pure. The quantisation mask as the files themselves show it, where it differs from the config's.

Quantisers write configs that leave out modules they spared, or name ones they did not; the dtype of
each stored weight is the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from trimtab.core.model_facts import ModelFacts

__all__ = ["apply_observed_mask"]

_PLAIN_DTYPES = frozenset({"BF16", "F16", "F32"})


def apply_observed_mask(facts: ModelFacts, dtypes: Mapping[str, str]) -> ModelFacts:
    """The facts with every Linear that is stored plainly added to the mask.

    ``dtypes`` maps a tensor's full name to its safetensors dtype. Facts of an unquantised model
    come back unchanged.
    """
    if facts.quant is None:
        return facts
    plain = sorted(_plain_modules(dtypes.items()) - _quantised_modules(dtypes))
    spared = (*facts.quant.ignored, *plain)
    return replace(facts, quant=replace(facts.quant, ignored=tuple(dict.fromkeys(spared))))


def _plain_modules(items: Iterable[tuple[str, str]]) -> set[str]:
    return {
        name.removesuffix(".weight")
        for name, dtype in items
        if dtype in _PLAIN_DTYPES and name.endswith(".weight") and "norm" not in name
    }


def _quantised_modules(dtypes: Mapping[str, str]) -> set[str]:
    """Modules with a scale beside the weight."""
    return {
        name.rpartition(".")[0]
        for name in dtypes
        if name.endswith(("scale", "scale_inv", "scales", "scale_2"))
    }
