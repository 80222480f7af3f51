"""Pure. A Plan as the stable JSON document of ``plan --json``, and back for ``up --plan``."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trimtab.core.plan import PLAN_SCHEMA, ModelPlan, Plan
from trimtab.errors import StackFileError

__all__ = ["plan_from_document", "plan_to_document"]


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
        "models": {model.name: _model_document(model) for model in plan.models},
        "gateway": dataclasses.asdict(plan.gateway) | {"keys": list(plan.gateway.keys)},
        "rejections": [
            {"candidate": dict(item.candidate), "code": item.code, "text": item.text}
            for item in plan.rejections
        ],
        "nearest_fit": [{"change": dict(item.change), "text": item.text} for item in plan.nearest_fit],
    }


def _model_document(model: ModelPlan) -> dict[str, Any]:
    document = dataclasses.asdict(model)
    del document["name"]
    return document | {
        "settings": {item.name: item.value for item in model.settings},
        "origins": {item.name: {"origin": item.origin, "reason": item.reason} for item in model.settings},
        "replicas": [dataclasses.asdict(replica) for replica in model.replicas],
        "speed": None,
        "argv": list(model.argv),
        "env": dict(model.env),
        "warnings": [dataclasses.asdict(warning) for warning in model.warnings],
    }


def plan_from_document(document: Any, *, source: str) -> Plan:
    """The Plan of a saved document; StackFileError when it is none, or of another schema."""
    if not isinstance(document, dict) or "schema" not in document:
        raise StackFileError(
            f"{source} is not a saved plan", hint="make one with: trimtab plan MODEL --out FILE"
        )
    if document["schema"] != PLAN_SCHEMA:
        raise StackFileError(
            f"{source}: schema is {document['schema']!r}, this version reads {PLAN_SCHEMA}",
            hint="plan again with this version",
        )
    try:
        return _adapter().validate_python(_to_fields(document))
    except (ValidationError, KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            what = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg'].lower()}"
        else:
            what = f"{type(error).__name__}: {error}"
        raise StackFileError(
            f"{source} is not a whole plan: {what}", hint="plan again and save it anew"
        ) from None


def _to_fields(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": document["schema"],
        "stack": document["stack"],
        "fits": document["fits"],
        "hardware": document["hardware"],
        "models": [_to_model(name, model) for name, model in document["models"].items()],
        "gateway": document["gateway"],
        "rejections": [
            item | {"candidate": list(item["candidate"].items())} for item in document["rejections"]
        ],
        "nearest_fit": [item | {"change": list(item["change"].items())} for item in document["nearest_fit"]],
    }


def _to_model(name: str, document: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in document.items() if key not in {"origins", "speed"}}
    settings = [
        {"name": key, "value": value} | document["origins"][key]
        for key, value in document["settings"].items()
    ]
    return rest | {"name": name, "settings": settings, "env": list(document["env"].items())}
