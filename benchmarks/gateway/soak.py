"""Does the gateway stay as it is: 200,000 requests, 1,000 idle streams held open, and bad manners throughout.

    python benchmarks/gateway/soak.py [--requests 200000] [--idle-streams 1000] [--out benchmarks/gateway/soak-DATE.json]

In front of the scripted upstream, with a second one whose streams send one event and then nothing:
opens the idle streams, warms up with a tenth of the requests, takes the memory, then sends all of them
(nine in ten unstreamed, the rest as streams of 32 events, 32 clients at once) while, every few seconds,
clients half-close, flood headers, send 100 MB, bytes that are no UTF-8 and garbage, leave inside streams,
and twenty never read what they asked for. At the end the idle streams must still be open, every good
request answered, and memory within 5 % of where it was. Exit code 1 where one of these is not so.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import side_by_side as bench
from load_client import measure, render_request

_HERE = Path(__file__).parent
_FLOOD_EVERY_S = 2.0


async def _open(url: str):
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def _exchange(url: str, data: bytes, *, half_closes: bool = False) -> bytes:
    """The first bytes of the answer to these bytes."""
    reader, writer = await _open(url)
    with contextlib.closing(writer), contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(data)
        if half_closes:
            writer.write_eof()
        await writer.drain()
        async with asyncio.timeout(20):
            return await reader.read(65536)
    return b""


async def _misbehave(url: str, counts: dict[str, int]) -> None:
    """One round of everything a client should not do; counts what came back as it should."""
    good, stream = render_request(url, stream=False), render_request(url, stream=True)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    cases = {
        "half-closed": (good, True, b" 200 "),
        "half-closed-stream": (stream, True, b" 200 "),
        "header-flood": (b"GET /health HTTP/1.1\r\n" + b"X-A: b\r\n" * 20_000, False, b" 431 "),
        "endless-header": (b"GET /health HTTP/1.1\r\nX: " + b"y" * 1_000_000, False, b" 431 "),
        "100-mb": (head + b"Content-Length: 100000000\r\n\r\n" + b" " * 100_000_000, False, b" 413 "),
        "no-utf8": (head + b"Content-Length: 9\r\n\r\n{\"a\":\"\xff\"}", False, b" 400 "),
        "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", False, b" 400 "),
        "smuggling": (head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", False, b" 400 "),
    }  # fmt: skip
    for name, (data, half_closes, wanted) in cases.items():
        answer = (await _exchange(url, data, half_closes=half_closes))[:40]
        name = name if wanted in answer else f"{name}: {answer!r}"
        counts[name] = counts.get(name, 0) + 1
    _, writer = await _open(url)
    writer.write(stream)
    await asyncio.sleep(0.001)
    writer.transport.abort()
    counts["left-inside-stream"] = counts.get("left-inside-stream", 0) + 1


async def _load(url: str, wanted: int, sample) -> dict:
    """Good requests until there are that many."""
    done, errors, first_error, p99 = 0, 0, "", []
    while done < wanted:
        for clients, events, seconds in ((32, 0, 2.7), (32, 32, 0.9)):
            result = (await measure(url, clients=clients, seconds=seconds, num_events=events)).summary()
            done += result["requests"]
            errors += result["errors"]
            first_error = first_error or result["first_error"]
            p99.append(result["total_p99_ms"])
        sample(done)
    return {"requests": done, "errors": errors, "first_error": first_error, "worst_p99_ms": max(p99)}


async def _open_idle(url: str, number: int) -> list:
    request = render_request(url, stream=True, model="held")
    streams = []
    for _ in range(number):
        reader, writer = await _open(url)
        writer.write(request)
        streams.append((reader, writer))
    async with asyncio.timeout(60):
        for reader, _ in streams:
            await reader.readuntil(b"fox")
    return streams


async def _soak(url: str, process: psutil.Process, args: argparse.Namespace) -> dict:
    samples, counts = [], {}

    def sample(done: int) -> None:
        samples.append({"requests": done, "rss_mib": round(process.memory_info().rss / 2**20, 2),
                        "descriptors": process.num_fds()})  # fmt: skip
        print(samples[-1], flush=True)

    async def misbehave_on_and_on() -> None:
        while True:
            await _misbehave(url, counts)
            await asyncio.sleep(_FLOOD_EVERY_S)

    sample(0)
    idle = await _open_idle(url, args.idle_streams)
    slow = []
    for _ in range(20):
        _, writer = await _open(url)
        writer.transport.pause_reading()
        writer.write(render_request(url, stream=True) * 200)
        slow.append(writer)
    await _misbehave(url, counts)
    warm_up = await _load(url, args.requests // 10, sample)
    before = samples[-1]
    counts.clear()
    rude = asyncio.ensure_future(misbehave_on_and_on())
    load = await _load(url, args.requests, sample)
    rude.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await rude
    await asyncio.sleep(2)
    sample(load["requests"])
    growth = samples[-1]["rss_mib"] / before["rss_mib"] - 1
    still_open = sum(not reader.at_eof() and not writer.is_closing() for reader, writer in idle)
    serves = b" 200 " in (await _exchange(url, render_request(url, stream=False)))[:40]
    for writer in [*slow, *(writer for _, writer in idle)]:
        writer.transport.abort()
    await asyncio.sleep(6)
    sample(load["requests"])
    return {"warm_up": warm_up, "load": load, "misbehaviour": counts, "idle_streams_still_open": still_open,
            "rss_growth": round(growth, 4), "serves": serves, "samples": samples}  # fmt: skip


def _run(args: argparse.Namespace) -> dict:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstreams = []
        for gap_ms in ("0", "86400000"):
            port = bench._free_port()
            argv = [
                sys.executable,
                str(_HERE / "scripted_upstream.py"),
                "--port",
                str(port),
                "--gap-ms",
                gap_ms,
            ]
            log = folder / f"upstream-{gap_ms}.log"
            upstreams.append(f"http://127.0.0.1:{port}")
            bench._wait_ready(upstreams[-1], bench._start(stack, argv, log), log)
        port = bench._free_port()
        argv = [sys.executable, str(_HERE / "serve_gateway.py"), "--upstream", upstreams[0], "--held", upstreams[1],
                "--port", str(port)]  # fmt: skip
        log = folder / "gateway.log"
        gateway = bench._start(stack, argv, log)
        url = f"http://127.0.0.1:{port}"
        bench._wait_ready(url, gateway, log)
        started = time.monotonic()
        result = args.run(_soak(url, psutil.Process(gateway.pid), args))
        return result | {"seconds": round(time.monotonic() - started, 1), "log": log.read_text()[-2000:]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--idle-streams", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.vllm_router = args.litellm = None
    try:
        import uvloop

        args.run = uvloop.run
    except ImportError:
        args.run = asyncio.run
    document = {"host": bench._host(args), "results": _run(args)}
    results = document["results"]
    print(json.dumps({name: value for name, value in results.items() if name != "samples"}, indent=1))
    if args.out:
        args.out.write_text(json.dumps(document, indent=1) + "\n")
    is_fine = (
        results["rss_growth"] < 0.05 and results["serves"] and results["load"]["errors"] == 0
        and results["idle_streams_still_open"] == args.idle_streams
        and not any(": b" in name for name in results["misbehaviour"])
    )  # fmt: skip
    sys.exit(0 if is_fine else 1)
