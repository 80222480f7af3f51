"""Pure. The usual request: nothing in it may need a change, and its bytes go to the engine as they are.

Looking for the few marks of everything else costs a tenth of preparing a request and finding that
nothing changed. What has none of them would come out of ``prepare_chat`` and ``make_task`` untouched.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, get_args

from trimtab.core.stack import GatewaySettings, ReasoningForm
from trimtab.core.state import ServedModel
from trimtab.gateway.assemble import ENGINES_TO_ASSEMBLE
from trimtab.gateway.endpoints import CHAT, GENERATING_PATHS
from trimtab.gateway.http_message import Request
from trimtab.gateway.reasoning_form import REASONING_HEADER, AnswerShape
from trimtab.gateway.repair import REPAIRS_HEADER
from trimtab.gateway.repair_background import TASK_HEADER, recognise_background
from trimtab.gateway.request import RequestFacts
from trimtab.gateway.thinking import SWITCH_FIELDS
from trimtab.gateway.thinking_families import PLAIN

__all__ = ["PassedTask", "find_pass_through"]

_HEADERS: Final = frozenset(name.encode() for name in (REASONING_HEADER, REPAIRS_HEADER, TASK_HEADER))
# A plain model's engine gets the switches of thinking as they are, but the client is told.
_FIELDS: Final = frozenset({"extra_body", "include_reasoning", "chat_template_kwargs", *SWITCH_FIELDS})
_SHAPES: Final[dict[ReasoningForm, AnswerShape]] = {
    form: AnswerShape(is_plain=True, form=form) for form in get_args(ReasoningForm)
}


class PassedTask(NamedTuple):
    """What is to be known of a request whose bytes pass: how its answer is read, and what was asked."""

    model: ServedModel
    document: dict[str, Any]
    shape: AnswerShape | None


def find_pass_through(
    request: Request, facts: RequestFacts, model: ServedModel, settings: GatewaySettings
) -> PassedTask | None:
    """The request as one that passes, None where it may need a change."""
    document, name = facts.document, facts.model
    is_named = name == (model.upstream_model or model.name) or (name is None and model.upstream_model is None)
    is_generated = request.path in GENERATING_PATHS
    must_assemble = model.engine in ENGINES_TO_ASSEMBLE and not facts.is_stream and is_generated
    if not is_named or must_assemble or model.family != PLAIN.name:
        return None
    if request.path != CHAT:
        return PassedTask(model, document, None)
    if not _FIELDS.isdisjoint(document) or not _HEADERS.isdisjoint(request.fields):
        return None
    if settings.reasoning_fields_by_key or _may_be_repaired(document, is_stream=facts.is_stream):
        return None
    if model.engine == "llama_cpp" and settings.reasoning_fields == "both":
        return PassedTask(model, document, None)
    return PassedTask(model, document, _SHAPES[settings.reasoning_fields])


def _may_be_repaired(document: dict[str, Any], *, is_stream: bool) -> bool:
    if isinstance(document.get("tool_choice"), dict):
        return True
    return not is_stream and recognise_background(document, header=None) is not None
