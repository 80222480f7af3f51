"""A gateway before one real engine, as a function that asks it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import aiohttp

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ReplicaState, ServedModel
from trimtab.gateway.app import Gateway
from trimtab.gateway.assemble import Assembly, decode_events
from trimtab.probes.generation import EngineProbe

# Seconds on an idle machine; two cores that are busy with something else take many times that.
READY_S = 240.0
QUESTION = [{"role": "user", "content": "What is the value?"}]


@asynccontextmanager
async def gateway_before(observed, *, engine, family, max_model_len=2048, has_embeddings=False):
    """Gives the url of a gateway with one model ``tiny`` on an engine that was just started."""
    model = ServedModel(
        name="tiny", engine=engine, state=ReplicaState.READY, base_url=observed.base_url,
        upstream_model=observed.model, max_model_len=max_model_len, family=family,
        has_embeddings=has_embeddings,
    )  # fmt: skip
    gateway = Gateway(GatewaySettings(port=0), lambda: (model,), version="0")
    await _wait_ready(observed, has_embeddings=has_embeddings)
    await gateway.start()
    try:
        yield gateway.url
    finally:
        await gateway.stop()


@asynccontextmanager
async def asked_gateway(observed, *, engine, family, max_model_len=2048):
    """Gives a function: fields of a chat request → (thought, answer, the whole answer).

    ``observed`` is an engine that was just started. A streamed answer is put together as a client would.
    """
    async with (
        gateway_before(observed, engine=engine, family=family, max_model_len=max_model_len) as url,
        aiohttp.ClientSession() as session,
    ):

        async def ask(*, stream, **fields):
            body = {"messages": QUESTION, "temperature": 0, "max_tokens": 40, "stream": stream, **fields}
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                data = await response.read()
                assert response.status == 200, data
            document = _join(data) if stream else await response.json()
            message = document["choices"][0]["message"]
            assert message.get("reasoning") == message.get("reasoning_content")
            return (message.get("reasoning") or "").strip(), (message["content"] or "").strip(), document

        yield ask


def _join(data):
    assembly = Assembly()
    for document in decode_events(data):
        assembly.add(document)
    assert assembly.is_whole, data
    return assembly.finish()


async def _wait_ready(observed, *, has_embeddings):
    deadline = time.monotonic() + READY_S
    async with EngineProbe() as probe:
        while True:
            found = await probe.probe_generation(
                observed.base_url, model=observed.model, has_embeddings=has_embeddings, timeout_s=30
            )
            if found.is_ok:
                return
            assert time.monotonic() < deadline, found.detail
            await asyncio.sleep(0.2)
