"""I/O. The keys for endpoints of others, from the environment variables that the stack file names."""

from __future__ import annotations

import os
from collections.abc import Iterable

from trimtab.core.stack import ModelRequest
from trimtab.errors import EnvironmentMissingError

__all__ = ["read_upstream_keys"]


def read_upstream_keys(models: Iterable[ModelRequest]) -> dict[str, str]:
    """Key by served name. EnvironmentMissingError names the model and the variable, never what it holds."""
    keys = {}
    for model in models:
        variable = model.api_key_env
        if variable is None:
            continue
        where = f"models.{model.name}.api_key_env names the variable {variable}, which"
        key = os.environ.get(variable, "").strip()
        if not key:
            what = "is not set" if variable not in os.environ else "is empty"
            raise EnvironmentMissingError(f"{where} {what}", hint=f"export {variable}=… before the start")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise EnvironmentMissingError(
                f"{where} holds what cannot stand in a header",
                hint="a key is one word of ASCII letters, digits and marks",
            )
        keys[model.name] = key
    return keys
