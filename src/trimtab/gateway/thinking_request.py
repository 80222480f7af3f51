"""Pure. A chat request as its model's engine must get it: repaired, with the thinking it asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from trimtab.core.stack import ReasoningForm, RepairName
from trimtab.gateway.message_history import normalise_history
from trimtab.gateway.reasoning_form import AnswerShape
from trimtab.gateway.repair import REPAIRS_HEADER, merge_system_messages, unwrap_extra_body
from trimtab.gateway.repair_background import cap_background, recognise_background
from trimtab.gateway.request import read_facts
from trimtab.gateway.thinking import (
    SWITCH_FIELDS,
    ThinkingDecision,
    VirtualMode,
    decide_thinking,
    find_switches,
    reserve_answer_tokens,
)
from trimtab.gateway.thinking_families import ThinkingFamily
from trimtab.gateway.thinking_words import strip_soft_switches
from trimtab.gateway.tool_choice import narrow_tools

__all__ = ["BUDGET_FIELDS", "THINKING_HEADER", "ChatSettings", "PreparedChat", "prepare_chat"]

# In an answer: whether it thinks, what decided, and the bound on the thought.
THINKING_HEADER: Final = "x-trimtab-thinking"

# Engine → the request field by which it ends a thought itself; others have none that is known.
BUDGET_FIELDS: Final[dict[str, str]] = {
    # Needs a reasoning parser at start; the request is refused otherwise. llama.cpp's field
    # (reasoning_budget_tokens) holds only where it finds the tags in the template, and is ignored
    # without a word elsewhere: there the gateway's own bound is the certain one.
    "vllm": "thinking_token_budget",
}
# If the client sets one of these it samples its own way: half of its set and half of a model card's
# would be a set that nobody recommends.
_SAMPLING_FIELDS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "repeat_penalty",
)
_KWARGS: Final = "chat_template_kwargs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """What is known before the body is read: the model's side and the request's headers.

    ``default_is_on`` is the model's default, None the family's own; ``mode`` what a virtual name said.
    ``task_header`` is the value of Open WebUI's header, None where it was not sent.
    """

    family: ThinkingFamily
    engine: str
    default_is_on: bool | None = None
    mode: VirtualMode | None = None
    form: ReasoningForm = "both"
    is_form_wished: bool = False
    repairs: frozenset[RepairName] = frozenset()
    task_header: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChat:
    """The document for the engine, the same object where nothing must change.

    ``shape`` tells how its answer is read, None where the answer's bytes pass as they are. ``repairs``
    are the words for the response header. ``budget_tokens`` bounds the thought. ``unheard`` are fields that
    would switch the thinking of another family, and go to the engine as they are.
    """

    document: dict[str, Any]
    shape: AnswerShape | None
    decision: ThinkingDecision | None = None
    repairs: tuple[str, ...] = ()
    budget_tokens: int | None = None
    unheard: tuple[str, ...] = ()

    def headers(self) -> dict[str, str]:
        """What the client is told of it: how the request was understood, and what was repaired."""
        told = {}
        if self.decision is not None:
            words = ["on" if self.decision.is_on else "off", f"by={self.decision.source}"]
            if self.budget_tokens is not None:
                words.append(f"budget={self.budget_tokens}")
            told[THINKING_HEADER] = "; ".join(words)
        elif self.unheard:
            told[THINKING_HEADER] = f"not switched; family=plain; passed on={','.join(self.unheard)}"
        if self.repairs:
            told[REPAIRS_HEADER] = ", ".join(self.repairs)
        return told


def prepare_chat(document: dict[str, Any], settings: ChatSettings) -> PreparedChat:
    """The request as the engine must get it. GatewayError (400) for contradictions, by name."""
    family = settings.family
    repaired, repairs, is_background = _repair(document, settings)
    decision = decide_thinking(
        repaired,
        family=family,
        default=settings.default_is_on,
        mode=settings.mode,
        is_background=is_background,
    )
    is_hidden = document.get("include_reasoning") is False
    form: ReasoningForm = "none" if is_hidden else settings.form
    if decision is None:
        return PreparedChat(
            document=repaired,
            shape=_plain_shape(settings, form),
            repairs=repairs,
            unheard=find_switches(repaired),
        )
    budget = None
    if decision.is_on:
        budget = reserve_answer_tokens(decision.budget_tokens, max_tokens=read_facts(repaired).max_tokens)
    return PreparedChat(
        document=_set_budget(_apply(repaired, decision, family), settings.engine, budget),
        shape=AnswerShape(
            is_thinking=decision.is_on,
            starts_inside=decision.is_on and family.has_static_opener,
            has_stop_words=bool(repaired.get("stop")),
            form=form,
        ),
        decision=decision,
        repairs=repairs,
        budget_tokens=budget,
    )


def _repair(document: dict[str, Any], settings: ChatSettings) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    """(the request put right, the words for what was done, whether it is a background call)."""
    wanted, family = settings.repairs, settings.family
    done: list[str] = []
    repaired = unwrap_extra_body(document) if "extra-body" in wanted else document
    if repaired is not document:
        done.append("extra-body")
    before = repaired
    if "tool-choice" in wanted:
        repaired = narrow_tools(before, engine=settings.engine)
    if repaired is not before:
        done.append("tool-choice")
    kind = (
        recognise_background(repaired, header=settings.task_header) if "background-call" in wanted else None
    )
    if kind is not None:
        repaired = cap_background(repaired, kind)
        done.append(f"background-call={kind}")
    before = repaired
    if family.needs_one_system and "system-messages" in wanted:
        repaired = merge_system_messages(before, needs_user=family.needs_user)
    if repaired is not before:
        done.append("system-messages")
    return repaired, tuple(done), kind is not None


def _set_budget(document: dict[str, Any], engine: str, budget_tokens: int | None) -> dict[str, Any]:
    """The request with the engine's own bound on the thought, where it has one."""
    field = BUDGET_FIELDS.get(engine)
    return document if field is None or budget_tokens is None else document | {field: budget_tokens}


def _plain_shape(settings: ChatSettings, form: ReasoningForm) -> AnswerShape | None:
    """llama.cpp's field is the one that clients know best: its answers pass as they are."""
    if settings.engine == "llama_cpp" and not settings.is_form_wished and form == "both":
        return None
    return AnswerShape(is_plain=True, form=form)


def _apply(document: dict[str, Any], decision: ThinkingDecision, family: ThinkingFamily) -> dict[str, Any]:
    """The request with the flag in the place where the template looks, and none anywhere else."""
    changed = {name: value for name, value in document.items() if name not in SWITCH_FIELDS}
    kwargs = dict(document.get(_KWARGS) or {})
    kwargs.pop("thinking_budget", None)
    changed[_KWARGS] = kwargs | dict.fromkeys(family.switch_kwargs, decision.is_on)
    messages = document.get("messages")
    if isinstance(messages, list):
        kept = messages if family.knows_soft_switch else strip_soft_switches(messages)
        changed["messages"] = normalise_history(kept)
    if all(document.get(name) is None for name in _SAMPLING_FIELDS):
        changed |= family.sampling_on if decision.is_on else family.sampling_off
    return changed
