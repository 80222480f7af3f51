"""Pure. One tool that must be called, for engines that know "required" but no names.

llama.cpp reads the choice as one of three words and takes an object for "auto" (its
``common_chat_tool_choice_parse_oaicompat``); with no other tool to choose, "required" is the same demand.
"""

from __future__ import annotations

from typing import Any

__all__ = ["narrow_tools"]


def narrow_tools(chat: dict[str, Any], *, engine: str) -> dict[str, Any]:
    """The chat request with only the tool that its choice names; the same object where nothing changes."""
    choice, tools = chat.get("tool_choice"), chat.get("tools")
    if engine != "llama_cpp" or not isinstance(choice, dict) or not isinstance(tools, list):
        return chat
    named = (choice.get("function") or {}).get("name")
    chosen = [tool for tool in tools if tool["function"]["name"] == named]
    return chat | {"tools": chosen, "tool_choice": "required"} if chosen else chat
