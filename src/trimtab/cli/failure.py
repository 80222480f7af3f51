"""I/O. Prints an expected failure: a line for people, one document for ``--json``."""

from __future__ import annotations

import json
import re
import sys
from typing import Final

from trimtab.errors import EngineStartError, TrimtabError
from trimtab.stackfile.foreign_secrets import mask_secrets

__all__ = ["failure_document", "report_failure"]


# Longer than any path or name that a file system takes.
_LONG_WORD: Final = re.compile(r"\S{600,}")
_MOST_CHARS: Final = 4000


def failure_document(error: TrimtabError) -> dict[str, object]:
    """The failure as plain JSON data: kind, message, hint, exit code and any engine log lines."""
    return {
        "kind": type(error).__name__,
        "message": _presentable(_told(error)),
        "hint": _presentable(error.hint),
        "exit_code": error.exit_code,
        "log_tail": list(error.log_tail) if isinstance(error, EngineStartError) else [],
    }


def _told(error: TrimtabError) -> str:
    return error.told if isinstance(error, EngineStartError) else error.message


def _presentable(text: str) -> str:
    """A sentence as it may be shown: without secrets, and without the rest of what somebody pasted."""
    masked = _LONG_WORD.sub(lambda found: f"{found[0][:57]}...", mask_secrets(text))
    return masked if len(masked) <= _MOST_CHARS else f"{masked[: _MOST_CHARS - 400]} ... {masked[-390:]}"


def report_failure(error: TrimtabError, *, wants_json: bool) -> int:
    """Print the failure (stderr; with ``--json`` also the document on stdout) and give its exit code."""
    if isinstance(error, EngineStartError) and error.log_tail:
        sys.stderr.write("last lines of the engine's log:\n")
        sys.stderr.writelines(f"  | {line}\n" for line in error.log_tail)
    sys.stderr.write(f"error: {_presentable(_told(error))}\n")
    if error.hint:
        sys.stderr.write(f"hint: {_presentable(error.hint)}\n")
    if wants_json:
        sys.stdout.write(json.dumps({"error": failure_document(error)}, indent=2) + "\n")
    return error.exit_code
