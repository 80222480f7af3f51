"""Usage of the whole program: a disk that is full for a while, and SIGKILL at any moment."""

import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager, suppress

import aiohttp
import pytest
from safe_counts import num_safe
from scripted_engine import ScriptedEngine
from trimtab_program import Program, read_ready

from trimtab.gateway.usage_log import read_usage_totals

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_WORKERS = 8
ROUNDS = 20
# Most answers are whole; a few upstreams die before their answer or inside it, on every kind of request.
KINDS = [{}, {"stream": True, "events": 2, "gap_s": 0.005}] * 4 + [
    {"script": "reset_before_head"},
    {"script": "die_inside_stream", "stream": True},
]


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    program.close()


def num_counted(program):
    """Requests in the database, by key; none but of the one key are expected."""
    totals = read_usage_totals(program.state / "usage.sqlite3")
    assert {one.key for one in totals} <= {"alice"}
    return sum(one.num_requests for one in totals)


@asynccontextmanager
async def asked(program, key, engine):
    """A serving gateway in front of the engine: (its process, how to ask it, sessions closed in the end)."""
    (program.root / "stack.yaml").write_text(f'models: {{m: {{url: "{engine.url}/v1", family: plain}}}}')
    process = program.serve("gateway", "stack.yaml")
    endpoint = (await asyncio.to_thread(read_ready, process))["endpoint"]
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def ask(**fields):
            body = {"model": "m", "messages": []} | fields
            async with session.post(f"{endpoint}/chat/completions", json=body) as answer:
                return answer.status, await answer.text()

        yield process, ask


def check_in_band(status, text):
    """Whatever became of the upstream, the client read a whole answer or an error in words."""
    if text.startswith("data: "):
        *events, last = [line for line in text.split("\n\n") if line]
        assert last == "data: [DONE]", text
        assert 'finish_reason": "stop' in events[-1] or '"error"' in events[-1], text
    else:
        document = json.loads(text)
        assert "choices" in document if status == 200 else document["error"]["message"]


async def work(ask, chance, ended_s):
    """Ask until nobody answers any more; keeps when each answer had ended."""
    with suppress(aiohttp.ClientError):
        while True:
            status, text = await ask(**chance.choice(KINDS))
            ended_s.append(time.monotonic())
            check_in_band(status, text)
            await asyncio.sleep(0.01)


async def one_round(program, key, engine, chance, *, number):
    """Serve until a random moment, then SIGKILL. What was lost or counted twice fails."""
    before, ended_s = num_counted(program), []
    async with asked(program, key, engine) as (process, ask):
        workers = [asyncio.ensure_future(work(ask, chance, ended_s)) for _ in range(NUM_WORKERS)]
        await asyncio.sleep(chance.uniform(0.1, 2.0))
        os.kill(process.pid, signal.SIGKILL)
        killed_s = time.monotonic()
        await asyncio.to_thread(process.wait, 10)
        await asyncio.gather(*workers)
    counted = num_counted(program) - before
    safe = num_safe(sorted(ended_s), killed_s)
    assert safe <= counted <= len(ended_s) + NUM_WORKERS, f"round {number}"
    return len(ended_s), safe, counted


def test_twenty_kills_of_the_gateway_lose_nothing_that_was_safe(program):
    """What ended a second before a SIGKILL is counted, nothing twice, and every answer was readable."""
    key = program.run_json("keys", "add", "alice")["key"]
    chance = random.Random(20261130)

    async def rounds():
        engine = await ScriptedEngine().start()
        try:
            told = [await one_round(program, key, engine, chance, number=n) for n in range(ROUNDS)]
            # A stop in peace loses nothing at all.
            before = num_counted(program)
            async with asked(program, key, engine) as (process, ask):
                statuses = [(await ask(**kind))[0] for kind in KINDS]
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(process.wait, 20)
            return told, statuses, num_counted(program) - before
        finally:
            await engine.stop()

    told, statuses, counted = asyncio.run(rounds())
    answered, safe, written = (sum(column) for column in zip(*told, strict=True))
    print(f"{answered} answers, {safe} of them safe, {written} counted")

    assert statuses == [200] * 8 + [503, 200]
    assert counted == len(KINDS)
    # The rounds were worth something: most of them lived long enough for answers to be safe.
    assert sum(one[1] > 0 for one in told) >= ROUNDS // 4


@contextmanager
def tiny_disk(folder):
    """A disk of one megabyte in place of the folder; skips where this machine lets nobody mount one."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder):
    """Take all the room there is; gives the file that has it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 512)
    return filler


@pytest.mark.parametrize("kind", ["full", "limited"])
def test_usage_waits_for_room_on_the_disk(program, kind):
    """While nothing can be written requests are answered as ever; once it can, all of them are counted."""

    async def check():
        key = program.run_json("keys", "add", "alice")["key"]
        engine = await ScriptedEngine().start()
        async with asked(program, key, engine) as (process, ask):
            await ask_many(ask)
            await counted_is(program, 10)
            if kind == "full":
                room = fill(program.state)
            else:
                size = (program.state / "usage.sqlite3-wal").stat().st_size
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            for _ in range(3):
                await ask_many(ask)
                await asyncio.sleep(0.6)
            assert num_counted(program) == 10
            if kind == "full":
                room.unlink()
            else:
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            await counted_is(program, 40)
            process.send_signal(signal.SIGTERM)
            _, said = await asyncio.to_thread(process.communicate, timeout=20)
        await engine.stop()
        assert num_counted(program) == 40
        assert said.count("usage cannot be written") == 1, said

    if kind == "full":
        with tiny_disk(program.root / "state"):
            asyncio.run(check())
            program.close()
    else:
        asyncio.run(check())


async def ask_many(ask):
    assert [(await ask())[0] for _ in range(10)] == [200] * 10


async def counted_is(program, number):
    """Wait until so many requests are in the database."""
    async with asyncio.timeout(20):
        while num_counted(program) < number:
            await asyncio.sleep(0.05)
    assert num_counted(program) == number
