"""Pure. One tool that must be called: whether it is there, and for engines that know "required" but no names.

llama.cpp reads the choice as one of three words and takes an object for "auto" (its
``common_chat_tool_choice_parse_oaicompat``); with no other tool to choose, "required" is the same demand.
"""

from __future__ import annotations

from typing import Any

from trimtab.errors import GatewayError
from trimtab.gateway.request import find_tools_fault

__all__ = ["check_chat_choice", "check_choice", "narrow_tools"]


def narrow_tools(document: dict[str, Any], *, engine: str) -> dict[str, Any]:
    """The chat request with only the tools that its choice names; the same object where nothing changes."""
    choice, tools = document.get("tool_choice"), document.get("tools")
    if engine != "llama_cpp" or not isinstance(choice, dict) or not isinstance(tools, list):
        return document
    names, mode = _read_choice(choice)
    chosen = [tool for tool in tools if _name_in(tool) in names]
    return document | {"tools": chosen, "tool_choice": mode} if chosen else document


def _read_choice(choice: dict[str, Any]) -> tuple[set[str], str]:
    """The tools that may be called, and whether one must: of one name, or of OpenAI's ``allowed_tools``."""
    allowed = choice.get("allowed_tools") if choice.get("type") == "allowed_tools" else None
    if isinstance(allowed, dict) and isinstance(allowed.get("tools"), list):
        names = {name for tool in allowed["tools"] if (name := _name_in(tool)) is not None}
        return names, "required" if allowed.get("mode") == "required" else "auto"
    named = _name_in(choice)
    return set() if named is None else {named}, "required"


def check_choice(choice: Any, tools: list[dict[str, Any]]) -> None:
    """GatewayError (400) where a chat's choice demands a tool that is not among ``tools``."""
    if choice in ("auto", "none"):
        return
    named = _name_in(choice)
    if named is None and tools:
        return
    names = [name for tool in tools if (name := _name_in(tool)) is not None]
    if named in names:
        return
    demand = "a tool" if named is None else f"the tool {named[:60]!r}"
    raise GatewayError(
        f"tool_choice demands {demand}, and " + ("it is none of tools" if tools else "there are no tools"),
        status=400,
        code="invalid_value",
        param="tool_choice",
        hint=f"tools has {', '.join(names)[:200]}" if names else "send tools",
    )


def check_chat_choice(document: dict[str, Any]) -> None:
    """The same for a chat as a client wrote it: one engine would ignore the choice, another fail.

    Choices and tools of another shape than functions are the engine's business.
    """
    choice, tools = document.get("tool_choice"), document.get("tools")
    names, mode = _read_choice(choice) if isinstance(choice, dict) else (set(), choice)
    if mode != "required" or (choice != mode and not names):
        return
    if find_tools_fault(document) is None and not any(_name_in(tool) in names for tool in tools or ()):
        # Of several that may be called, one stands for all.
        check_choice({"function": {"name": min(names)}} if names else choice, tools or [])


def _name_in(holder: Any) -> str | None:
    """``function.name`` of a tool or a choice."""
    function = holder.get("function") if isinstance(holder, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
