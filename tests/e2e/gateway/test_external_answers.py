"""Whatever somebody else's server answers, the gateway lives, keeps its memory, and says what is wrong."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from scripted_engine import eventually

from trimtab.core.stack import ModelRequest
from trimtab.core.state import ReplicaState
from trimtab.gateway.external import ExternalModels
from trimtab.gateway.external_listing import Traffic, read_listing

LISTING = b'{"data": [{"id": "theirs"}]}'


@asynccontextmanager
async def raw_endpoint(head, pieces):
    """The url of a server that answers every connection with these bytes, until it leaves."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            writer.write(head)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


def _head(status="200 OK", kind="application/json", more=""):
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Connection: close\r\n\r\n".encode()


@asynccontextmanager
async def watched(url, traffic=lambda _: Traffic()):
    """External models with one, asked about once."""
    external = ExternalModels((ModelRequest(name="m", checkpoint="", url=url),))
    await asyncio.wait_for(external.start(traffic), 8)
    try:
        yield external
    finally:
        await external.close()


def detail(external):
    return external.snapshot()[0].detail


def is_ready(external):
    return external.snapshot()[0].state is ReplicaState.READY


ENDLESS = [b"[" * 65536] * 16 * 1024  # 1 GiB of one object's reference


@pytest.mark.parametrize(
    ("head", "pieces", "words"),
    [
        pytest.param(_head(), [b"[" * 200_000], "no JSON", id="deep"),
        pytest.param(_head(), ENDLESS, "more than 8,388,608 bytes", id="endless"),
        pytest.param(_head(), [b""], "answered nothing", id="empty"),
        pytest.param(_head(kind="text/html"), [b"<html>"], "an HTML page", id="page"),
        pytest.param(_head(kind="text/plain"), [b"<!doctype html>"], "an HTML page", id="page-untyped"),
        pytest.param(_head(), [b"\xff\xfe{"], "no JSON", id="no-text"),
        pytest.param(
            _head("302 Found", more="Location: http://127.0.0.1:1/v2\r\n"),
            [b""],
            "a redirect to http://127.0.0.1:1/v2",
            id="redirect",
        ),
    ],
)
async def test_whatever_an_endpoint_lists_the_gateway_serves_on(head, pieces, words):
    """A list that is none is told in words, costs no memory, and the endpoint is asked again."""
    async with raw_endpoint(head, pieces) as url, watched(url) as external:
        assert external.snapshot()[0].state is ReplicaState.STARTING
        assert words in detail(external)


async def test_a_fault_of_the_watch_itself_ends_no_watching(monkeypatch):
    """What nobody thought of is told as the model's fault, and the next answer is read again."""
    faults = [LookupError("odd")]

    def read(document, *, request):
        if faults:
            raise faults.pop()
        return read_listing(document, request=request)

    monkeypatch.setattr("trimtab.gateway.external.read_listing", read)
    async with raw_endpoint(_head(), [LISTING]) as url, watched(url) as external:
        assert "LookupError" in detail(external)
        await eventually(lambda: is_ready(external))


async def test_a_fault_in_live_traffic_ends_no_watching(monkeypatch):
    """A watch that breaks between two questions goes on, and says what broke."""
    monkeypatch.setattr("trimtab.gateway.external._DOWN_INTERVAL_S", 0.1)
    is_broken = False

    def traffic(_):
        if is_broken:
            raise LookupError("odd")
        return Traffic()

    async with raw_endpoint(_head(), [LISTING]) as url, watched(url, traffic) as external:
        is_broken = True
        await eventually(lambda: "LookupError" in detail(external))
        is_broken = False
        await eventually(lambda: is_ready(external))
