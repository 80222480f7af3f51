"""Bare pass-throughs, one per choice of libraries: what each costs before a gateway does anything.

    python benchmarks/gateway/library_candidates.py serve NAME --upstream URL --port N
    python benchmarks/gateway/library_candidates.py compare [--seconds 3] [--rounds 2] [--out FILE]

Candidates: aiohttp (server and client), uvicorn and granian (ASGI, aiohttp client), uvicorn-httpx, and
httptools (own asyncio protocols around the httptools parser, both sides). All under uvloop, one worker.
None of them checks, counts or repairs anything. Needs, beside trimtab: granian, uvicorn, httpx, httptools.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

CANDIDATES = ("aiohttp", "uvicorn", "granian", "uvicorn-httpx", "httptools")
_PATH = "/v1/chat/completions"


async def _serve_aiohttp(upstream: str, port: int) -> None:
    import aiohttp
    from aiohttp import web

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = {"Content-Type": "application/json"}
        async with session.post(upstream + request.path, data=body, headers=headers) as answer:
            kind = answer.headers["Content-Type"]
            if not kind.startswith("text/event-stream"):
                return web.Response(body=await answer.read(), headers={"Content-Type": kind})
            response = web.StreamResponse(headers={"Content-Type": kind})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


class _Asgi:
    """The ASGI application; ``upstream`` comes by environment where a server starts it itself."""

    def __init__(self, upstream: str, client: str) -> None:
        self._upstream, self._client, self._session = upstream, client, None

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            await self._lifespan(receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await (self._httpx if self._client == "httpx" else self._aiohttp)(scope["path"], body, send)

    async def _lifespan(self, receive, send) -> None:
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _aiohttp(self, path, body, send) -> None:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
            )
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._upstream + path, data=body, headers=headers) as answer:
            await self._head(answer.headers, send)
            if "Content-Length" in answer.headers:
                await send({"type": "http.response.body", "body": await answer.read()})
                return
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _httpx(self, path, body, send) -> None:
        import httpx

        if self._session is None:
            self._session = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=None)
        headers = {"Content-Type": "application/json"}
        async with self._session.stream(
            "POST", self._upstream + path, content=body, headers=headers
        ) as answer:
            await self._head(answer.headers, send)
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _head(self, headers, send) -> None:
        kept = [(b"content-type", headers["Content-Type"].encode())]
        if "Content-Length" in headers:
            kept.append((b"content-length", headers["Content-Length"].encode()))
        await send({"type": "http.response.start", "status": 200, "headers": kept})


def asgi_from_environment() -> _Asgi:
    import os

    return _Asgi(os.environ["CANDIDATE_UPSTREAM"], "aiohttp")


class _UpstreamSide(asyncio.Protocol):
    """One connection to the engine, lent to one client connection at a time."""

    def connection_made(self, transport) -> None:
        self.transport, self.client = transport, None

    def lend(self, client, request: bytes) -> None:
        import httptools

        self.client, self._parser, self._kind, self._length = (
            client,
            httptools.HttpResponseParser(self),
            b"",
            None,
        )
        self.transport.write(request)

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"content-type":
            self._kind = value
        elif lowered == b"content-length":
            self._length = value

    def on_headers_complete(self) -> None:
        framing = (
            b"Content-Length: " + self._length if self._length is not None else b"Transfer-Encoding: chunked"
        )
        self._out = [b"HTTP/1.1 %d OK\r\nContent-Type: %b\r\n%b\r\n\r\n" % (
            self._parser.get_status_code(), self._kind, framing)]  # fmt: skip
        self._pieces = []

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._is_over = True

    def data_received(self, data: bytes) -> None:
        self._out, self._pieces, self._is_over = [], [], False
        self._parser.feed_data(data)
        body = b"".join(self._pieces)
        if self._length is not None:
            self._out.append(body)
        elif body:
            self._out.append(b"%x\r\n%b\r\n" % (len(body), body))
        if self._is_over and self._length is None:
            self._out.append(b"0\r\n\r\n")
        client, transport = self.client, self.client.transport
        if self._is_over:
            self.client = None
            client.pool.append(self)
        transport.write(b"".join(self._out))


class _ClientSide(asyncio.Protocol):
    """One client connection."""

    def __init__(self, pool: list, connect, host: str) -> None:
        self.pool, self._connect, self._host = pool, connect, host.encode()

    def connection_made(self, transport) -> None:
        import httptools

        self.transport, self._body = transport, []
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        request = (
            b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (self._url, self._host, len(body), body))  # fmt: skip
        if self.pool:
            self.pool.pop().lend(self, request)
        else:
            asyncio.ensure_future(self._lend_new(request))

    async def _lend_new(self, request: bytes) -> None:
        _, side = await self._connect()
        side.lend(self, request)


async def _serve_httptools(upstream: str, port: int) -> None:
    loop, parts, pool = asyncio.get_running_loop(), urlsplit(upstream), []

    def connect():
        return loop.create_connection(_UpstreamSide, parts.hostname, parts.port)

    server = await loop.create_server(
        lambda: _ClientSide(pool, connect, parts.netloc), "127.0.0.1", port, backlog=1024
    )
    await server.serve_forever()


def _serve(name: str, upstream: str, port: int) -> None:
    import uvloop

    if name == "aiohttp":
        uvloop.run(_serve_aiohttp(upstream, port))
    elif name == "httptools":
        uvloop.run(_serve_httptools(upstream, port))
    elif name.startswith("uvicorn"):
        import uvicorn

        app = _Asgi(upstream, "httpx" if name.endswith("httpx") else "aiohttp")
        uvicorn.run(app, port=port, loop="uvloop", http="httptools", access_log=False, log_level="warning",
                    server_header=False, date_header=False)  # fmt: skip
    else:
        import os

        from granian import Granian

        os.environ["CANDIDATE_UPSTREAM"] = upstream
        Granian(f"{Path(__file__).stem}:asgi_from_environment", address="127.0.0.1", port=port, interface="asgi",
                workers=1, loop="uvloop", factory=True, log_enabled=False).serve()  # fmt: skip


def _compare(args: argparse.Namespace) -> None:
    import side_by_side as bench
    import uvloop

    results = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = bench._free_port()
        upstream = f"http://127.0.0.1:{port}"
        argv = [sys.executable, str(bench._HERE / "scripted_upstream.py"), "--port", str(port)]
        bench._wait_ready(upstream, bench._start(stack, argv, folder / "u.log"), folder / "u.log")
        served = {"direct": (upstream, None)}
        for name in CANDIDATES:
            port = bench._free_port()
            argv = [sys.executable, __file__, "serve", name, "--upstream", upstream, "--port", str(port)]
            process = bench._start(stack, argv, folder / f"{name}.log", PYTHONPATH=str(bench._HERE))
            served[name] = (f"http://127.0.0.1:{port}", process.pid)
            bench._wait_ready(served[name][0], process, folder / f"{name}.log")
        rounds = {name: {case: [] for case in bench._CASES} for name in served}
        for _ in range(args.rounds):
            for case in bench._CASES:
                for name, (url, pid) in served.items():
                    rounds[name][case].append(uvloop.run(bench._one(url, pid, case, args.seconds)))
        results = {
            n: {c: bench._median_round(some) for c, some in cases.items()} for n, cases in rounds.items()
        }
    bench._print(results)
    if args.out:
        import importlib.metadata

        host = bench._host(args) | {
            n: importlib.metadata.version(n) for n in ("granian", "uvicorn", "httpx", "httptools")
        }
        args.out.write_text(
            json.dumps({"host": host, "seconds": args.seconds, "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve")
    serve.add_argument("name", choices=CANDIDATES)
    serve.add_argument("--upstream", required=True)
    serve.add_argument("--port", type=int, required=True)
    compare = commands.add_parser("compare")
    compare.add_argument("--seconds", type=float, default=3.0)
    compare.add_argument("--rounds", type=int, default=3)
    compare.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.command == "serve":
        _serve(args.name, args.upstream, args.port)
    else:
        args.vllm_router = args.litellm = None
        _compare(args)
