"""Pure. What an external endpoint's model list says about one model that is to be served from there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from trimtab.core.stack import ModelRequest
from trimtab.errors import StackFileError

__all__ = [
    "EXTERNAL_ENGINE",
    "ListedModel",
    "Traffic",
    "explain_no_json",
    "explain_status",
    "external_base_url",
    "read_listing",
]

# What stands for the engine of a model that somebody else runs.
EXTERNAL_ENGINE: Final = "external"
_URL: Final = re.compile(r"https?://[^/?#\s]+(?:[/?#]\S*)?")
_VERSIONED: Final = re.compile(r"(https?://[^?#]+?)/v1/?")
_MAX_NAMED: Final = 5
_WANTS_KEY: Final = ": it wants a key, and api_key_env names none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """``upstream_model`` is the name to ask for; ``fault`` says in words why it cannot be served, if so.

    ``is_key_refused``: the endpoint wants another key than ours, or one at all.
    """

    upstream_model: str | None = None
    max_model_len: int | None = None
    fault: str = ""
    is_key_refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a gateway has seen of a model so far: broken answers, and bytes of answers."""

    num_errors: int = 0
    num_bytes: int = 0


def external_base_url(url: str) -> str:
    """The root below which /v1 lies. StackFileError for anything but an http(s) URL that ends in /v1."""
    if not _URL.fullmatch(url):
        raise StackFileError(f"url is {url!r}, not an http or https URL", hint="such as http://host:8000/v1")
    found = _VERSIONED.fullmatch(url)
    if found is None:
        raise StackFileError(
            f"url is {url!r}, which does not end in /v1", hint=f"such as {url.rstrip('/')}/v1"
        )
    return found[1]


def explain_status(status: int, *, location: str = "", variable: str | None = None) -> str:
    """The fault of an answer that is not 200.

    ``location`` is where a redirect leads; ``variable`` names the environment variable of the key sent.
    """
    if location and 300 <= status < 400:
        return f"GET /models answered {status}, a redirect to {location[:200]}: give that as url"
    key = _WANTS_KEY if variable is None else f": it refuses the key in {variable}"
    more = {401: key, 403: key, 404: ": no OpenAI-compatible server is at that url"}
    return f"GET /models answered {status}{more.get(status, '')}"


def explain_no_json(body: bytes, *, content_type: str) -> str:
    """The fault of an answer that is no JSON: a page says so itself."""
    if content_type == "text/html" or body.lstrip()[:1] == b"<":
        return "GET /models answered an HTML page, not a list of models: url is no OpenAI-compatible API"
    return "GET /models answered what is no JSON" if body.strip() else "GET /models answered nothing"


def read_listing(document: Any, *, request: ModelRequest) -> ListedModel:
    """The model of ``request`` in the body of GET /models.

    Its name there is ``upstream_model``, else the served name, else the only one listed. The context
    is the smaller of what the list says and what was wished.
    """
    data = document.get("data") if isinstance(document, dict) else None
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    by_name = {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}
    if not by_name:
        return ListedModel(fault="GET /models lists no model")
    wished = request.upstream_model or request.name
    if request.upstream_model is None and wished not in by_name and len(by_name) == 1:
        wished = next(iter(by_name))
    if wished not in by_name:
        names = [*by_name][:_MAX_NAMED]
        more = ", …" if len(by_name) > _MAX_NAMED else ""
        return ListedModel(fault=f"GET /models lists {', '.join(names)}{more}, not {wished}")
    limits = [_context_of(by_name[wished]), request.context]
    known = [limit for limit in limits if limit is not None]
    return ListedModel(upstream_model=wished, max_model_len=min(known, default=None))


def _context_of(entry: dict[str, Any]) -> int | None:
    """Tokens one request may use, as vLLM and trimtab say it (``max_model_len``), or llama.cpp.

    llama.cpp's ``meta.n_ctx`` is what one slot holds; its ``n_ctx_train`` is no promise.
    """
    meta = entry.get("meta")
    for value in (entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
