"""Pure. The key of somebody else's endpoint: sent there, and told to nobody.

A client's own key is for this gateway alone and never goes upstream; an endpoint that refuses ours says
so in words that may hold a part of it, so that the client gets a sentence of the gateway's instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.core.state import ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.external_listing import EXTERNAL_ENGINE

__all__ = ["check_upstream_refusal", "is_key_refusal", "key_refused_error", "upstream_headers"]

_REFUSALS: Final = (401, 403)


def upstream_headers(model: ServedModel, keys: Mapping[str, str]) -> dict[str, str]:
    """What every request to the model's endpoint carries besides; nothing for engines of our own."""
    key = keys.get(model.name)
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def is_key_refusal(status: int) -> bool:
    """Whether an endpoint's answer of that status is about its key."""
    return status in _REFUSALS


def check_upstream_refusal(model: ServedModel, status: int, *, has_key: bool) -> None:
    """GatewayError (502) where somebody else's endpoint refused us: the client's own key is not at fault."""
    if model.engine != EXTERNAL_ENGINE or not is_key_refusal(status):
        return
    what = (
        "it refuses the key that trimtab has for it"
        if has_key
        else "it wants a key, and trimtab has none for it"
    )
    raise key_refused_error(model, f"{what} ({status})")


def key_refused_error(model: ServedModel, what: str) -> GatewayError:
    """What a client is told until somebody corrects the key; to ask again would not help."""
    return GatewayError(
        f"the endpoint of the model {model.name!r}: {what}",
        status=502,
        code="upstream_key",
        hint=f"see models.{model.name}.api_key_env in the stack file",
    )
