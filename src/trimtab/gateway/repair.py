"""Pure. Requests that a template or an engine would refuse or misread, put right where the wish is clear.

Every repair has a name, is told in a response header and can be switched off, for a gateway in the
stack file or for one request in a header of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, get_args

from trimtab.core.stack import RepairName
from trimtab.errors import GatewayError
from trimtab.gateway.json_text import load_request_json

__all__ = [
    "ALL_REPAIRS",
    "EXTRA_BODY",
    "REPAIRS_HEADER",
    "choose_repairs",
    "merge_system_messages",
    "unwrap_extra_body",
]

ALL_REPAIRS: Final[tuple[RepairName, ...]] = get_args(RepairName)
# In an answer: what was repaired. In a request: which repairs are wanted, "all" or "none".
REPAIRS_HEADER: Final = "x-trimtab-repairs"
_SYSTEM_ROLES: Final = ("system", "developer")
EXTRA_BODY: Final = "extra_body"


def choose_repairs(
    header: str | None, *, default: Iterable[RepairName] = ALL_REPAIRS
) -> frozenset[RepairName]:
    """The repairs of one request; GatewayError (400) names the legal words."""
    wish = (header or "").strip().lower()
    if not wish or wish == "all":
        return frozenset(ALL_REPAIRS if wish else default)
    chosen: set[RepairName] = set()
    for word in (part.strip() for part in wish.split(",")):
        known = [repair for repair in ALL_REPAIRS if repair == word]
        if not known and word != "none":
            raise GatewayError(
                f"the header {REPAIRS_HEADER} holds {word[:40]!r}",
                status=400,
                code="invalid_value",
                param=REPAIRS_HEADER,
                hint=f"legal are all, none, {', '.join(ALL_REPAIRS)}",
            )
        chosen.update(known)
    return frozenset(chosen)


def unwrap_extra_body(document: dict[str, Any]) -> dict[str, Any]:
    """The fields of a literal ``extra_body`` where they belong; the same object where there is none.

    ``extra_body`` is a parameter of OpenAI's Python client, not of the protocol; programs that post
    it as a field, or as JSON text, lose what is inside. GatewayError (400) when a field inside differs
    from the same field outside. What is no object is left alone.
    """
    extra = document.get(EXTRA_BODY)
    if isinstance(extra, str):
        try:
            extra = load_request_json(extra)
        except ValueError:
            return document
    if not isinstance(extra, dict):
        return document
    rest = {name: value for name, value in document.items() if name != EXTRA_BODY}
    for name, value in extra.items():
        if name in rest and rest[name] != value:
            raise GatewayError(
                f"{name} and {EXTRA_BODY}.{name} differ",
                status=400,
                code="extra_body_contradiction",
                param=name,
                hint="send it once, at the top level",
            )
    return rest | extra


def merge_system_messages(document: dict[str, Any], *, needs_user: bool = False) -> dict[str, Any]:
    """One system message at the beginning, all system and developer texts in it, in their order.

    The same object where that is so already, or where a text cannot be told (an image inside).
    With ``needs_user`` a GatewayError (400) when no message of a user is left, which the template refuses.
    """
    messages = document.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return document
    system = [message for message in messages if message.get("role") in _SYSTEM_ROLES]
    if not system:
        return document
    rest = [message for message in messages if message.get("role") not in _SYSTEM_ROLES]
    if needs_user and not any(message.get("role") == "user" for message in rest):
        raise GatewayError(
            "messages hold no message of role user, which the model's template needs",
            status=400,
            code="no_user_message",
            param="messages",
            hint="send what the model shall answer as a message of role user",
        )
    if len(system) == 1 and messages[0].get("role") == "system":
        return document
    texts: list[str] = []
    for message in system:
        text = _text_of(message.get("content"))
        if text is None:
            return document
        texts.append(text)
    joined = "\n\n".join(text for text in texts if text)
    return document | {"messages": [{"role": "system", "content": joined}, *rest]}


def _text_of(content: Any) -> str | None:
    """The text of a message's content, None where it holds something else."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return None
    texts = []
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            return None
        texts.append(part["text"])
    return "\n".join(texts)
