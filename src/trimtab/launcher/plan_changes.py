"""Pure. What differs between the plan of a model that runs and the new one, in the words of its settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from trimtab.core.plan import ModelPlan, Plan, ReplicaPlan
from trimtab.core.state import Action

__all__ = ["explain_replacements"]

_MAX_NAMED: Final = 4
_MAX_VALUE_CHARS: Final = 40
# What a setting of the engine says that the plan's context says already.
_CONTEXT_NAMES: Final = frozenset({"max_model_len", "n_ctx"})


def explain_replacements(actions: Iterable[Action], before: Plan, after: Plan) -> tuple[Action, ...]:
    """The actions with the cause of every "replace" told as what changed: ``context 2,048 → 4,096``.

    One whose difference the plans do not show keeps its cause.
    """
    old, new = dict(_replicas(before)), dict(_replicas(after))
    return tuple(_explain(action, old, new) for action in actions)


def _replicas(plan: Plan) -> Iterator[tuple[str, tuple[ModelPlan, ReplicaPlan]]]:
    for model in plan.models:
        for replica in model.replicas:
            yield replica.replica_id, (model, replica)


def _explain(
    action: Action,
    old: dict[str, tuple[ModelPlan, ReplicaPlan]],
    new: dict[str, tuple[ModelPlan, ReplicaPlan]],
) -> Action:
    was, wanted = old.get(action.replica_id), new.get(action.replica_id)
    if action.kind != "replace" or was is None or wanted is None:
        return action
    changes = [*_model_changes(was[0], wanted[0]), *_card_changes(was[1], wanted[1])]
    if not changes:
        return action
    more = f", {len(changes) - _MAX_NAMED} more" if len(changes) > _MAX_NAMED else ""
    return replace(action, cause=", ".join(changes[:_MAX_NAMED]) + more)


def _model_changes(was: ModelPlan, wanted: ModelPlan) -> Iterator[str]:
    facts = (
        ("checkpoint", was.checkpoint, wanted.checkpoint),
        ("engine", was.engine, wanted.engine),
        ("engine version", was.engine_version, wanted.engine_version),
        ("runtime", was.runtime, wanted.runtime),
        ("context", was.max_model_len, wanted.max_model_len),
    )
    yield from (_change(name, old, new) for name, old, new in facts if old != new)
    skipped = _CONTEXT_NAMES if was.max_model_len != wanted.max_model_len else frozenset[str]()
    old_settings = {item.name: item.value for item in was.settings}
    new_settings = {item.name: item.value for item in wanted.settings}
    for name in dict.fromkeys((*new_settings, *old_settings)):
        old_value, new_value = old_settings.get(name), new_settings.get(name)
        if old_value != new_value and name not in skipped:
            yield _change(name, old_value, new_value)
    old_env, new_env = dict(was.env), dict(wanted.env)
    for name in dict.fromkeys((*new_env, *old_env)):
        if old_env.get(name) != new_env.get(name):
            yield _change(name, old_env.get(name), new_env.get(name))


def _card_changes(was: ReplicaPlan, wanted: ReplicaPlan) -> Iterator[str]:
    if was.gpus != wanted.gpus:
        yield _change("cards", _cards(was), _cards(wanted))


def _cards(replica: ReplicaPlan) -> str:
    return ",".join(str(index) for index in replica.gpus) or "none"


def _change(name: str, old: object, new: object) -> str:
    return f"{name} {_show(old)} → {_show(new)}"


def _show(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[: _MAX_VALUE_CHARS - 1]}…"
