"""Pure. One tool that must be called, for engines that know "required" but no names.

llama.cpp reads the choice as one of three words and takes an object for "auto" (its
``common_chat_tool_choice_parse_oaicompat``); with no other tool to choose, "required" is the same demand.
"""

from __future__ import annotations

from typing import Any

__all__ = ["narrow_tools"]


def narrow_tools(document: dict[str, Any], *, engine: str) -> dict[str, Any]:
    """The chat request with only the tool that its choice names; the same object where nothing changes."""
    choice, tools = document.get("tool_choice"), document.get("tools")
    if engine != "llama_cpp" or not isinstance(choice, dict) or not isinstance(tools, list):
        return document
    named = _name_in(choice)
    chosen = [tool for tool in tools if _name_in(tool) == named] if named is not None else []
    return document | {"tools": chosen, "tool_choice": "required"} if chosen else document


def _name_in(holder: Any) -> str | None:
    """``function.name`` of a tool or a choice."""
    function = holder.get("function") if isinstance(holder, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
