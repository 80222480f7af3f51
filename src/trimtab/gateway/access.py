"""Pure. Whether a request may come in."""

from __future__ import annotations

import hmac

from trimtab.errors import GatewayError

__all__ = ["NO_KEY", "check_key"]

# Equal to no key that can be sent, as none holds a line end: stands for "keys are on, and this is none".
NO_KEY = "\n"


def check_key(authorization: str | None, keys: tuple[str, ...]) -> None:
    """GatewayError (401) unless no keys are set or the header carries one of them.

    Every key is compared, each in constant time, so that timing tells nothing about them.
    """
    if not keys:
        return
    scheme, _, given = (authorization or "").partition(" ")
    matches = [
        hmac.compare_digest(given.strip().encode(errors="surrogateescape"), key.encode()) for key in keys
    ]
    if scheme.lower() != "bearer" or not any(matches):
        what = "no key was sent" if not given else "the key is not known"
        raise GatewayError(
            what, status=401, code="invalid_api_key", hint="send one as Authorization: Bearer KEY"
        )
