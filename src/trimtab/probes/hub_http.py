"""I/O. Single requests to a hub: whole small files, and spans of large ones.

huggingface_hub's session is used (proxies, certificates, redirects that drop the token on another
host); its own reader of safetensors headers (2.4) takes in a whole file of tens of GB from a server
that ignores Range. Here no more is taken in than was asked for.
"""

from __future__ import annotations

import os
from typing import Any, Final, Literal, TypeAlias

from trimtab.errors import EnvironmentMissingError
from trimtab.probes.hub_errors import ModelScopeStatusError

__all__ = [
    "HubHost",
    "SourceName",
    "check_response",
    "choose_host",
    "modelscope_endpoint",
    "read_span",
    "read_whole",
    "request_headers",
]

HubHost: TypeAlias = Literal["huggingface", "modelscope"]
SourceName: TypeAlias = Literal["auto", "huggingface", "modelscope"]

_MODELSCOPE: Final = "https://modelscope.cn"


def choose_host(source: SourceName) -> HubHost:
    """The hub that ``source`` means; "auto" is ModelScope where vLLM was told to use it."""
    if source != "auto":
        return source
    is_set = os.environ.get("VLLM_USE_MODELSCOPE", "").strip().lower() in {"1", "true"}
    return "modelscope" if is_set else "huggingface"


def modelscope_endpoint() -> str:
    """ModelScope's address: MODELSCOPE_ENDPOINT, or MODELSCOPE_DOMAIN as its own library reads it."""
    endpoint = os.environ.get("MODELSCOPE_ENDPOINT", "").rstrip("/")
    domain = os.environ.get("MODELSCOPE_DOMAIN", "").strip("/ ")
    return endpoint or (f"https://{domain}" if domain else _MODELSCOPE)


def request_headers(host: HubHost) -> dict[str, str]:
    """Headers with the token of ``host`` and of no other; the bytes come uncompressed."""
    if host == "modelscope":
        token = os.environ.get("MODELSCOPE_API_TOKEN", "").strip()
        # The library sends the token as this cookie (modelscope/hub/api.py, get_cookies).
        secret = {"Cookie": f"m_session_id={token}"} if token else {}
        return {"Accept-Encoding": "identity", "User-Agent": "trimtab", **secret}
    from huggingface_hub import utils  # noqa: PLC0415

    headers: dict[str, str] = utils.build_hf_headers()  # type: ignore[attr-defined]
    return headers | {"Accept-Encoding": "identity"}


def check_response(response: Any, host: HubHost) -> None:
    """Raises the library's error for Hugging Face, ModelScopeStatusError for ModelScope."""
    if host == "modelscope":
        if response.status_code >= 400:
            raise ModelScopeStatusError(response.status_code)
        return
    from huggingface_hub import utils  # noqa: PLC0415

    utils.hf_raise_for_status(response)  # type: ignore[attr-defined]


def read_span(url: str, host: HubHost, start: int, length: int, timeout_s: float) -> bytes:
    """At most ``length`` bytes from ``start`` on; less where the file or the connection ends.

    ``timeout_s`` is per read.
    """
    from huggingface_hub import get_session  # noqa: PLC0415

    headers = request_headers(host) | {"Range": f"bytes={start}-{start + length - 1}"}
    with get_session().stream("GET", url, headers=headers, timeout=timeout_s) as response:
        if response.status_code == 416:
            return b""
        check_response(response, host)
        skip = start if response.status_code == 200 else 0
        return _take(response, skip, length)


def read_whole(url: str, host: HubHost, limit: int, timeout_s: float) -> bytes:
    """The whole of a small file; EnvironmentMissingError when it is larger than ``limit``."""
    from huggingface_hub import get_session  # noqa: PLC0415

    with get_session().stream("GET", url, headers=request_headers(host), timeout=timeout_s) as response:
        check_response(response, host)
        data = _take(response, 0, limit + 1)
    if len(data) > limit:
        raise EnvironmentMissingError(
            f"{url.partition('?')[0]} has more than {limit:,} bytes", hint="it isn't the file it should be"
        )
    return data


def _take(response: Any, skip: int, length: int) -> bytes:
    """Bytes ``skip`` to ``skip + length`` of the body; the rest is never read."""
    taken = bytearray()
    for block in response.iter_bytes():
        taken += block
        if len(taken) >= skip + length:
            break
    return bytes(taken[skip : skip + length])
