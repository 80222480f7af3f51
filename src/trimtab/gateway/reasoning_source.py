"""I/O. Reads an answer whose thought the gateway itself must end in time."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeAlias

from trimtab.gateway.event_cut import split_whole_events
from trimtab.gateway.json_text import load_json
from trimtab.gateway.large_body import work_on
from trimtab.gateway.reasoning_form import AnswerShape
from trimtab.gateway.reasoning_limit import ask_for_answer, ask_without_thought, join_event
from trimtab.gateway.reasoning_stream import ReasoningStream, split_events
from trimtab.gateway.upstream import Answer, UpstreamError

__all__ = ["LimitedThought", "OpenAnswer"]

# Sends a body to the engine; the answer lives as long as the ``async with``.
OpenAnswer: TypeAlias = Callable[[bytes], AbstractAsyncContextManager[Answer]]


class LimitedThought:
    """One stream out of two requests, read piece by piece; the second one only where it is needed.

    ``opened`` holds the answer that is being read, and closes it. ``body`` is the request that
    the first answer belongs to.
    """

    def __init__(
        self,
        opened: AsyncExitStack,
        answer: Answer,
        *,
        open_answer: OpenAnswer,
        body: bytes,
        shape: AnswerShape,
        budget_tokens: int,
    ) -> None:
        self._opened = opened
        self._answer = answer
        self._open_answer = open_answer
        self._body = body
        self._shape = shape
        self._budget_tokens = budget_tokens
        self._stream = ReasoningStream(shape)
        self._first: dict[str, Any] | None = None
        self._num_tokens = 0
        self._held = b""
        self._is_over = False

    async def read(self) -> bytes:
        """The next whole events, reshaped; empty at the end. UpstreamError when the engine broke off."""
        while not self._is_over:
            piece = await self._answer.read_piece()
            if not piece:
                self._is_over = True
                return self._stream.end()
            whole, self._held = split_whole_events(self._held + piece)
            out = await self._take(split_events(whole))
            if out:
                return out
        return b""

    async def _take(self, events: list[bytes]) -> bytes:
        out = []
        for event in events:
            if self._first is not None:
                joined = join_event(event, first=self._first, num_tokens=self._num_tokens)
                out.append(self._stream.feed_event(joined))
                continue
            out.append(self._stream.feed_event(event))
            if self._stream.open_thought_tokens >= self._budget_tokens:
                # The rest of what came is the thought that nobody wants any more.
                out.append(await self._go_on())
                break
        return b"".join(out)

    async def _go_on(self) -> bytes:
        """End the first answer, ask for the second; what was held back of the thought."""
        left = self._stream.end()
        thought, self._num_tokens = self._stream.open_thought, self._stream.open_thought_tokens
        self._first, self._held = self._stream.shared, b""
        await self._opened.aclose()
        document = await work_on(len(self._body), lambda: load_json(self._body))
        asked = ask_for_answer(document, thought=thought, num_tokens=self._num_tokens)
        answer = await self._open(asked)
        if answer.status != 200:
            await self._opened.aclose()
            answer = await self._open(ask_without_thought(document, num_tokens=self._num_tokens))
        if answer.status != 200:
            raise UpstreamError(f"it refused to go on behind the thought: {answer.status}")
        self._answer = answer
        self._stream = ReasoningStream(AnswerShape(form=self._shape.form))
        return left

    async def _open(self, document: dict[str, Any]) -> Answer:
        body = await work_on(len(self._body), lambda: json.dumps(document).encode())
        return await self._opened.enter_async_context(self._open_answer(body))
