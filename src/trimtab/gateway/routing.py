"""Pure. Which model a request goes to, and the answer of /v1/models and /health."""

from __future__ import annotations

import math
from typing import Any

from trimtab.core.state import ReplicaState, ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.external_listing import EXTERNAL_ENGINE
from trimtab.gateway.thinking import THINKING_SUFFIXES, VirtualMode
from trimtab.gateway.thinking_families import FAMILIES
from trimtab.gateway.upstream_key import key_refused_error

__all__ = [
    "choose_mode",
    "choose_model",
    "find_served_name",
    "render_health",
    "render_models",
    "unanswered_error",
]


def choose_model(name: str | None, served: tuple[ServedModel, ...], *, may_wait: bool = False) -> ServedModel:
    """The ready model a request names, or the only one when it names none.

    With ``may_wait`` also one that will be loaded for it. GatewayError: 400 no name among several, 404
    unknown name, 503 known but not ready.
    """
    for model in served:
        if model.name == name or (name is None and len(served) == 1):
            if may_wait and model.on_demand and model.state is not ReplicaState.FAILED:
                return model
            return _ready(model)
    known = ", ".join(model.name for model in served)
    if name is None:
        raise GatewayError(
            "the request names no model",
            status=400,
            code="model_missing",
            param="model",
            hint=f"known: {known}",
        )
    raise GatewayError(
        f"the model {name[:200]!r} does not exist{_no_virtual(name, served)}",
        status=404,
        code="model_not_found",
        param="model",
        hint=f"known: {known}",
    )


def find_served_name(name: str | None, served: tuple[ServedModel, ...]) -> str:
    """The served name that a request's means, virtual or none at all; empty where it means no model."""
    if name is None:
        return served[0].name if len(served) == 1 else ""
    base, _ = choose_mode(name, served)
    return next((model.name for model in served if model.name == base), "")


def _no_virtual(name: str, served: tuple[ServedModel, ...]) -> str:
    """Why ``m:instant`` is none where ``m`` is served, empty for any other name."""
    for suffix in THINKING_SUFFIXES:
        base = name.removesuffix(suffix)
        family = next((model.family for model in served if model.name == base and base != name), None)
        if family is not None:
            return f": {base!r} is of family {family}, whose thinking cannot be switched, so ask for {base!r}"
    return ""


def choose_mode(name: str | None, served: tuple[ServedModel, ...]) -> tuple[str | None, VirtualMode | None]:
    """The served name behind a virtual one and the mode it says: ``m:instant`` → (``m``, "instant").

    A name that is served as it stands, and one whose model cannot be switched, is no virtual name.
    """
    if name is None or ":" not in name or any(model.name == name for model in served):
        return name, None
    for suffix, mode in THINKING_SUFFIXES.items():
        base = name.removesuffix(suffix)
        if base != name and any(model.name == base and _is_switchable(model) for model in served):
            return base, mode
    return name, None


def _is_switchable(model: ServedModel) -> bool:
    family = FAMILIES.get(model.family)
    return family is not None and family.is_switchable


def _ready(model: ServedModel) -> ServedModel:
    if model.state is ReplicaState.READY and model.base_url is not None:
        return model
    if model.is_key_refused:
        raise key_refused_error(model, model.detail)
    if model.engine == EXTERNAL_ENGINE:
        raise unanswered_error(model, model.detail or "it has not answered yet")
    if model.on_demand and model.state is ReplicaState.FAILED:
        raise not_loaded_error(model)
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


def not_loaded_error(model: ServedModel) -> GatewayError:
    """What those are told who wait for a model whose load has failed, and whoever asks soon after."""
    return GatewayError(
        f"the model {model.name!r} could not be loaded: {model.detail}",
        status=503,
        code="model_load_failed",
        param="model",
        hint="it is tried again by the first request after a while; see: trimtab status",
        retry_after_s=None if model.retry_after_s is None else math.ceil(model.retry_after_s),
    )


def gone_error(name: str) -> GatewayError:
    """What those are told who wait for a model that was taken out of the stack."""
    return GatewayError(
        f"the model {name!r} is served no longer",
        status=404,
        code="model_not_found",
        param="model",
        hint="it was stopped while this request waited",
    )


def unanswered_error(model: ServedModel, reason: str) -> GatewayError:
    """What a client is told whose request got no answer: 502, or 503 where somebody else's is away."""
    if model.engine == EXTERNAL_ENGINE:
        return GatewayError(
            f"the endpoint of the model {model.name!r} does not serve it now: {reason}",
            status=503,
            code="model_not_ready",
            param="model",
            hint="try again in a few seconds",
            retry_after_s=2,
        )
    return GatewayError(
        f"the engine of {model.name!r} did not answer: {reason}",
        status=502,
        code="engine_unreachable",
        hint="try again in a few seconds; trimtab status tells how it is",
    )


def stopping_error() -> GatewayError:
    """What a client is told whose answer had not begun when trimtab stopped."""
    return GatewayError("trimtab was stopped before the answer came", status=503, code="stopping")


def render_models(
    served: tuple[ServedModel, ...], *, created_s: int, with_virtual: bool = True
) -> dict[str, Any]:
    """The body of GET /v1/models; ``max_model_len`` is the context one request may really use.

    ``provider`` and ``status`` are what Open WebUI reads for its dot, in the words of llama.cpp's router:
    without that provider it takes no notice of a status.
    """
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": created_s,
                "owned_by": "trimtab",
                "max_model_len": model.max_model_len,
                "provider": "llama.cpp",
                "status": _list_status(model.state),
            }
            for model in served
            for name in (model.name, *(_virtual_names(model) if with_virtual else ()))
        ],
    }


def _list_status(state: ReplicaState) -> dict[str, Any]:
    if state is ReplicaState.READY:
        return {"value": "loaded"}
    if state in {ReplicaState.STARTING, ReplicaState.BACKING_OFF}:
        return {"value": "loading"}
    if state is ReplicaState.SLEEPING:
        return {"value": "sleeping"}
    return {"value": "unloaded"} | ({"failed": True} if state is ReplicaState.FAILED else {})


def _virtual_names(model: ServedModel) -> list[str]:
    """The names by which a client that can only choose a model chooses how it thinks."""
    return [model.name + suffix for suffix in THINKING_SUFFIXES] if _is_switchable(model) else []


def render_health(served: tuple[ServedModel, ...], *, version: str) -> tuple[int, dict[str, Any]]:
    """Status and body of GET /health: 200 while at least one model answers or can be loaded, else 503.

    "ok" only while every replica of every model answers; what comes and goes may be away.
    """
    fixed = [model for model in served if not model.on_demand]
    movable = [model for model in served if model.on_demand]
    num_ready = sum(model.state is ReplicaState.READY for model in fixed)
    num_ready += sum(model.state is not ReplicaState.FAILED for model in movable)
    states = [model.state for model in fixed]
    states += [replica.state for model in fixed for replica in model.replicas]
    is_whole = all(state is ReplicaState.READY for state in states)
    is_whole = is_whole and all(model.state is not ReplicaState.FAILED for model in movable)
    word = "ok" if is_whole else "degraded" if num_ready else "unavailable"
    models = {model.name: _render_model(model) for model in served}
    return (200 if num_ready else 503), {"status": word, "version": version, "models": models}


def _render_model(model: ServedModel) -> dict[str, Any]:
    num_ready = sum(replica.state is ReplicaState.READY for replica in model.replicas)
    return {
        "state": model.state.value,
        "engine": model.engine,
        "restarts": model.restarts,
        "max_model_len": model.max_model_len,
        "detail": model.detail,
        "on_demand": model.on_demand,
        "admits": model.admits,
        "concurrency": None if model.concurrency is None else model.concurrency * max(1, num_ready),
        "load_s": model.load_s,
        "loads": model.num_loads,
        "wakes": model.num_wakes,
        "replicas": {
            replica.replica_id: {
                "state": replica.state.value,
                "restarts": replica.restarts,
                "detail": replica.detail,
            }
            for replica in model.replicas
        },
    }
