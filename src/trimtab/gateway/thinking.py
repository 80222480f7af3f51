"""Pure. Whether a request thinks and for how long: one meaning for every way that clients say it.

Strongest first: the soft switch in the text, the request's fields and virtual name (which must not
contradict each other), a recognised background call, the model's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from trimtab.errors import GatewayError
from trimtab.gateway.thinking_families import ThinkingFamily
from trimtab.gateway.thinking_words import find_soft_switch

__all__ = [
    "EFFORT_TOKENS",
    "SWITCH_FIELDS",
    "THINKING_SUFFIXES",
    "ThinkingDecision",
    "VirtualMode",
    "decide_thinking",
    "find_switches",
    "reserve_answer_tokens",
]

VirtualMode: TypeAlias = Literal["thinking", "instant"]

# ``model:thinking`` and ``model:instant``.
THINKING_SUFFIXES: Final[dict[str, VirtualMode]] = {":thinking": "thinking", ":instant": "instant"}

# Effort → tokens of thought. Our own choice, each four times the one before; the ceiling is the 32,768
# tokens of output that the Qwen3.5 model card recommends for most queries.
EFFORT_TOKENS: Final[dict[str, int]] = {
    "none": 0,
    "minimal": 256,
    "low": 1024,
    "medium": 4096,
    "high": 16384,
    "xhigh": 32768,
}
# Fields of a body that this module understands; a switchable family's engine never sees them as sent.
SWITCH_FIELDS: Final = (
    "enable_thinking",
    "think",
    "thinking",
    "reasoning_effort",
    "thinking_budget",
    "thinking_token_budget",
)
# ``type`` of Anthropic's field; a model that may choose for itself thinks.
_THINKING_TYPES: Final = {"enabled": True, "adaptive": True, "disabled": False}
_KWARGS: Final = "chat_template_kwargs"
# A quarter of the limit, at most this much, is kept for the answer. Our own choice: a thought is as a
# rule several times as long as its answer, and 1,024 tokens hold a page of text.
_MAX_RESERVED_TOKENS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingDecision:
    """``source`` names what decided; ``budget_tokens`` bounds the thought, None leaves it unbounded."""

    is_on: bool
    source: str
    budget_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """One field that says whether to think."""

    field: str
    is_on: bool


def decide_thinking(
    document: Mapping[str, Any],
    *,
    family: ThinkingFamily,
    default: bool | None = None,
    mode: VirtualMode | None = None,
    is_background: bool = False,
) -> ThinkingDecision | None:
    """What the request wants, None for a family without a switch.

    ``mode`` is what a virtual model name said. GatewayError (400): two fields contradict, both named,
    or a field holds no legal value.
    """
    if not family.is_switchable:
        return None
    said = _read_fields(document, family)
    budget = _read_budget(document)
    if mode is not None and not is_background:
        said.append(_Said(field=f"model (:{mode})", is_on=mode == "thinking"))
    _check_agreement(said)
    soft = None if is_background else find_soft_switch(document.get("messages"))
    if soft is not None:
        chosen = _Said(field=soft, is_on=soft == "/think")
    elif said:
        chosen = said[0]
    elif is_background:
        chosen = _Said(field="background call", is_on=False)
    else:
        chosen = _Said(field="default", is_on=family.thinks_by_default if default is None else default)
    return ThinkingDecision(
        is_on=chosen.is_on, source=chosen.field, budget_tokens=(budget or None) if chosen.is_on else None
    )


def find_switches(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields by which a request speaks of thinking, whatever they say."""
    kwargs = document.get(_KWARGS)
    inside = (
        [name for name in ("enable_thinking", "thinking", "thinking_budget") if name in kwargs]
        if isinstance(kwargs, dict)
        else []
    )
    named = (name for name in SWITCH_FIELDS if document.get(name) is not None)
    return (*(f"{_KWARGS}.{name}" for name in inside), *named)


def reserve_answer_tokens(budget_tokens: int | None, *, max_tokens: int | None) -> int | None:
    """The budget lowered so that ``max_tokens`` leaves room for an answer; never below one token."""
    if max_tokens is None or max_tokens < 2:
        return budget_tokens
    room = max_tokens - min(_MAX_RESERVED_TOKENS, -(-max_tokens // 4))
    return room if budget_tokens is None else min(budget_tokens, room)


def _read_fields(document: Mapping[str, Any], family: ThinkingFamily) -> list[_Said]:
    kwargs = document.get(_KWARGS)
    if kwargs is not None and not isinstance(kwargs, dict):
        raise _illegal(_KWARGS, kwargs, "an object")
    said = []
    for field, value in (
        *((f"{_KWARGS}.{name}", (kwargs or {}).get(name)) for name in family.switch_kwargs),
        ("enable_thinking", document.get("enable_thinking")),
        ("think", document.get("think")),
    ):
        if value is not None:
            said.append(_Said(field=field, is_on=_flag(field, value)))
    effort = document.get("reasoning_effort")
    if effort is not None:
        said.append(_Said(field="reasoning_effort", is_on=_effort_tokens(effort) > 0))
    thinking = document.get("thinking")
    if thinking is not None:
        said.append(_Said(field="thinking", is_on=_thinking_type(thinking)))
    said += [
        _Said(field=field, is_on=False) for field, tokens in _budgets(document) if tokens == 0
    ]  # A positive budget bounds a thought; it does not ask for one.
    return said


def _check_agreement(said: list[_Said]) -> None:
    for other in said[1:]:
        if other.is_on != said[0].is_on:
            on, off = (said[0], other) if said[0].is_on else (other, said[0])
            raise GatewayError(
                f"{on.field} switches thinking on and {off.field} switches it off",
                status=400,
                code="thinking_contradiction",
                param=said[0].field,
                hint="send one of them",
            )


def _read_budget(document: Mapping[str, Any]) -> int | None:
    """The tokens of thought that the request allows; an explicit number counts before an effort."""
    budgets = _budgets(document)
    for field, tokens in budgets[1:]:
        if tokens != budgets[0][1]:
            raise GatewayError(
                f"{budgets[0][0]} allows {budgets[0][1]:,} tokens of thought and {field} {tokens:,}",
                status=400,
                code="thinking_contradiction",
                param=budgets[0][0],
                hint="send one of them",
            )
    if budgets:
        return budgets[0][1]
    effort = document.get("reasoning_effort")
    return None if effort is None else _effort_tokens(effort)


def _budgets(document: Mapping[str, Any]) -> list[tuple[str, int]]:
    thinking = document.get("thinking")
    kwargs = document.get(_KWARGS)
    named = [
        ("thinking_budget", document.get("thinking_budget")),
        ("thinking_token_budget", document.get("thinking_token_budget")),
        ("thinking.budget_tokens", thinking.get("budget_tokens") if isinstance(thinking, dict) else None),
        (f"{_KWARGS}.thinking_budget", kwargs.get("thinking_budget") if isinstance(kwargs, dict) else None),
    ]
    return [(field, _tokens(field, value)) for field, value in named if not _is_no_bound(field, value)]


def _is_no_bound(field: str, value: Any) -> bool:
    """-1 is llama.cpp's word for no bound; Anthropic's field has none."""
    return value is None or (type(value) is int and value == -1 and not field.startswith("thinking."))


def _flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _illegal(field, value, "true or false")
    return value


def _tokens(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _illegal(field, value, "a whole number of tokens from 0")
    return value


def _effort_tokens(value: Any) -> int:
    tokens = EFFORT_TOKENS.get(value) if isinstance(value, str) else None
    if tokens is None:
        raise _illegal("reasoning_effort", value, ", ".join(EFFORT_TOKENS))
    return tokens


def _thinking_type(value: Any) -> bool:
    """Anthropic's field: {"type": "enabled", "budget_tokens": N} or {"type": "disabled"}."""
    if isinstance(value, bool):
        return value
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _THINKING_TYPES:
        legal = ", ".join(_THINKING_TYPES)
        raise _illegal("thinking", value if kind is None else kind, f"an object whose type is {legal}")
    return _THINKING_TYPES[kind]


def _illegal(field: str, value: Any, legal: str) -> GatewayError:
    shown = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return GatewayError(
        f"{field} is {shown[:60]}; legal is {legal}", status=400, code="invalid_value", param=field
    )
