"""A chat server that does nothing but keep time: chunks at set moments, and a log of when it really sent.

    python timed_server.py --ttft 20 --itl 5 --log times.json

Prints its port. ``max_tokens`` (or ``max_completion_tokens``) of a request is its number of chunks. With
--ttft 0 --itl 0 an answer leaves in one write. The role comes at once, with --late-role just before the first
chunk, as from vLLM and llama.cpp. --one-each hangs up on a connection's second request, unanswered.
SIGTERM writes the log, one entry per request: when it was read, then when each chunk was written, on the
machine's monotonic clock (which a client on it shares).
"""

import argparse
import asyncio
import contextlib
import json
import re
import signal
import time
from pathlib import Path
from typing import ClassVar

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
CHUNK = b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"clock",'
ROLE = CHUNK + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = CHUNK + b'"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
THOUGHT = CHUNK + b'"choices":[{"index":0,"delta":{"reasoning_content":" hm"}}]}\n\n'
STOP = CHUNK + b'"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def framed(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class TimedServer(asyncio.Protocol):
    """One connection."""

    settings = None
    log: ClassVar[list] = []

    def connection_made(self, transport):
        self.transport, self.buffer = transport, bytearray()
        self.num_posts = 0

    def data_received(self, data):
        self.buffer += data
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[:end].lower()
            at = head.find(b"content-length: ")
            length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
            self.answer(head, body, time.perf_counter())

    def answer(self, head, body, came_s):
        if head.startswith(b"get "):
            self.answer_get(head)
            return
        settings = self.settings
        self.num_posts += 1
        if settings.one_each and self.num_posts > 1:
            self.transport.abort()
            return
        asked = re.search(rb'"max(?:_completion)?_tokens": ?(\d+)', body)
        count = 1 if asked is None else int(asked[1])
        words = body.count(b" ") + 1
        counts = b'{"prompt_tokens":%d,"completion_tokens":%d}' % (words + 4, count)
        usage = b"" if settings.no_usage else CHUNK + b'"choices":[],"usage":%s}\n\n' % counts
        if settings.fail:
            text = b'{"error":{"message":"out of luck"}}'
            self.transport.write(b"HTTP/1.1 503 x\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
        elif settings.ttft == 0 and settings.itl == 0:
            self.transport.write(HEAD + framed(ROLE + TEXT * count + STOP + usage + DONE) + b"0\r\n\r\n")
        else:
            self.transport.write(HEAD if settings.late_role else HEAD + framed(ROLE))
            asyncio.get_running_loop().create_task(self.keep_time(came_s, count, usage))

    def answer_get(self, head):
        if head.startswith(b"get /metrics"):
            text, kind = b"no prometheus here {", b"text/html"
        elif head.startswith(b"get /health") and self.settings.concurrency:
            models = {"clock": {"concurrency": self.settings.concurrency}}
            text, kind = json.dumps({"models": models}).encode(), b"application/json"
        else:
            text, kind = b'{"data":[{"id":"clock"}]}', b"application/json"
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, len(text), text)
        )

    async def keep_time(self, came_s, count, usage):
        settings, sent = self.settings, []
        for number in range(count):
            due = came_s + (settings.ttft + number * settings.itl) / 1e3
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if self.transport.is_closing():
                return
            thinks = number < settings.thoughts
            sent.append(time.perf_counter())
            if settings.late_role and number == 0:
                self.transport.write(framed(ROLE))
            self.transport.write(framed(THOUGHT if thinks else TEXT))
            if settings.hang_up_after == number + 1:
                self.transport.close()
                return
        self.log.append([came_s, *sent])
        self.transport.write(framed(STOP + usage + DONE) + b"0\r\n\r\n")


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft", type=float, default=0)
    parser.add_argument("--itl", type=float, default=0)
    parser.add_argument("--thoughts", type=int, default=0)
    parser.add_argument("--hang-up-after", type=int, default=0)
    parser.add_argument("--concurrency", type=int, default=0, help="what /health tells, as trimtab's does")
    parser.add_argument("--no-usage", action="store_true")
    parser.add_argument("--late-role", action="store_true")
    parser.add_argument("--one-each", action="store_true")
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--log")
    TimedServer.settings = parser.parse_args()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(TimedServer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()
    server.close()
    if TimedServer.settings.log:
        Path(TimedServer.settings.log).write_text(json.dumps(TimedServer.log))


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    asyncio.run(main())
