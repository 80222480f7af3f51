"""The readiness probe and the port holder against real sockets and a real (fake) engine program."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from processes_seen import wait_until
from supervising_program import FAKE_ENGINE

from trimtab.probes.generation import EngineProbe
from trimtab.probes.processes import probe_port_holder


def free_port() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return holder.getsockname()[1]


@pytest.fixture
def start_engine():
    """Starts a fake engine with knobs; gives its base URL once it listens."""
    running: list[subprocess.Popen] = []

    def start(*knobs: str) -> str:
        port = free_port()
        argv = [sys.executable, "-S", str(FAKE_ENGINE), "--port", str(port), *knobs]
        running.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL))
        wait_until(lambda: probe_port_holder("127.0.0.1", port), within_s=30, what="listening engine")
        return f"http://127.0.0.1:{port}"

    yield start
    for engine in running:
        engine.kill()
        engine.wait()


@pytest.fixture
async def probe():
    async with EngineProbe() as chosen:
        yield chosen


@pytest.mark.parametrize(
    ("knobs", "has_embeddings", "is_ok", "detail"),
    [
        pytest.param((), False, True, "answers", id="chat"),
        pytest.param(("--embeddings",), True, True, "answers", id="embeddings"),
        pytest.param(("--embeddings",), False, False, "HTTP 404: no such path", id="cannot-generate"),
        pytest.param((), True, False, "HTTP 404: no such path", id="cannot-embed"),
        pytest.param(("--load-s", "60"), False, False, "HTTP 503: Loading model", id="loading"),
        pytest.param(
            ("--refuse-generation",), False, False, "HTTP 500: the engine core is dead", id="dead-core"
        ),
        pytest.param(("--no-chat",), False, True, "answers", id="no-chat-template"),
        pytest.param(("--empty-answer",), False, False, "answers 200 without a token", id="no-token"),
        pytest.param(("--mute",), False, False, "no answer within 0.3 s", id="mute"),
    ],
)
async def test_generation_is_judged_by_what_really_came_back(
    start_engine, probe, knobs, has_embeddings, is_ok, detail
):
    """A model counts as ready only when a token or an embedding really arrived."""
    base_url = start_engine(*knobs)
    result = await probe.probe_generation(
        base_url, model="fake", has_embeddings=has_embeddings, timeout_s=0.3 if "--mute" in knobs else 10
    )
    assert (result.is_ok, result.detail) == (is_ok, detail)
    assert result.is_refusal == detail.startswith("HTTP 4")
    assert not result.is_final


async def test_health_alone_does_not_make_a_dead_core_ready(start_engine, probe):
    """The known trap: /health says 200 while nothing can be generated."""
    base_url = start_engine("--refuse-generation")
    assert (await probe.probe_liveness(base_url, timeout_s=5)).is_ok
    assert not (await probe.probe_generation(base_url, model="fake", timeout_s=5)).is_ok


async def test_liveness_follows_the_health_endpoint(start_engine, probe, tmp_path):
    """An engine that reports itself ill is seen as ill, and as well again."""
    ill = tmp_path / "ill"
    base_url = start_engine("--unhealthy-file", str(ill))
    assert (await probe.probe_liveness(base_url, timeout_s=5)).is_ok
    ill.touch()
    assert (await probe.probe_liveness(base_url, timeout_s=5)).detail == "HTTP 503"
    ill.unlink()
    assert (await probe.probe_liveness(base_url, timeout_s=5)).is_ok


async def test_nobody_listening_is_told_and_not_raised(probe):
    """An engine that has not opened its port yet is simply not ready."""
    base_url = f"http://127.0.0.1:{free_port()}"
    result = await probe.probe_generation(base_url, model="fake", timeout_s=5)
    assert (result.is_ok, result.detail) == (False, "does not listen yet")
    assert not await probe.probe_listener(base_url, timeout_s=1)


async def test_something_else_on_the_port_is_no_engine(probe):
    """A program that speaks no HTTP is never taken for a ready engine."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        base_url = f"http://127.0.0.1:{other.getsockname()[1]}"
        result = await probe.probe_generation(base_url, model="fake", timeout_s=0.2)
        assert (result.is_ok, result.detail) == (False, "no answer within 0.2 s")
        assert await probe.probe_listener(base_url, timeout_s=1)


@pytest.mark.parametrize(
    ("bound", "asked", "is_found"),
    [
        pytest.param("127.0.0.1", "127.0.0.1", True, id="same-address"),
        pytest.param("0.0.0.0", "127.0.0.1", True, id="all-addresses"),
        pytest.param("127.0.0.1", "0.0.0.0", True, id="all-wanted"),
        pytest.param("127.0.0.1", "localhost", True, id="by-name"),
        pytest.param("127.0.0.2", "127.0.0.1", False, id="another-address"),
    ],
)
def test_holder_of_a_taken_port_is_named(bound, asked, is_found):
    """``up`` on a taken port says which program holds it."""
    with socket.socket() as listener:
        listener.bind((bound, 0))
        port = listener.getsockname()[1]
        assert probe_port_holder(asked, port) is None  # bound, but nobody listens
        listener.listen()
        holder = probe_port_holder(asked, port)
    assert (holder is not None) == is_found
    if holder is not None:
        assert holder.pid == os.getpid()
        assert str(holder) == f"{holder.name} (pid {os.getpid()})"
