"""A real llama.cpp engine inside a real container, through the Docker API: start, chat, adopt, stop."""

from __future__ import annotations

import asyncio
import site
import time
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_files import embedded_gguf
from podman_service import CONTAINER_PORT, fake_container, machine_mounts
from supervising_program import fake_spec
from trimtab_program import chat

import trimtab
from trimtab.core.state import ExitStatus
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.docker import DockerRuntime

pytestmark = [pytest.mark.engine, pytest.mark.alone, pytest.mark.timeout(240)]

SOURCE = Path(trimtab.__file__).parents[1]


@pytest.fixture
async def runtime(tmp_path, daemon, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", daemon.address)
    chosen = DockerRuntime(tmp_path)
    yield chosen
    for replica in await chosen.list_replicas():
        await chosen.stop_replica(replica.replica_id, grace_s=1)
    chosen.close()


def llama_spec(*, detached: bool = True):
    """The engine host that `trimtab up` starts, as a container with the model mounted read-only."""
    model, packages = embedded_gguf(), site.getsitepackages()[0]
    container = fake_container(
        "trimtab-tests-llama",
        args=(
            *("-m", "trimtab.runtimes.llama_cpp_host", "--model", str(model)),
            *("--host", "0.0.0.0", "--port", str(CONTAINER_PORT), "--alias", "llama"),
            *("--ctx-size", "2048", "--threads", "1"),
        ),
        env=(("PYTHONPATH", f"{SOURCE}:{packages}"),),
        mounts=machine_mounts(SOURCE, packages, model.parent),
    )
    return replace(fake_spec(replica_id="llama-0", detached=detached), container=container)


async def wait_ready(runtime, observed):
    deadline = time.monotonic() + 120
    async with EngineProbe() as probe:
        while True:
            answer = await probe.probe_generation(observed.base_url, model="any", timeout_s=60)
            if answer.is_ok:
                return
            (listed,) = await runtime.list_replicas()
            assert listed.is_running, runtime.read_log_tail("llama-0", max_lines=20)
            assert time.monotonic() < deadline, answer.detail
            await asyncio.sleep(0.1)


async def test_llama_cpp_in_a_container_chats_is_adopted_and_stops(runtime, tmp_path):
    """The same engine answers from a container; a second trimtab finds it, and stops it for good."""
    observed = await runtime.start_replica(llama_spec())
    await wait_ready(runtime, observed)
    assert (await asyncio.to_thread(chat, f"{observed.base_url}/v1")).strip()

    other = DockerRuntime(tmp_path)
    (adopted,) = await other.list_replicas()
    assert (adopted.replica_id, adopted.base_url, adopted.is_running) == ("llama-0", observed.base_url, True)
    assert adopted.rss_bytes > 50_000_000
    waiting = asyncio.ensure_future(other.wait_exit("llama-0"))
    await asyncio.sleep(0.1)
    await other.stop_replica("llama-0", grace_s=20)
    assert await asyncio.wait_for(waiting, 5) == ExitStatus(code=0)
    assert await runtime.list_replicas() == ()
    assert "llama" in Path(observed.log_path).read_text()
    other.close()
