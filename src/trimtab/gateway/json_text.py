"""Pure. JSON with a bound on its depth, so that whatever was read can be written again.

The library reads some 980 levels and writes a few less, each depending on how deep the caller is; what
lies between is read by one part of the gateway and fails in another.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from trimtab.errors import GatewayError

__all__ = ["MAX_DEPTH", "decode_object", "load_json", "load_request_json"]

# Objects and lists inside each other. Our own choice: real tool schemas have some 20 levels, and a
# number this small leaves every reader and writer, here and in the engines, room for its own frames.
MAX_DEPTH: Final = 200
_MAX_DIGITS: Final = 4300  # Python's own bound on a whole number in text


class _UnfitError(ValueError):
    """JSON text that holds what cannot be passed on; the message says what."""


def load_json(data: bytes | str) -> Any:
    """What an engine sent; ValueError where it is no JSON, or is nested deeper than ``MAX_DEPTH``."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise _UnfitError(_TOO_DEEP) from None
    _check_depth(data, found)
    return found


def load_request_json(text: str) -> Any:
    """What a client sent; ValueError besides for NaN and for numbers beyond every range."""
    try:
        found = _DECODER.decode(text)
    except RecursionError:
        raise _UnfitError(_TOO_DEEP) from None
    _check_depth(text, found)
    return found


def decode_object(body: bytes) -> dict[str, Any]:
    """The object that a request's body is; GatewayError (400) says what is wrong with it and where."""
    try:
        document = load_request_json(body.removeprefix(_UTF8_MARK).decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError as error:
        wide = body.startswith((b"\xff\xfe", b"\xfe\xff"))
        what = "it begins as UTF-16" if wide else f"byte {error.start} is {error.object[error.start]:#04x}"
        raise GatewayError(f"the body is not UTF-8: {what}", status=400, code="invalid_utf8") from None
    except json.JSONDecodeError as error:
        raise GatewayError(
            f"the body is not JSON: {error.msg.lower()} at line {error.lineno}, column {error.colno}",
            status=400,
            code="invalid_json",
        ) from None
    except ValueError as error:
        why = str(error) if isinstance(error, _UnfitError) else _TOO_LONG
        raise GatewayError(f"the body {why}", status=400, code="invalid_json") from None
    if not isinstance(document, dict):
        raise GatewayError(
            f"the body is {_kind(document)}, not a JSON object", status=400, code="invalid_json"
        )
    return document


_TOO_DEEP: Final = f"is nested deeper than {MAX_DEPTH} levels"
_TOO_LONG: Final = f"holds a whole number of more than {_MAX_DIGITS:,} digits"
_UTF8_MARK: Final = b"\xef\xbb\xbf"


def _refuse_constant(name: str) -> None:
    raise _UnfitError(f"is not JSON: it holds {name}, which is no number there")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _UnfitError(f"holds the number {text[:40]}, which is beyond the range of numbers")
    return number


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _check_depth(text: bytes | str, found: Any) -> None:
    brackets: tuple[Any, Any] = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    # Most texts have fewer than that many brackets in all, which costs next to nothing to see.
    if sum(text.count(bracket) for bracket in brackets) <= MAX_DEPTH:
        return
    level = [found] if isinstance(found, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for holder in level
            for inner in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _UnfitError(_TOO_DEEP)


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", type(None): "null", dict: "an object"}
    return kinds.get(type(value), "a number")
