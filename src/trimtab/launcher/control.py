"""I/O. How a second command talks to the supervisor that runs: one request, lines back, over a socket file.

The socket lies in the state folder, which only its user may enter. It is addressed through a
descriptor of the folder, because a socket's path may have no more than 108 bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from trimtab.errors import EngineStartError, EnvironmentMissingError, StackFileError, TrimtabError
from trimtab.runtimes.state_layout import refused_path

__all__ = ["COMMANDS", "ControlServer", "send_request"]

# What a supervisor can be asked.
COMMANDS: Final = ("change", "drop", "endpoints", "metrics", "preview")
# Those that only look do not wait for one that changes something.
_GLANCES: Final = frozenset({"endpoints", "metrics"})

_SOCKET: Final = "control.sock"
# A plan of a hundred models stays far below this; an event is a few hundred bytes.
_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
# The kinds of failure that keep their exit code on the way back.
_KINDS: Final = {kind.__name__: kind for kind in (EnvironmentMissingError, StackFileError, TrimtabError)}

Say = Callable[[dict[str, Any]], None]
Handle = Callable[[dict[str, Any], Say], Awaitable[dict[str, Any]]]


class ControlServer:
    """Answers requests, those that change something in turn; ``handle``: (request, say) → the result.

    What it raises as TrimtabError goes back as an error, with its kind and hint.
    """

    def __init__(self, state_dir: Path, handle: Handle) -> None:
        self._state_dir = state_dir
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Listen; a socket file that a killed supervisor left is replaced.

        Raises EnvironmentMissingError, which names the path, where that is refused.
        """
        socket = self._state_dir / _SOCKET
        try:
            with _short_path(self._state_dir) as path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108 - a path through a descriptor
                self._server = await asyncio.start_unix_server(self._serve, path, limit=_MAX_LINE_BYTES)
                os.chmod(path, 0o600)  # noqa: PTH101
        except OSError as error:
            if socket.is_dir():
                raise EnvironmentMissingError(
                    f"{socket} is a folder, where the control socket must be",
                    hint="remove it, or move it away",
                ) from error
            raise refused_path(error, socket) from error

    async def stop(self) -> None:
        """Stop listening and remove the socket file; idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        with contextlib.suppress(OSError):
            (self._state_dir / _SOCKET).unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(document: dict[str, Any]) -> None:
            if not writer.is_closing():
                writer.write(json.dumps(document).encode() + b"\n")

        try:
            request = _decode_request(await _read_line(reader))
            async with contextlib.nullcontext() if request["command"] in _GLANCES else self._lock:
                result = await self._handle(request, say)
            say({"result": result})
        except TrimtabError as error:
            say(_error_document(error))
        except (ValueError, OSError, KeyError, TypeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"[:300]
            say(_error_document(TrimtabError(f"the request cannot be carried out: {why}")))
        finally:
            with contextlib.suppress(OSError):
                await writer.drain()
            writer.close()


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError as error:
        raise TrimtabError(f"the request is longer than {_MAX_LINE_BYTES:,} bytes") from error


def _decode_request(line: bytes) -> dict[str, Any]:
    """One request; TrimtabError says what is wrong with it."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TrimtabError(f"the request is no JSON: {why}") from error
    if not isinstance(request, dict):
        raise TrimtabError(f"the request is a JSON {type(request).__name__}, not an object")
    if not isinstance(request.get("command"), str):
        raise TrimtabError("the request names no command", hint=f"legal are {', '.join(COMMANDS)}")
    if request["command"] not in COMMANDS:
        raise TrimtabError(
            f"unknown command {request['command'][:60]!r}", hint=f"legal are {', '.join(COMMANDS)}"
        )
    return request


def _error_document(error: TrimtabError) -> dict[str, Any]:
    message = error.told if isinstance(error, EngineStartError) else error.message
    return {"error": {"kind": type(error).__name__, "message": message, "hint": error.hint}}


async def send_request(
    state_dir: Path, request: dict[str, Any], on_event: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Send one request to the supervisor of ``state_dir`` and give its result.

    ``on_event`` hears what it says meanwhile. Raises what the supervisor failed with, and
    EnvironmentMissingError when it does not listen or leaves.
    """
    async for document in _exchange(state_dir, request):
        if "result" in document:
            result: dict[str, Any] = document["result"]
            return result
        if "error" in document:
            raise _to_error(document["error"])
        on_event(document)
    raise EnvironmentMissingError("the running trimtab left before it had answered", hint="trimtab status")


async def _exchange(state_dir: Path, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    try:
        with _short_path(state_dir) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_LINE_BYTES)
    except OSError as error:
        raise EnvironmentMissingError(
            f"the running trimtab does not listen in {state_dir}: {(error.strerror or str(error)).lower()}",
            hint="trimtab down stops it",
        ) from error
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        await writer.drain()
        while line := await reader.readline():
            yield json.loads(line)
    except (OSError, ValueError, RecursionError) as error:
        raise EnvironmentMissingError(f"the running trimtab cannot be understood: {error}") from error
    finally:
        writer.close()


@contextlib.contextmanager
def _short_path(state_dir: Path) -> Iterator[str]:
    """A path of the socket that is short whatever the folder's is."""
    folder = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{_SOCKET}"
    finally:
        os.close(folder)


def _to_error(document: dict[str, Any]) -> TrimtabError:
    if document["kind"] == EngineStartError.__name__:
        return EngineStartError(document["message"], hint=document["hint"])
    return _KINDS.get(document["kind"], TrimtabError)(document["message"], hint=document["hint"])
