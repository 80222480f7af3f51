"""A real vLLM whose cache runs out: how often it evicts, with and without the gateway's bound of tokens."""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import psutil
import pytest

from trimtab.core.stack import GatewaySettings
from trimtab.engines.vllm_phases import read_boot
from trimtab.gateway.app import Gateway
from trimtab.launcher.supervise import EngineKnowledge, Supervisor
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.local_process import LocalProcessRuntime

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]

SLOTS = 48
# The cache holds about 20 of these requests.
SETTINGS = {"num_gpu_blocks_override": 320, "block_size": 32, "max_num_seqs": SLOTS, "max_model_len": 2048}
NUM_REQUESTS = 150
ROUNDS = 4


class Heard:
    """What the engine told, for the gateway whose round it is: it does not hear of the other's work."""

    def __init__(self):
        self.side, self.count, self._total, self._own = None, 0, 0, Counter()

    def take(self, progress):
        self.count += 1
        self._own[self.side] += progress.num_preemptions - self._total
        self._total = progress.num_preemptions
        return replace(progress, num_preemptions=self._own[self.side])


class Sides:
    """One engine, and two gateways before it: ``free`` knows its slots only, ``held`` its cache as well."""

    def __init__(self, session, supervisor, gateways, heard):
        self.session, self.supervisor, self.gateways, self.heard = session, supervisor, gateways, heard

    async def count_evictions(self):
        (replica,) = self.supervisor.replicas()
        async with self.session.get(f"{replica.base_url}/metrics") as answer:
            text = await answer.text()
        found = re.findall(r"^vllm:num_preemptions_total\S* (\S+)", text, re.MULTILINE)
        return sum(float(value) for value in found)

    def cpu_s(self):
        """Processor time of the engine's processes: other work of the machine does not count."""
        (replica,) = self.supervisor.replicas()
        server = psutil.Process(replica.pid)
        times = [one.cpu_times() for one in (server, *server.children(recursive=True))]
        return sum(one.user + one.system for one in times)

    async def load(self, side, *, salt):
        """Many requests at once: (evictions, tokens per second, tokens per second of processor time)."""
        self.heard.side = side
        before, began_s, began_cpu_s = await self.count_evictions(), time.monotonic(), self.cpu_s()
        url = f"{self.gateways[side].url}/v1/chat/completions"

        async def ask(index):
            # A beginning of its own, so that they share no blocks.
            content = f"{salt} {index}: " + "the value is set to one " * 55
            body = {
                "model": "tiny", "messages": [{"role": "user", "content": content}], "ignore_eos": True,
                "max_tokens": 100 + (index * 97) % 100, "stream": index % 2 == 0,
            }  # fmt: skip
            async with self.session.post(url, json=body) as answer:
                data = await answer.read()
                assert answer.status == 200, data
                assert not re.search(rb'^(data: )?\{"error"', data, re.MULTILINE)
            return body["max_tokens"]

        tokens = sum(await asyncio.gather(*(ask(index) for index in range(NUM_REQUESTS))))
        took_s, cpu_s = time.monotonic() - began_s, self.cpu_s() - began_cpu_s
        num_heard = self.heard.count
        async with asyncio.timeout(30):
            while self.heard.count < num_heard + 2:
                await asyncio.sleep(0.1)
        return await self.count_evictions() - before, tokens / took_s, tokens / cpu_s


@pytest.fixture
async def sides(vllm, tmp_path):
    """Both, with a real supervisor that tells them what the engine says."""
    gateways = {}
    heard = Heard()

    def tell(spec, progress):
        if heard.side is not None:
            gateways[heard.side].note_engine(spec.model, spec.replica_id, heard.take(progress))

    spec = replace(vllm.spec("qwen3", **SETTINGS), concurrency=SLOTS)
    runtime = LocalProcessRuntime(tmp_path, python=sys.executable)
    async with AsyncExitStack() as stack:
        probe = await stack.enter_async_context(EngineProbe())
        known = EngineKnowledge(explain_exit=lambda *_: None, note_progress=tell)
        supervisor = Supervisor((spec,), runtime, probe, known=known)
        stack.push_async_callback(supervisor.stop, 5)
        await supervisor.start()
        await supervisor.wait_ready(300)
        (replica,) = supervisor.replicas()
        facts = read_boot(Path(replica.log_path).read_text(errors="replace").splitlines()).facts
        for side, tokens in (("free", None), ("held", facts.kv_cache_tokens)):

            def snapshot(tokens=tokens):
                return tuple(replace(model, kv_cache_tokens=tokens) for model in supervisor.snapshot())

            gateways[side] = Gateway(GatewaySettings(port=0), snapshot, version="0")
            await gateways[side].start()
            stack.push_async_callback(gateways[side].stop)
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        yield Sides(session, supervisor, gateways, heard)


async def test_a_cache_that_runs_out_evicts_hardly_anything(sides):
    """Requests wait in the gateway instead of being computed twice, and the engine stays at work."""
    for side in ("free", "held", "held"):
        await sides.load(side, salt=f"{side} warm-up")
    found = {"free": [], "held": []}
    for number in range(ROUNDS):
        for side, rounds in found.items():
            rounds.append(await sides.load(side, salt=f"{side} {number}"))

    evictions = {side: sum(one for one, *_ in rounds) for side, rounds in found.items()}
    pairs = list(zip(found["free"], found["held"], strict=True))
    by_clock = statistics.median(held[1] / free[1] for free, held in pairs)
    by_processor = statistics.median(held[2] / free[2] for free, held in pairs)
    print(f"evictions {evictions}; tokens per second, held to free: {by_clock:.2f} by the clock,"
          f" {by_processor:.2f} by processor time; {found}")  # fmt: skip
    assert evictions["free"] > NUM_REQUESTS / 10, found
    assert evictions["held"] <= 0.1 * evictions["free"], found
    # Quiet it gives 0.92; two cores with ten others on them gave 0.67, which is why it runs alone.
    assert max(by_clock, by_processor) >= 0.75, found
