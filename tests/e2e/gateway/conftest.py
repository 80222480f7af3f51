"""A gateway over real sockets in front of scripted engines, under both event loops."""

import asyncio
import json
from contextlib import AsyncExitStack

import aiohttp
import pytest
import uvloop
from scripted_engine import ScriptedEngine

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ReplicaState, ServedModel
from trimtab.gateway.app import Gateway
from trimtab.gateway.parts import GatewayMore


def pytest_asyncio_loop_factories(config, item):
    """Every test of this folder that awaits runs once per event loop."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Front:
    """One gateway, the engine behind it, and a client in front."""

    def __init__(self, gateway, engine, models, session):
        self.gateway, self.engine, self.models, self.session = gateway, engine, models, session
        self.url, self.port = gateway.url, gateway.port

    def post(self, path="/v1/chat/completions", *, data=None, headers=None, **fields):
        body = json.dumps({"messages": [], **fields}).encode() if data is None else data
        return self.session.post(
            self.url + path, data=body, headers={"Content-Type": "application/json"} | (headers or {})
        )

    async def raw(self):
        """A bare connection: (reader, writer)."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def metric(self, line_start):
        """The value of the metrics line that starts so, 0 where it is absent."""
        async with self.session.get(self.url + "/metrics") as answer:
            for line in (await answer.text()).splitlines():
                if line.startswith(line_start):
                    return float(line.rpartition(" ")[2])
        return 0.0


@pytest.fixture
async def make_front():
    """Makes fronts; everything is stopped at the end."""
    async with AsyncExitStack() as stack:

        async def make(*, settings=None, num_descriptors=None, admission=None, more=None, **changes):
            engine = await ScriptedEngine().start()
            stack.push_async_callback(engine.stop)
            model = {"name": "m", "engine": "vllm", "state": ReplicaState.READY, "base_url": engine.url}
            models = [ServedModel(**model | {"max_model_len": 4096} | changes)]
            parts = more or GatewayMore(admission=admission)
            gateway = Gateway(
                GatewaySettings(**{"port": 0} | (settings or {})), lambda: tuple(models),
                version="1.2.3", num_descriptors=num_descriptors, more=parts)  # fmt: skip
            await gateway.start()
            stack.push_async_callback(gateway.stop)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            )
            return Front(gateway, engine, models, session)

        yield make


@pytest.fixture
async def front(make_front):
    """A gateway with one model ``m`` of 4,096 tokens."""
    return await make_front()
