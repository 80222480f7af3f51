"""Many streams at once for a while: each one that was accepted ends as a stream must."""

import asyncio
import json
import os
import time

import aiohttp
import pytest
from trimtab_program import Program, read_ready

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

SECONDS = float(os.environ.get("TRIMTAB_SOAK_SECONDS", "15"))
STREAMS = 32


@pytest.fixture
def endpoint(tmp_path):
    program = Program(tmp_path)
    yield read_ready(program.up("--context", "1024"))["endpoint"]
    program.close()


async def stream_once(session, endpoint):
    """One stream to its end; gives how it ended."""
    body = {
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": 12,
        "stream": True,
        "ignore_eos": True,
    }
    async with session.post(f"{endpoint}/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        data = await answer.content.read()
    events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    if events[-1:] == [b"[DONE]"]:
        return "done"
    return "error" if events and "error" in json.loads(events[-1]) else "lost"


async def test_no_accepted_stream_is_lost(endpoint):
    """32 clients for a while: zero streams end without [DONE] or an error."""
    ends = []
    deadline = time.monotonic() + SECONDS

    async def client(session):
        while time.monotonic() < deadline:
            ends.append(await stream_once(session, endpoint))

    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(STREAMS)))

    assert len(ends) >= STREAMS
    assert ends == ["done"] * len(ends)
