"""I/O. One request's way to a model with several replicas: asks one, and another where that gave nothing."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from trimtab.core.state import ServedModel, ServedReplica
from trimtab.gateway.http_message import Request
from trimtab.gateway.parts import GatewayParts
from trimtab.gateway.replicas import Beginning, ReplicaLoads, TokenNeed, find_beginning, find_chat_id
from trimtab.gateway.upstream import Answer, Upstream, UpstreamError

__all__ = ["ReplicaRoute", "choose_route"]

# Once a request has been with a replica that then broke off or failed, it goes to one other at most:
# if it is the request that kills engines, it must not kill all of them.
_MAX_BROKEN: Final = 2
_UNAVAILABLE: Final = 503
# vLLM's answer while its API outlives its engine core; its streams then begin with such an event.
_FAILED: Final = 500
_EVENT_STREAM: Final = "text/event-stream"
_ERROR_EVENT: Final = re.compile(rb'\s*data: ?\{\s*"error"\s*:')


class ReplicaRoute:
    """The replica that one request is with, counted in ``loads`` until ``end``.

    ``find_model`` gives the model as of now. Another replica is asked only while nothing of an answer
    has come; what follows a first answer stays with the replica that gave it.
    """

    def __init__(
        self,
        upstream: Upstream,
        loads: ReplicaLoads,
        find_model: Callable[[], ServedModel | None],
        *,
        chat_id: str | None,
        beginning: Beginning | None = None,
        need: TokenNeed | None = None,
    ) -> None:
        self._upstream = upstream
        self._loads = loads
        self._find_model = find_model
        self._chat_id = chat_id
        self._beginning = beginning
        self._need = need
        self._num_tokens = 0.0 if need is None else need.num_tokens
        self._replica: ServedReplica | None = None
        self._asked: str | None = None
        self._is_settled = False

    @property
    def replica_id(self) -> str | None:
        """The replica that was asked last."""
        return self._asked

    def end(self) -> None:
        """The request is over; idempotent."""
        self._leave()
        self._is_settled = True

    def _leave(self) -> None:
        if self._replica is not None:
            self._loads.end(self._replica.replica_id, num_tokens=self._num_tokens)
            self._replica = None

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """``Upstream.post`` to a ready replica; UpstreamError when none of them gave an answer."""
        if self._is_settled and self._replica is not None:
            return await self._upstream.post(f"{self._replica.base_url}{path}", body, headers)
        tried: set[str] = set()
        num_broken = 0
        while True:
            replica = self._replica = self._take(tried)
            try:
                answer = await self._upstream.post(f"{replica.base_url}{path}", body, headers)
                has_failed = answer.status == _FAILED or await _begins_with_failure(answer)
            except UpstreamError as error:
                num_broken += not error.is_unsent
                if not self._give_up_on(replica, tried) or num_broken >= _MAX_BROKEN:
                    raise
                continue
            num_broken += has_failed
            is_final = num_broken >= _MAX_BROKEN or not (has_failed or answer.status == _UNAVAILABLE)
            if is_final or not self._give_up_on(replica, tried):
                self._is_settled = True
                if self._beginning is not None:
                    self._loads.remember(self._beginning, replica.replica_id)
                return answer
            answer.close()

    @asynccontextmanager
    async def open(self, path: str, body: bytes, headers: dict[str, str]) -> AsyncIterator[Answer]:
        """``post`` as an asynchronous context that closes the answer whatever happens."""
        answer = await self.post(path, body, headers)
        try:
            yield answer
        finally:
            answer.close()

    def _take(self, tried: set[str]) -> ServedReplica:
        chosen = self._choose(tried)
        if chosen is None:
            raise UpstreamError("no replica is ready")
        self._asked = chosen.replica_id
        self._loads.begin(chosen.replica_id, num_tokens=self._num_tokens)
        return chosen

    def _choose(self, tried: set[str]) -> ServedReplica | None:
        model = self._find_model()
        if model is None:
            return None
        return self._loads.choose(
            model,
            chat_id=self._chat_id,
            now_s=time.monotonic(),
            dropped=frozenset(tried),
            beginning=self._beginning,
            need=self._need,
        )

    def _give_up_on(self, replica: ServedReplica, tried: set[str]) -> bool:
        """Leave a replica that failed; whether there is another to ask. With none, it stays the one."""
        self._loads.shun(replica.replica_id, now_s=time.monotonic())
        tried.add(replica.replica_id)
        if self._choose(tried) is None:
            return False
        self._leave()
        return True


async def _begins_with_failure(answer: Answer) -> bool:
    """Whether a stream holds nothing but that it failed; waits for its first event."""
    if answer.status != 200 or not answer.content_type.startswith(_EVENT_STREAM):
        return False
    try:
        first = await answer.await_piece()
    except BaseException:
        answer.close()
        raise
    return not first or _ERROR_EVENT.match(first) is not None


def choose_route(
    request: Request, document: dict[str, Any], parts: GatewayParts, model: str, need: TokenNeed | None
) -> ReplicaRoute:
    """The way of one request: to the replica that has its conversation, where it is one."""
    chat_id = find_chat_id(request.fields, document)
    begun = None if chat_id is not None else find_beginning(document, num_bytes=len(request.body))
    find = partial(parts.find_model, model)
    return ReplicaRoute(parts.upstream, parts.loads, find, chat_id=chat_id, beginning=begun, need=need)
