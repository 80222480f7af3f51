"""A stand-in engine that thinks as a Qwen model without a reasoning parser does, in a thread of its own.

Its thoughts stand in the answer's text, with a closing tag alone, unless ``chat_template_kwargs`` switches
them off. It works on one request at a time unless told, like a llama.cpp of one slot, and answers
a request for JSON (a title, tags) with that JSON. What came in is kept, with times.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

THOUGHT = "Let me weigh the question before I say anything. "
ANSWER = "The answer is forty-two."
TITLE = "Forty-two"
TASKS = {
    '"follow_ups"': {"follow_ups": ["Why forty-two?"]},
    '"title"': {"title": TITLE},
    '"tags"': {"tags": ["Numbers"]},
}


@dataclass
class Asked:
    """One request; ``began_s`` is when the slot was free for it, ``ended`` how its answer ended."""

    document: dict[str, Any]
    headers: dict[str, str]
    came_s: float
    began_s: float = 0.0
    ended_s: float = 0.0
    ended: str = ""

    @property
    def text(self) -> str:
        return str(self.document["messages"][-1]["content"])

    @property
    def is_task(self) -> bool:
        return self.text.startswith("### Task:")

    @property
    def thinks(self) -> bool:
        return self.document.get("chat_template_kwargs", {}).get("enable_thinking", True)


@dataclass
class ThinkingEngine:
    """Listens on a free port of 127.0.0.1 between ``start`` and ``stop``; ``gap_s`` lies between pieces.

    While ``die`` is set, a stream breaks off after a few pieces; while ``mute`` is, no head is sent.
    """

    name: str = "thinker"
    gap_s: float = 0.01
    num_thoughts: int = 20
    num_slots: int = 1
    asked: list[Asked] = field(default_factory=list)
    die: bool = False
    mute: bool = False

    def start(self) -> ThinkingEngine:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = self._call(self._listen())
        return self

    def stop(self) -> None:
        self._call(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def users(self) -> list[Asked]:
        """What people asked, without the calls beside their chats."""
        return [one for one in self.asked if not one.is_task]

    def tasks(self) -> list[Asked]:
        return [one for one in self.asked if one.is_task]

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> int:
        self._slot = asyncio.Semaphore(self.num_slots)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._list)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return self._runner.addresses[0][1]

    async def _list(self, request: web.Request) -> web.Response:
        entry = {"id": self.name, "object": "model", "owned_by": "test", "max_model_len": 32768}
        return web.json_response({"object": "list", "data": [entry]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = Asked(await request.json(), dict(request.headers), time.monotonic())
        self.asked.append(asked)
        try:
            async with self._slot:
                asked.began_s = time.monotonic()
                while self.mute:
                    await asyncio.sleep(0.05)
                answer = await (self._stream if asked.document.get("stream") else self._whole)(request, asked)
            asked.ended = asked.ended or "answered"
        except BaseException:
            asked.ended = "abandoned"
            raise
        finally:
            asked.ended_s = time.monotonic()
        return answer

    def _pieces(self, asked: Asked) -> list[str]:
        thought = [THOUGHT] * self.num_thoughts + ["</think>", "\n\n"] if asked.thinks else []
        if asked.is_task:
            history = asked.text.rindex("<chat_history>")
            wanted = (answer for key, answer in TASKS.items() if key in asked.text[:history])
            return [*thought, json.dumps(next(wanted, {}))]
        return [*thought, *re.findall(r"\S+ ?", ANSWER)]

    async def _whole(self, request: web.Request, asked: Asked) -> web.Response:
        pieces = self._pieces(asked)
        await asyncio.sleep(self.gap_s * len(pieces))
        message = {"role": "assistant", "content": "".join(pieces)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": len(pieces), "total_tokens": 7 + len(pieces)}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 1, "model": self.name, "choices": [choice],
             "usage": usage}
        )  # fmt: skip

    async def _stream(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for number, piece in enumerate(self._pieces(asked)):
            if self.die and number == 2:
                asked.ended = "broken"
                request.transport.abort()
                break
            await asyncio.sleep(self.gap_s)
            await answer.write(self._event({"content": piece}))
        with suppress(ConnectionError):
            await answer.write(self._event({}, "stop") + b"data: [DONE]\n\n")
        return answer

    def _event(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": self.name}
        return b"data: " + json.dumps(chunk | {"choices": [choice]}).encode() + b"\n\n"
