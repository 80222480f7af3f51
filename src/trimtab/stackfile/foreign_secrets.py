"""Pure. What must not be repeated on a screen or in a log, and how anything else is shown."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_secret_name", "is_secret_value", "mask_secrets", "shown"]

_MAX_SHOWN_CHARS: Final = 60
# Names of variables and flags whose values open doors.
_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:token|api_?keys?|secret|secret_key|password|passwd|credentials?|secret_access_key)$",
    re.IGNORECASE,
)
# Beginnings that issuers of keys use, so that a key is known by its look.
_SECRET_VALUE: Final = re.compile(
    r"\b(?:hf_(?!overrides\b)[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_\-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}"
    r"|glpat-[\w\-]{8,}|AKIA[A-Z0-9]{12,}|nvapi-[\w\-]{8,}|xox[abprs]-[\w\-]{8,}"
    r"|[Bb]earer\s+[\w.~+/=\-]{8,}|\beyJ[\w\-]{10,}\.[\w\-]{10,}\.[\w\-]*"
    r"|(?:api_?key|password|passwd|secret|(?:auth|access|hf)_token)(?:[\"']\s*:\s*[\"']|=[\"']?)[^\s\"',}$]{4,})"
    # A user's name and password in an address, up to the @.
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
    r"|(?<=://)[^\s/@:]{16,}(?=@)"
    # The same without a scheme; a digest (name:tag@sha256:…) is none.
    r"|(?<![\w.\-/])[\w.\-]+:[^\s/@:]{4,}(?=@(?!sha\d+:)[\w\-]+\.[\w\-.]+)"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or flag of this name holds a secret (HF_TOKEN, api_key …)."""
    return bool(_SECRET_NAME.search(name.replace("-", "_")))


def is_secret_value(text: str) -> bool:
    """Whether the text has the look of a secret anywhere."""
    return bool(_SECRET_VALUE.search(text))


def mask_secrets(text: str) -> str:
    """The text with everything that has the look of a secret blotted out."""
    return _SECRET_VALUE.sub("…", text)


def shown(text: str) -> str:
    """A text of the file for a message: short, on one line, printable, secrets blotted out."""
    masked = mask_secrets(text)
    masked = "".join(char if char.isprintable() else " " for char in masked)
    return masked if len(masked) <= _MAX_SHOWN_CHARS else masked[: _MAX_SHOWN_CHARS - 1] + "…"
