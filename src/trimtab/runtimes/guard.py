"""I/O. The guard: a tiny process that is the parent of one engine and takes it along when it goes.

Run by file path as ``python -I -S guard.py``. It imports only the standard library, so that it
starts in about 20 ms, and has one thread, which PR_SET_PDEATHSIG needs (prctl(2): the signal comes
when the *thread* that forked ends).

Protocol, one JSON document per line:

- stdin: what to start, ``{"replica_dir", "argv", "env", "log_path", "grace_s",
  "dies_with_supervisor", "record"}``. With ``dies_with_supervisor`` the pipe stays open as the
  lifeline: its end means that the supervisor is gone, and the engine is stopped.
- stdout: ``{"engine_pid", "port"}`` once the engine's program runs, or
  ``{"failed": "record" | "log" | "port" | "execute", "errno", "path"}``.

Signals: SIGTERM stops the engine's process group, SIGKILL follows after ``grace_s``; SIGQUIT kills
at once. The guard holds the engine's port bound, but not listening, for as long as it lives: nobody
who asks the kernel for a free port is given this one, while the engine, which binds with
SO_REUSEADDR as servers do, gets it.

When the guard itself is killed with SIGKILL, the kernel kills the engine (PR_SET_PDEATHSIG).
Descendants that the engine leaves behind are adopted by the guard (PR_SET_CHILD_SUBREAPER), killed
and collected before it ends, so a guard that ends by itself leaves nothing.
"""

# pathlib alone would add 10 ms to the start of every engine:
# ruff: noqa: PTH105, PTH108, PTH110, PTH118, PTH123, PTH208
from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

__all__ = [
    "BOOT_ID_PATH",
    "EXIT_FILE",
    "MARKER",
    "OUT_OF_DESCRIPTORS",
    "RECORD_FILE",
    "main",
    "read_stat",
]

# Environment variable that every process of a replica carries: the absolute path of its folder.
MARKER = "TRIMTAB_REPLICA_DIR"
RECORD_FILE = "record.json"
EXIT_FILE = "exit.json"
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

# Errors that say nothing about what was looked for: this process, or this machine, has none left.
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_EXEC_FAILED = 127
# A process that forks while its group is killed may escape one round; the next one comes after this.
_KILL_AGAIN_S = 0.1
# Signals the guard reads from its wake-up pipe, and those a terminal may send that it must outlive.
_HEARD = (signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD)
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class _RefusedError(Exception):
    """A step of the start that the machine refused; becomes the answer on stdout."""

    def __init__(self, step: str, error: OSError, path: str) -> None:
        super().__init__(step)
        self.answer = {"failed": step, "errno": error.errno or 0, "path": path}


def read_stat(pid: int) -> tuple[str, int, int] | None:
    """State letter, parent's pid and start time in clock ticks since boot; None when there is none.

    OSError where this process has no descriptor left to look with.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError as error:
        if error.errno in OUT_OF_DESCRIPTORS:
            raise
        return None
    # The name in parentheses may hold spaces and parentheses itself: count from the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[1]), int(fields[19])


def main() -> int:
    """Start one engine, stay until it has ended and nothing of it is left."""
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0  # the supervisor went away before it had said what to start
    order = json.loads(line)
    wake_fd = _become_guard()
    try:
        engine_pid, port, holder = _start(order)
    except _RefusedError as refusal:
        _answer(refusal.answer)
        return 1
    _answer({"engine_pid": engine_pid, "port": port})
    with holder:
        watch = _Watch(engine_pid, grace_s=float(order["grace_s"]), wake_fd=wake_fd)
        status = watch.until_engine_ends(has_lifeline=bool(order["dies_with_supervisor"]))
        _sweep_descendants()
    _write_exit(str(order["replica_dir"]), status)
    return 0


def _become_guard() -> int:
    """A session of its own, parent of every orphan below, signals as bytes on the returned fd."""
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_NAME, b"trimtab-guard")
    os.closerange(3, 256)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    for number in _HEARD:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return read_fd


def _start(order: dict[str, Any]) -> tuple[int, int, socket.socket]:
    """Fork, write the record, then let the engine's program run; gives pid, port and the held port."""
    holder = _hold_port()
    port: int = holder.getsockname()[1]
    argv = [str(word).replace("{port}", str(port)) for word in order["argv"]]
    env = dict(os.environ, **order["env"])
    log_fd = _open_log(str(order["log_path"]))
    log_offset = os.fstat(log_fd).st_size
    go_read, go_write = os.pipe()
    error_read, error_write = os.pipe()
    guard_pid = os.getpid()
    engine_pid = os.fork()
    if engine_pid == 0:
        os.close(go_write)
        _become_engine(argv, env, guard_pid=guard_pid, fds=(log_fd, go_read, error_write))
    for fd in (go_read, error_write, log_fd):
        os.close(fd)
    _write_record(order, engine_pid=engine_pid, port=port, log_offset=log_offset)
    os.write(go_write, b"g")
    os.close(go_write)
    failure = os.read(error_read, 16)
    os.close(error_read)
    if failure:
        os.waitpid(engine_pid, 0)
        os.unlink(os.path.join(str(order["replica_dir"]), RECORD_FILE))
        raise _RefusedError("execute", OSError(int(failure), ""), argv[0])
    return engine_pid, port, holder


def _hold_port() -> socket.socket:
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind(("127.0.0.1", 0))
    except OSError as error:
        raise _RefusedError("port", error, "127.0.0.1") from error
    return holder


def _open_log(path: str) -> int:
    try:
        log_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise _RefusedError("log", error, path) from error
    os.dup2(log_fd, 2)  # should the guard itself fail, its traceback stands in the engine's log
    return log_fd


def _become_engine(
    argv: list[str], env: dict[str, str], *, guard_pid: int, fds: tuple[int, int, int]
) -> NoReturn:
    """In the forked child: tie this life to the guard's, wait for the word, become the engine."""
    log_fd, go_read, error_write = fds
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Guard: without this check a guard killed before the line above would leave us behind.
        if os.getppid() != guard_pid or not os.read(go_read, 1):
            os._exit(_EXEC_FAILED)
        signal.set_wakeup_fd(-1)
        for number in (*_HEARD, *_IGNORED, signal.SIGXFSZ):  # Python itself ignores SIGXFSZ
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell is the point
    except (OSError, ValueError) as error:  # ValueError: a NUL character in argv or env
        code = error.errno if isinstance(error, OSError) else errno.EINVAL
        os.write(error_write, str(code).encode())
    finally:
        os._exit(_EXEC_FAILED)


class _Watch:
    """Waits for the engine's end and passes on the wish to stop it."""

    def __init__(self, engine_pid: int, *, grace_s: float, wake_fd: int) -> None:
        self._engine_pid = engine_pid
        self._grace_s = grace_s
        self._wake_fd = wake_fd
        self._kill_at: float | None = None

    def until_engine_ends(self, *, has_lifeline: bool) -> int:
        """The engine's wait status."""
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        if has_lifeline:
            poll.register(0, select.POLLIN)
        while (status := _collect(self._engine_pid)) is None:
            for fd, _ in poll.poll(self._poll_timeout_ms()):
                if fd == 0 and not os.read(0, 512):
                    poll.unregister(0)
                    self._stop(signal.SIGTERM)
                elif fd == self._wake_fd:
                    self._hear(os.read(self._wake_fd, 512))
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal_group(signal.SIGKILL)
        return status

    def _poll_timeout_ms(self) -> int | None:
        if self._kill_at is None:
            return None
        return max(0, round((self._kill_at - time.monotonic()) * 1000)) + 1

    def _hear(self, numbers: bytes) -> None:
        if signal.SIGQUIT in numbers:
            self._stop(signal.SIGKILL)
        elif signal.SIGTERM in numbers:
            self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        self._signal_group(number)
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_s

    def _signal_group(self, number: signal.Signals) -> None:
        """Signal the engine's group and then the engine itself, which may have left the group.

        The engine is our child and not yet collected, so its pid cannot belong to anyone else.
        """
        for send in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                send(self._engine_pid, number)
        if number == signal.SIGKILL:
            self._kill_at = time.monotonic() + _KILL_AGAIN_S


def _collect(engine_pid: int) -> int | None:
    """Collect every child that has ended; the engine's wait status if it is among them."""
    status = None
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == engine_pid:
            status = code


def _sweep_descendants() -> None:
    """Kill whatever the engine left; as subreaper every orphan becomes our child, until none is left.

    The children of a killed child become ours before it can be collected, so the next look sees them.
    """
    while children := _read_children():
        for pid in children:
            os.kill(pid, signal.SIGKILL)  # our own uncollected child: this pid cannot be anyone else's
        for pid in children:
            os.waitpid(pid, 0)


def _read_children() -> list[int]:
    own_pid = os.getpid()
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if (stat := read_stat(pid)) is not None and stat[1] == own_pid]


def _write_record(order: dict[str, Any], *, engine_pid: int, port: int, log_offset: int) -> None:
    with open(BOOT_ID_PATH) as file:
        boot_id = file.read().strip()
    record = dict(
        order["record"],
        boot_id=boot_id,
        engine_pid=engine_pid,
        engine_start_ticks=_start_ticks(engine_pid),
        guard_pid=os.getpid(),
        guard_start_ticks=_start_ticks(os.getpid()),
        port=port,
        log_path=order["log_path"],
        log_offset=log_offset,
        started_at_s=time.time(),
    )
    path = os.path.join(str(order["replica_dir"]), RECORD_FILE)
    try:
        _write_atomically(path, record)
    except OSError as error:
        os.kill(engine_pid, signal.SIGKILL)
        os.waitpid(engine_pid, 0)
        raise _RefusedError("record", error, path) from error


def _start_ticks(pid: int) -> int:
    stat = read_stat(pid)
    return 0 if stat is None else stat[2]


def _write_exit(replica_dir: str, status: int) -> None:
    """Tell how the engine ended; without disk space the end is still seen, only not how."""
    document = {
        "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
    }
    with suppress(OSError):
        _write_atomically(os.path.join(replica_dir, EXIT_FILE), document)


def _write_atomically(path: str, document: dict[str, Any]) -> None:
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w") as file:
            json.dump(document, file)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _answer(document: dict[str, Any]) -> None:
    """One line to the supervisor, which may be gone; afterwards stdout leads nowhere."""
    with suppress(OSError):
        os.write(1, json.dumps(document).encode() + b"\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _prctl(option: int, value: int | bytes) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    sys.exit(main())
