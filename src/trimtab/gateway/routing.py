"""Pure. Which model a request goes to, and the answer of /v1/models and /health."""

from __future__ import annotations

from typing import Any

from trimtab.core.state import ReplicaState, ServedModel
from trimtab.errors import GatewayError

__all__ = ["choose_model", "render_health", "render_models"]


def choose_model(name: str | None, served: tuple[ServedModel, ...]) -> ServedModel:
    """The ready model a request names, or the only one when it names none.

    GatewayError: 400 no name among several, 404 unknown name, 503 known but not ready.
    """
    known = ", ".join(model.name for model in served)
    if name is None:
        if len(served) != 1:
            raise GatewayError(
                "the request names no model",
                status=400,
                code="model_missing",
                param="model",
                hint=f"known: {known}",
            )
        return _ready(served[0])
    for model in served:
        if model.name == name:
            return _ready(model)
    raise GatewayError(
        f"the model {name[:200]!r} does not exist",
        status=404,
        code="model_not_found",
        param="model",
        hint=f"known: {known}",
    )


def _ready(model: ServedModel) -> ServedModel:
    if model.state is ReplicaState.READY and model.base_url is not None:
        return model
    reason = f": {model.detail}" if model.detail else ""
    raise GatewayError(
        f"the model {model.name!r} is {model.state.value.replace('_', ' ')}{reason}",
        status=503,
        code="model_not_ready",
        param="model",
        hint="try again in a few seconds"
        if model.state is not ReplicaState.FAILED
        else "see: trimtab status",
    )


def render_models(served: tuple[ServedModel, ...], *, created_s: int) -> dict[str, Any]:
    """The body of GET /v1/models; ``max_model_len`` is the context one request may really use."""
    return {
        "object": "list",
        "data": [
            {
                "id": model.name,
                "object": "model",
                "created": created_s,
                "owned_by": "trimtab",
                "max_model_len": model.max_model_len,
                "status": {"value": "loaded" if model.state is ReplicaState.READY else model.state.value},
            }
            for model in served
        ],
    }


def render_health(served: tuple[ServedModel, ...], *, version: str) -> tuple[int, dict[str, Any]]:
    """Status and body of GET /health: 200 while at least one model answers, else 503."""
    num_ready = sum(model.state is ReplicaState.READY for model in served)
    word = "ok" if num_ready == len(served) else "degraded" if num_ready else "unavailable"
    models = {
        model.name: {
            "state": model.state.value,
            "engine": model.engine,
            "restarts": model.restarts,
            "max_model_len": model.max_model_len,
            "detail": model.detail,
        }
        for model in served
    }
    return (200 if num_ready else 503), {"status": word, "version": version, "models": models}
