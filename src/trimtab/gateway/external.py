"""I/O. Models that somebody else runs: whether they are there, from GET /models and from live traffic.

Never from a generation: somebody else's tokens may cost money, and a busy engine is not a dead one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import aiohttp

from trimtab.core.stack import ModelRequest
from trimtab.core.state import ReplicaState, ServedModel
from trimtab.gateway.connect_fault import explain_connect_fault
from trimtab.gateway.external_listing import (
    EXTERNAL_ENGINE,
    ListedModel,
    Traffic,
    explain_no_json,
    explain_status,
    external_base_url,
    read_listing,
)
from trimtab.gateway.json_text import load_json
from trimtab.gateway.thinking_families import family_of_checkpoint
from trimtab.gateway.upstream_key import is_key_refusal, upstream_headers

__all__ = ["ExternalModels"]

_ASK_TIMEOUT_S: Final = 10.0
# How often one that answers is asked, one that does not, and how soon live traffic is noticed.
_READY_INTERVAL_S: Final = 10.0
_DOWN_INTERVAL_S: Final = 1.0
_GLANCE_S: Final = 0.1
# So many questions in a row without an answer, and one that was ready is not any more.
_MAX_SILENCES: Final = 2
# A list of ten thousand models has about 2 MB; what is longer is no list.
_MAX_LISTING_BYTES: Final = 8 * 1024 * 1024
_PIECE_BYTES: Final = 64 * 1024


class ExternalModels:
    """Watches external models between ``start`` and ``close``; ``snapshot`` tells how they are.

    An answer that broke has its model asked about at once; answers that flow spare a ready one the
    question.
    """

    def __init__(
        self, requests: tuple[ModelRequest, ...], keys: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """StackFileError for a URL that cannot be served from; ``keys`` are their keys by served name."""
        self._keys = keys
        self._traffic: Callable[[str], Traffic] = _no_traffic
        self._requests = requests
        self._served = {request.name: _begin(request) for request in requests}
        self._silences = dict.fromkeys(self._served, 0)
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    def snapshot(self) -> tuple[ServedModel, ...]:
        """Every model, in the order of the stack file."""
        return tuple(self._served.values())

    async def start(self, traffic: Callable[[str], Traffic]) -> None:
        """Begin to watch; returns when each has been asked about once, or could not be in time.

        ``traffic`` gives a model's live traffic by its served name (Gateway.traffic_of).
        """
        self._traffic = traffic
        timeout = aiohttp.ClientTimeout(total=_ASK_TIMEOUT_S)
        self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        await asyncio.gather(*(self._ask(request) for request in self._requests))
        self._tasks = [asyncio.create_task(self._watch(request)) for request in self._requests]

    async def close(self) -> None:
        """Stop watching; idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _watch(self, request: ModelRequest) -> None:
        while True:
            try:
                before = self._traffic(request.name)
                has_flowed = await self._wait(request, before)
                if not has_flowed:
                    await self._ask(request)
            except Exception as error:  # noqa: BLE001
                # A watch that ends would leave its model as it is for ever, and nobody would be told.
                fault = f"watching it failed: {type(error).__name__}: {error}"[:300]
                self._served[request.name] = _judge(self._served[request.name], ListedModel(fault=fault))
                await asyncio.sleep(_DOWN_INTERVAL_S)

    async def _wait(self, request: ModelRequest, before: Traffic) -> bool:
        """Until it is time to ask; True when traffic answered the question instead."""
        is_ready = self._served[request.name].state is ReplicaState.READY
        deadline_s = time.monotonic() + (_READY_INTERVAL_S if is_ready else _DOWN_INTERVAL_S)
        while time.monotonic() < deadline_s:
            await asyncio.sleep(_GLANCE_S)
            now = self._traffic(request.name)
            if now.num_errors > before.num_errors:
                return False
        return is_ready and self._traffic(request.name).num_bytes > before.num_bytes

    async def _ask(self, request: ModelRequest) -> None:
        before = self._traffic(request.name)
        listed = await self._read(request)
        self._silences[request.name] = 0 if listed is not None else self._silences[request.name] + 1
        if listed is None:
            # A busy server may be slow with its list: silence counts when it lasts, and nothing flows.
            is_ready = self._served[request.name].state is ReplicaState.READY
            has_flowed = self._traffic(request.name).num_bytes > before.num_bytes
            if is_ready and (has_flowed or self._silences[request.name] < _MAX_SILENCES):
                return
            listed = ListedModel(fault=f"GET /models gave no answer in {_ASK_TIMEOUT_S:g} s")
        self._served[request.name] = _judge(self._served[request.name], listed)

    async def _read(self, request: ModelRequest) -> ListedModel | None:
        """What the endpoint lists, None when it was silent."""
        try:
            return await self._fetch(request)
        except TimeoutError:
            return None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return ListedModel(fault=explain_connect_fault(error))
        # Whatever somebody else's server sends: one model's answer ends neither the gateway nor its watch.
        except Exception as error:  # noqa: BLE001
            return ListedModel(fault=f"GET /models cannot be read: {type(error).__name__}: {error}"[:300])

    async def _fetch(self, request: ModelRequest) -> ListedModel:
        assert self._session is not None  # noqa: S101 - between start and close
        url = f"{external_base_url(request.url or '')}/v1/models"
        headers = upstream_headers(self._served[request.name], self._keys)
        async with self._session.get(url, allow_redirects=False, headers=headers) as answer:
            if answer.status != 200:
                location = answer.headers.get("Location", "")
                variable = request.api_key_env
                fault = explain_status(answer.status, location=location, variable=variable)
                return ListedModel(fault=fault, is_key_refused=is_key_refusal(answer.status))
            body = await _read_bounded(answer.content)
            if body is None:
                return ListedModel(fault=f"GET /models answered more than {_MAX_LISTING_BYTES:,} bytes")
            return _decode_listing(body, answer.content_type, request)


async def _read_bounded(content: aiohttp.StreamReader) -> bytes | None:
    """The whole body, None for one above the bound, of which nothing more is read."""
    pieces = bytearray()
    while piece := await content.read(_PIECE_BYTES):
        pieces += piece
        if len(pieces) > _MAX_LISTING_BYTES:
            return None
    return bytes(pieces)


def _decode_listing(body: bytes, content_type: str, request: ModelRequest) -> ListedModel:
    try:
        document = load_json(body)
    except ValueError:
        return ListedModel(fault=explain_no_json(body, content_type=content_type))
    return read_listing(document, request=request)


def _no_traffic(_: str) -> Traffic:
    return Traffic()


def _begin(request: ModelRequest) -> ServedModel:
    return ServedModel(
        name=request.name,
        engine=EXTERNAL_ENGINE,
        state=ReplicaState.STARTING,
        base_url=external_base_url(request.url or ""),
        detail="not asked yet",
        family=request.family or family_of_checkpoint(request.upstream_model or request.name),
        thinking=request.thinking,
        concurrency=request.concurrency,
    )


def _judge(before: ServedModel, listed: ListedModel) -> ServedModel:
    """The model as its endpoint's list tells it; one that was there before is waited for."""
    if not listed.fault:
        return replace(
            before,
            state=ReplicaState.READY,
            upstream_model=listed.upstream_model,
            max_model_len=listed.max_model_len,
            detail="",
            is_key_refused=False,
        )
    was_there = before.state in {ReplicaState.READY, ReplicaState.BACKING_OFF}
    state = ReplicaState.BACKING_OFF if was_there else ReplicaState.STARTING
    return replace(before, state=state, detail=listed.fault, is_key_refused=listed.is_key_refused)
