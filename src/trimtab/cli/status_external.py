"""I/O. The part of ``trimtab status`` about models that somebody else runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from trimtab.cli.render import render_table
from trimtab.errors import TrimtabError
from trimtab.gateway.external_listing import EXTERNAL_ENGINE
from trimtab.launcher.control import send_request

__all__ = ["read_external", "render_external"]

# A trimtab that is busy with a change answers late; the rest of the status does not wait for it.
_ASK_TIMEOUT_S: Final = 2.0
# Words for somebody else's server, which trimtab neither starts nor restarts.
_STATES: Final = {"starting": "not seen yet", "backing_off": "away"}


async def read_external(state_dir: Path, models: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per external model of a /health document; the url is None where it was not told."""
    found = {name: model for name, model in models.items() if model["engine"] == EXTERNAL_ENGINE}
    urls = await _read_urls(state_dir) if found else {}
    return [
        {
            "model": name,
            "url": urls.get(name),
            "state": _STATES.get(model["state"], model["state"]),
            "max_model_len": model["max_model_len"],
            "error": model["detail"] or None,
        }
        for name, model in found.items()
    ]


async def _read_urls(state_dir: Path) -> dict[str, str]:
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            result = await send_request(state_dir, {"command": "endpoints"}, lambda _: None)
    except (TimeoutError, TrimtabError):
        return {}
    urls: dict[str, str] = result["endpoints"]
    return urls


def render_external(entries: list[dict[str, Any]]) -> list[str]:
    """A table of them, nothing where there are none."""
    rows = [
        (
            entry["model"],
            entry["state"],
            entry["url"] or "-",
            f"{entry['max_model_len']:,}" if entry["max_model_len"] else "-",
            entry["error"] or "-",
        )
        for entry in entries
    ]
    return [render_table(("external model", "state", "url", "context", "last error"), rows)] if rows else []
