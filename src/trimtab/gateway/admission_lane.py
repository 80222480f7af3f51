"""Pure. Whose request it is, and whether somebody waits for its answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from trimtab.errors import GatewayError
from trimtab.gateway.http_message import Request
from trimtab.gateway.repair_background import TASK_HEADER, recognise_background

if TYPE_CHECKING:
    from trimtab.gateway.http_service import AnswerTo

__all__ = ["MAX_WAIT_HEADER", "PRIORITY_HEADER", "find_lane", "find_max_wait_s", "is_background"]

# "background" on a request whose answer can wait, from programs that are not Open WebUI.
PRIORITY_HEADER: Final = "x-trimtab-priority"
_BACKGROUND: Final = "background"
# The longest that a request may wait before an engine has it, in seconds.
MAX_WAIT_HEADER: Final = "x-trimtab-max-wait"
_USER_HEADER: Final = b"x-openwebui-user-id"


def find_lane(request: Request, client: AnswerTo, *, has_keys: bool) -> object:
    """What requests that share one turn have in common: the key, else the user, else the client's address.

    With keys only the key counts, however its header is spelled: what else a client says about itself
    costs it nothing.
    """
    if request.key is not None:
        return request.key.name
    key = _read_key(request)
    if has_keys:
        return key
    return request.fields.get(_USER_HEADER) or key or client.peer


def _read_key(request: Request) -> bytes | None:
    """The key alone, as those who check it read it, in bytes: no name of a key is equal to one."""
    given = request.header("authorization")
    if given is None:
        given = request.header("x-api-key")
    if given is None:
        return None
    scheme, _, rest = given.partition(" ")
    key = rest if scheme.lower() == "bearer" else given
    return key.strip().encode("utf-8", "surrogateescape")


def is_background(request: Request, document: dict[str, Any]) -> bool:
    """Whether nobody waits for the answer: said by a header, or recognised as a call of Open WebUI."""
    wish = request.header(PRIORITY_HEADER)
    if wish is not None:
        return wish.strip().lower() == _BACKGROUND
    return recognise_background(document, header=request.header(TASK_HEADER)) is not None


def find_max_wait_s(request: Request) -> float | None:
    """The longest wait that the request allows, None where it does not say; GatewayError (400) else."""
    given = request.header(MAX_WAIT_HEADER)
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise GatewayError(
            f"the header {MAX_WAIT_HEADER} is {given[:60]!r}, not a number of seconds above 0",
            status=400,
            code="invalid_value",
            param=MAX_WAIT_HEADER,
        )
    return seconds
