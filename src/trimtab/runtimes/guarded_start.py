"""I/O. Starts one guard, hands it its order and reads its answer; whatever goes wrong, no process stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.core.state import ReplicaSpec
from trimtab.errors import EngineStartError, EnvironmentMissingError, TrimtabError
from trimtab.runtimes import guard
from trimtab.runtimes.run_record import render_record
from trimtab.runtimes.state_layout import refused_path

__all__ = ["StartedGuard", "start_guarded"]

# A guard answers about 20 ms after its start on an idle core; this bounds a machine that thrashes.
_GUARD_ANSWER_S = 30.0
# What a guard grants its engine when the supervisor vanished; stop_replica brings its own limit.
_GUARD_GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedGuard:
    """A guard that is our child; ``lifeline`` is None for a replica that outlives its supervisor."""

    pid: int
    lifeline: int | None

    def release(self) -> None:
        """Once it has ended: collect it and close its lifeline. Earlier: cut the lifeline."""
        if self.lifeline is not None:
            os.close(self.lifeline)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


async def start_guarded(spec: ReplicaSpec, *, python: str, folder: Path, log_path: Path) -> StartedGuard:
    """Start the replica under a guard run by ``python``; its record lies in ``folder`` when this returns.

    The caller keeps what it gets for as long as the engine may live, then releases it. Raises
    EngineStartError when the program cannot be executed and EnvironmentMissingError when the machine
    refuses; safe to cancel.
    """
    guard_pid, lifeline, answer_fd = _spawn_guard(python, folder)
    try:
        with suppress(BrokenPipeError):  # then its missing answer tells
            _write_all(lifeline, _render_order(spec, folder=folder, log_path=log_path))
        try:
            answer = await asyncio.wait_for(_read_answer(answer_fd), _GUARD_ANSWER_S)
        finally:
            os.close(answer_fd)
        _check_started(answer, spec)
    except BaseException as error:
        # Guard: our uncollected child keeps its pid, and its death takes the engine along.
        os.kill(guard_pid, signal.SIGKILL)
        os.waitpid(guard_pid, 0)  # noqa: ASYNC222 - killed: ends at once
        os.close(lifeline)
        if isinstance(error, TimeoutError):
            raise EnvironmentMissingError(
                f"replica {spec.replica_id}: no answer from its guard within {_GUARD_ANSWER_S:.0f} s",
                hint="the machine is overloaded or out of memory; free some and try again",
            ) from error
        raise
    if spec.dies_with_supervisor:
        return StartedGuard(pid=guard_pid, lifeline=lifeline)
    os.close(lifeline)
    return StartedGuard(pid=guard_pid, lifeline=None)


def _render_order(spec: ReplicaSpec, *, folder: Path, log_path: Path) -> bytes:
    order = {
        "replica_dir": str(folder),
        "argv": spec.argv,
        "env": dict(spec.env),
        "log_path": str(log_path),
        "grace_s": _GUARD_GRACE_S,
        "dies_with_supervisor": spec.dies_with_supervisor,
        "record": render_record(spec),
    }
    return json.dumps(order).encode() + b"\n"


def _spawn_guard(python: str, folder: Path) -> tuple[int, int, int]:
    """Its pid, the write end of its stdin and the read end of its stdout."""
    order_read, order_write = os.pipe()
    answer_read, answer_write = os.pipe()
    # SPT_NOENV: setproctitle, which vLLM's processes call, would overwrite the environment that
    # carries our mark (py-setproctitle's documentation, section "Environment variables").
    env = {**os.environ, guard.MARKER: str(folder), "SPT_NOENV": "1"}
    actions = [(os.POSIX_SPAWN_DUP2, order_read, 0), (os.POSIX_SPAWN_DUP2, answer_write, 1)]
    argv = [python, "-I", "-S", guard.__file__]
    try:
        guard_pid = os.posix_spawn(python, argv, env, file_actions=actions)
    except OSError as error:
        for fd in (order_write, answer_read):
            os.close(fd)
        raise EnvironmentMissingError(
            f"cannot run the interpreter {python}: {(error.strerror or str(error)).lower()}",
            hint="reinstall trimtab into an environment with a working python3",
        ) from error
    finally:
        os.close(order_read)
        os.close(answer_write)
    return guard_pid, order_write, answer_read


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


async def _read_answer(answer_fd: int) -> dict[str, Any]:
    """The guard's one line; the caller keeps the descriptor.

    Guard: no pipe transport. A cancelled one closes the descriptor under uvloop and not under
    asyncio, so that it was closed twice, or somebody else's in its place.
    """
    loop, is_readable, line = asyncio.get_running_loop(), asyncio.Event(), b""
    os.set_blocking(answer_fd, False)
    loop.add_reader(answer_fd, is_readable.set)
    try:
        while not line.endswith(b"\n"):
            await is_readable.wait()
            is_readable.clear()
            try:
                piece = os.read(answer_fd, 65536)
            except BlockingIOError:
                continue
            if not piece:
                break
            line += piece
    finally:
        loop.remove_reader(answer_fd)
    answer = json.loads(line) if line else {"failed": "guard"}
    return answer if isinstance(answer, dict) else {"failed": "guard"}


def _check_started(answer: dict[str, Any], spec: ReplicaSpec) -> None:
    """Raise the guard's refusal as the failure a user sees."""
    if "failed" in answer:
        raise _to_error(answer, spec)


def _to_error(answer: dict[str, Any], spec: ReplicaSpec) -> TrimtabError:
    step, path = answer["failed"], answer.get("path", "")
    refusal = OSError(answer.get("errno", 0), "")
    if step in ("record", "log"):
        return refused_path(refusal, path)
    reason = os.strerror(refusal.errno or 0).lower()
    if step == "port":
        return EnvironmentMissingError(
            f"no free port on {path} for replica {spec.replica_id}: {reason}",
            hint="close some of this machine's listening programs",
        )
    if step == "execute":
        return EngineStartError(
            f"replica {spec.replica_id}: cannot execute {path}: {reason}",
            hint=f"install the engine {spec.engine}, or make its program executable",
        )
    return EngineStartError(
        f"replica {spec.replica_id}: its guard ended before it had started the engine",
        hint="the traceback stands in the engine's log: trimtab logs",
    )
