"""I/O. One supervisor per state folder: the lock, the record that lets others find it, and its end."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from trimtab import __version__
from trimtab.errors import EnvironmentMissingError
from trimtab.launcher.supervisor_search import LOCK_FILE, UnrecordedSupervisor, find_unrecorded
from trimtab.runtimes.process_table import ProcessIdentity, is_alive, read_identity, send_signal, wait_gone
from trimtab.runtimes.state_layout import (
    log_path_of,
    logs_dir_of,
    make_folders,
    refused_path,
    replicas_dir_of,
)

__all__ = [
    "BESIDE",
    "HeldStateFolder",
    "StateFolder",
    "SupervisorMode",
    "SupervisorRecord",
    "find_supervisor",
    "stop_supervisor",
]

# All that two stacks would share lies under this folder, except the port.
BESIDE: Final = "give every command of the second one another XDG_STATE_HOME, and another --port"

SupervisorMode: TypeAlias = Literal["foreground", "detached"]

_RECORD_FILE = "supervisor.json"
# After SIGKILL a process is gone in milliseconds unless the kernel itself holds it.
_KILL_WAIT_S = 10.0
# A killed supervisor lets go of its lock within milliseconds, and is seen as living until then.
_SETTLE_S = 0.5
_SETTLE_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorRecord:
    """Who supervises a state folder; ``port`` is 0 until its gateway listens."""

    pid: int
    start_ticks: int
    boot_id: str
    mode: SupervisorMode
    stack: str
    trimtab_version: str
    started_at_s: float
    host: str = ""
    port: int = 0

    @property
    def process(self) -> ProcessIdentity:
        """The supervisor's process, for certain."""
        return ProcessIdentity(pid=self.pid, start_ticks=self.start_ticks, boot_id=self.boot_id)

    def __str__(self) -> str:
        endpoint = f" at http://{self.host}:{self.port}" if self.port else ""
        return f"process {self.pid} ({self.mode}, stack {self.stack}){endpoint}"


class StateFolder:
    """The folder that holds records and logs of one user's stack."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def logs(self) -> Path:
        """The folder of all engine logs."""
        return logs_dir_of(self.path)

    def log_path_of(self, model: str) -> Path:
        """Where the engine output of a served model is kept."""
        return log_path_of(self.path, model)

    def prepare(self) -> None:
        """Make the folders; EnvironmentMissingError names the one that was refused."""
        make_folders(self.path, replicas_dir_of(self.path), self.logs)

    def hold(self, *, mode: SupervisorMode, stack: str) -> HeldStateFolder:
        """Become the one supervisor of this folder.

        Raises EnvironmentMissingError when another one holds it, and names it.
        """
        self.prepare()
        lock_fd = self._lock_when_settled()
        try:
            identity = _read_own_identity()
            record = SupervisorRecord(
                pid=identity.pid,
                start_ticks=identity.start_ticks,
                boot_id=identity.boot_id,
                mode=mode,
                stack=stack,
                trimtab_version=__version__,
                started_at_s=time.time(),
            )
            _write_record(self.path, record)
        except BaseException:
            os.close(lock_fd)
            raise
        return HeldStateFolder(self.path, lock_fd, record)

    def _lock_when_settled(self) -> int:
        """The lock, for this process alone; one that ends just now gets the time to be gone."""
        deadline_s = time.monotonic() + _SETTLE_S
        while True:
            lock_fd, holder = self._try_lock()
            if lock_fd is not None:
                return lock_fd
            if time.monotonic() > deadline_s:
                raise _held_elsewhere(holder)
            time.sleep(_SETTLE_POLL_S)

    def _try_lock(self) -> tuple[int | None, SupervisorRecord | UnrecordedSupervisor | None]:
        """The descriptor of the lock, or None and who holds it."""
        path = self.path / LOCK_FILE
        lock_fd = -1
        try:
            lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if lock_fd >= 0:
                os.close(lock_fd)
            if error.errno != errno.EWOULDBLOCK:
                raise refused_path(error, path) from error
            return None, find_supervisor(self.path) or find_unrecorded(self.path)
        # One whose folder was deleted holds a lock that is not in this folder any more.
        other = find_unrecorded(self.path)
        if other is None:
            return lock_fd, None
        os.close(lock_fd)
        return None, other


def _held_elsewhere(holder: SupervisorRecord | UnrecordedSupervisor | None) -> EnvironmentMissingError:
    if holder is None:
        return EnvironmentMissingError(
            "the state folder is locked by a process that cannot be seen from here",
            hint=f"end it where it runs, or {BESIDE}",
        )
    return EnvironmentMissingError(
        f"the state folder is already supervised by {holder}",
        hint=f"trimtab down stops it; to run both, {BESIDE}",
    )


class HeldStateFolder:
    """The right to supervise; given back by ``release``, or by the kernel when the process ends."""

    def __init__(self, path: Path, lock_fd: int, record: SupervisorRecord) -> None:
        self._path = path
        self._lock_fd: int | None = lock_fd
        self._record = record

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def publish(self, *, host: str, port: int) -> None:
        """Say where the gateway listens."""
        self._record = replace(self._record, host=host, port=port)
        _write_record(self._path, self._record)

    def release(self) -> None:
        """Remove the record and unlock; idempotent. The lock file itself stays, or two could hold it."""
        if self._lock_fd is None:
            return
        with suppress(OSError):
            (self._path / _RECORD_FILE).unlink(missing_ok=True)
        os.close(self._lock_fd)
        self._lock_fd = None


def find_supervisor(state_dir: Path) -> SupervisorRecord | None:
    """The living supervisor of a state folder; None when there is none or its record is unusable."""
    try:
        document = json.loads((state_dir / _RECORD_FILE).read_bytes())
        record = _decode(document)
    except (OSError, ValueError, RecursionError):
        return None
    return record if is_alive(record.process) else None


async def stop_supervisor(record: SupervisorRecord | UnrecordedSupervisor, *, grace_s: float) -> bool:
    """SIGTERM it and wait; True when it left by itself, False when it had to be killed.

    After False its engines may be left: reap them. Raises EnvironmentMissingError when it belongs to
    another user or survives SIGKILL.
    """
    process = record.process
    try:
        send_signal(process, signal.SIGTERM)
        if await wait_gone([process], timeout_s=grace_s):
            return True
        send_signal(process, signal.SIGKILL)
    except PermissionError as error:
        raise EnvironmentMissingError(
            f"{record} belongs to another user", hint="run trimtab down as that user"
        ) from error
    if not await wait_gone([process], timeout_s=_KILL_WAIT_S):
        raise EnvironmentMissingError(
            f"{record} survives SIGKILL", hint="it hangs inside the kernel (driver or disk); see dmesg"
        )
    return False


def _read_own_identity() -> ProcessIdentity:
    identity = read_identity(os.getpid())
    if identity is None:
        raise EnvironmentMissingError(
            "/proc does not show this process", hint="mount /proc; trimtab runs on Linux only"
        )
    return identity


def _decode(document: Any) -> SupervisorRecord:
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the file is wrong, not the call
    texts = ("boot_id", "mode", "stack", "trimtab_version", "host")
    numbers = ("pid", "start_ticks", "started_at_s", "port")
    kinds: dict[str, Any] = {**dict.fromkeys(texts, str), **dict.fromkeys(numbers, (int, float))}
    values: dict[str, Any] = {name: document.get(name) for name in kinds}
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise ValueError(f"{name} is {values[name]!r}")  # noqa: TRY004
    if values["mode"] not in ("foreground", "detached"):
        raise ValueError(f"mode is {values['mode']!r}")
    return SupervisorRecord(**values)


def _write_record(state_dir: Path, record: SupervisorRecord) -> None:
    path = state_dir / _RECORD_FILE
    temporary = path.with_suffix(f".{record.pid}.tmp")
    try:
        temporary.write_text(json.dumps(asdict(record)))
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise refused_path(error, path) from error
