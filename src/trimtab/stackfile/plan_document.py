"""Pure. A Plan as the stable JSON document of ``plan --json``, and back for ``up --plan``."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from trimtab.core.plan import PLAN_SCHEMA, ModelPlan, Plan, SwapPlan
from trimtab.core.workload import SpeedPlan
from trimtab.errors import StackFileError
from trimtab.stackfile.decode import check_model_name
from trimtab.stackfile.faults import show_part, show_value

__all__ = ["plan_from_document", "plan_to_document"]

_Kind = TypeVar("_Kind")
_MOST: Final = 1 << 63
_KIND_NAMES: Final[dict[type, str]] = {
    dict: "keys and values",
    list: "a list",
    str: "text",
    bool: "true or false",
}


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def plan_to_document(plan: Plan) -> dict[str, Any]:
    """Plain data, ready for JSON: models by served name, settings by their names."""
    return {
        "schema": plan.schema,
        "stack": plan.stack,
        "fits": plan.fits,
        "hardware": dataclasses.asdict(plan.hardware) if plan.hardware is not None else None,
        "externals": [dataclasses.asdict(model) for model in plan.externals],
        "idle_gpus": list(plan.idle_gpus),
        "models": {model.name: _model_document(model) for model in plan.models},
        "gateway": dataclasses.asdict(plan.gateway) | {"keys": list(plan.gateway.keys)},
        "rejections": [
            {"candidate": dict(item.candidate), "code": item.code, "text": item.text}
            for item in plan.rejections
        ],
        "nearest_fit": [{"change": dict(item.change), "text": item.text} for item in plan.nearest_fit],
        "swap": _swap_document(plan.swap),
    }


def _swap_document(swap: SwapPlan | None) -> dict[str, Any] | None:
    if swap is None:
        return None
    return dataclasses.asdict(swap) | {"priority": dict(swap.priority), "stopped": dict(swap.stopped)}


def _model_document(model: ModelPlan) -> dict[str, Any]:
    document = dataclasses.asdict(model)
    del document["name"]
    return document | {
        "settings": {item.name: item.value for item in model.settings},
        "origins": {item.name: {"origin": item.origin, "reason": item.reason} for item in model.settings},
        "replicas": [dataclasses.asdict(replica) for replica in model.replicas],
        "speed": _speed_document(model.speed),
        "argv": list(model.argv),
        "env": dict(model.env),
        "warnings": [dataclasses.asdict(warning) for warning in model.warnings],
    }


def _speed_document(speed: SpeedPlan | None) -> dict[str, Any] | None:
    return None if speed is None else dataclasses.asdict(speed)


def plan_from_document(document: Any, *, source: str) -> Plan:
    """The Plan of a saved document; StackFileError when it is none, or of another schema."""
    if not isinstance(document, dict) or "schema" not in document:
        raise StackFileError(
            f"{source} is not a saved plan", hint="make one with: trimtab plan MODEL --out FILE"
        )
    if document["schema"] != PLAN_SCHEMA:
        raise StackFileError(
            f"{source}: schema is {show_value(document['schema'])}, this version reads {PLAN_SCHEMA}",
            hint="plan again with this version",
        )
    try:
        _check_numbers(document)
        plan = _adapter().validate_python(_to_fields(document))
        _check_runnable(plan)
        return plan  # noqa: TRY300 - the excepts below turn faults of both lines into one sentence
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = f"{'.'.join(show_part(part) for part in first['loc'])}: {first['msg'].lower()}"
    except _NotAsWrittenError as error:
        what = str(error)
    raise StackFileError(f"{source} is not a whole plan: {what}", hint="plan again and save it anew")


def _check_numbers(document: object) -> None:
    """No byte, token or card is counted beyond 63 bits; what is larger no figure on screen survives."""
    waiting: list[tuple[str, object]] = [("", document)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(
                (f"{where}.{show_part(str(key))}".lstrip("."), item) for key, item in value.items()
            )
        elif isinstance(value, list):
            waiting.extend((f"{where}.{index}", item) for index, item in enumerate(value))
        elif isinstance(value, int) and abs(value) >= _MOST:
            raise _NotAsWrittenError(f"{where} is larger than any number in a plan")


def _check_runnable(plan: Plan) -> None:
    """What a plan made by trimtab always has, and what it never sets."""
    if not plan.models and not plan.externals:
        raise _NotAsWrittenError("models: there is none")
    for model in plan.models:
        check_model_name(model.name, where="models")
        if not model.argv or not model.replicas:
            raise _NotAsWrittenError(f"models.{model.name}: argv and replicas may not be empty")
        if plan.swap is not None and not plan.swap.fits_together({model.name}):
            raise _NotAsWrittenError(f"swap.resident_sets: {model.name} is in none of them")
        reserved = [name for name, _ in model.env if name.startswith("TRIMTAB_")]
        if reserved:
            raise _NotAsWrittenError(f"models.{model.name}.env.{reserved[0]}: this variable is trimtab's own")
    asleep = {one.model for one in plan.swap.sleepers} if plan.swap is not None else set()
    if unknown := sorted(asleep - {model.name for model in plan.models}):
        raise _NotAsWrittenError(f"swap.sleepers: {show_part(unknown[0])} is none of the models")


class _NotAsWrittenError(Exception):
    """A part of the document is missing or of another kind; the text says which."""


def _part(document: dict[str, Any], key: str, kind: type[_Kind], *, path: str = "") -> _Kind:
    where = f"{path}{show_part(key)}"
    if key not in document:
        raise _NotAsWrittenError(f"{where} is missing")
    value = document[key]
    if not isinstance(value, kind):
        raise _NotAsWrittenError(f"{where} is {show_value(value)}, not {_KIND_NAMES[kind]}")
    return value


def _to_fields(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its mappings turned back into the tuples that a Plan has."""
    models = _part(document, "models", dict)
    return {
        "schema": document["schema"],
        "stack": _part(document, "stack", str),
        "fits": _part(document, "fits", bool),
        "hardware": document.get("hardware"),
        "externals": document.get("externals", []),
        "idle_gpus": document.get("idle_gpus", []),
        "models": [_to_model(name, _part(models, name, dict, path="models.")) for name in models],
        "gateway": _part(document, "gateway", dict),
        "rejections": _with_pairs(document, "rejections", "candidate"),
        "nearest_fit": _with_pairs(document, "nearest_fit", "change"),
        "swap": _to_swap(document),
    }


def _to_swap(document: dict[str, Any]) -> dict[str, Any] | None:
    if document.get("swap") is None:
        return None
    swap = _part(document, "swap", dict)
    pairs = {name: swap.get(name, {}) for name in ("priority", "stopped")}
    return swap | {name: list(_part(pairs, name, dict, path="swap.").items()) for name in pairs}


def _with_pairs(document: dict[str, Any], key: str, inner: str) -> list[dict[str, Any]]:
    items = [
        _part({str(index): item}, str(index), dict, path=f"{key}.")
        for index, item in enumerate(_part(document, key, list))
    ]
    return [item | {inner: list(_part(item, inner, dict, path=f"{key}.").items())} for item in items]


def _to_model(name: str, document: dict[str, Any]) -> dict[str, Any]:
    path = f"models.{show_part(name)}."
    origins = _part(document, "origins", dict, path=path)
    settings = [
        {"name": key, "value": value} | _part(origins, key, dict, path=f"{path}origins.")
        for key, value in _part(document, "settings", dict, path=path).items()
    ]
    rest = {key: value for key, value in document.items() if key != "origins"}
    return rest | {
        "name": name,
        "settings": settings,
        "env": list(_part(document, "env", dict, path=path).items()),
    }
