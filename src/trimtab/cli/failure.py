"""I/O. Prints an expected failure: a line for people, one document for ``--json``."""

from __future__ import annotations

import json
import sys

from trimtab.errors import EngineStartError, TrimtabError

__all__ = ["failure_document", "report_failure"]


def failure_document(error: TrimtabError) -> dict[str, object]:
    """The failure as plain JSON data: kind, message, hint, exit code and any engine log lines."""
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
        "log_tail": list(error.log_tail) if isinstance(error, EngineStartError) else [],
    }


def report_failure(error: TrimtabError, *, wants_json: bool) -> int:
    """Print the failure (stderr; with ``--json`` also the document on stdout) and give its exit code."""
    if isinstance(error, EngineStartError) and error.log_tail:
        sys.stderr.write("last lines of the engine's log:\n")
        sys.stderr.writelines(f"  | {line}\n" for line in error.log_tail)
    sys.stderr.write(f"error: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")
    if wants_json:
        sys.stdout.write(json.dumps({"error": failure_document(error)}, indent=2) + "\n")
    return error.exit_code
