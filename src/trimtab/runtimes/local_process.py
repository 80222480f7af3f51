"""I/O. Replicas as processes of this machine, each under a guard; facts come from /proc and run records."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from trimtab.core.state import ExitStatus, ObservedReplica, ReplicaSpec
from trimtab.errors import EngineStartError, EnvironmentMissingError
from trimtab.runtimes.guarded_start import StartedGuard, start_guarded
from trimtab.runtimes.process_table import (
    ProcessIdentity,
    is_alive,
    list_marked,
    read_mark,
    read_tree_rss_bytes,
    send_signal,
    wait_gone,
)
from trimtab.runtimes.run_record import (
    RunRecord,
    encode_file_name,
    read_exit_status,
    read_record,
    remove_record,
    replica_id_of,
)
from trimtab.runtimes.state_layout import log_path_of, make_folders, replicas_dir_of

__all__ = ["LocalProcessRuntime"]

# After SIGKILL only a process inside a system call that cannot be interrupted remains.
_KILL_WAIT_S = 10.0
# Each round kills everything alive at its beginning; only something that forks without end needs more.
_MAX_KILL_ROUNDS = 100
_LOG_TAIL_BYTES = 64 * 1024
# How often, and how far apart, nothing must be found before a killed start counts as gone.
_EMPTY_LOOKS = 2
_LOOK_AGAIN_S = 0.005


class LocalProcessRuntime:
    """Runs engines under guards; remembers nothing that another process could not find again."""

    def __init__(self, state_dir: Path, *, python: str) -> None:
        self._state_dir = state_dir
        self._replicas_dir = replicas_dir_of(state_dir)
        self._python = python
        # Our own children: their lifelines must stay open and their ends must be collected.
        self._guards: dict[str, StartedGuard] = {}

    async def start_replica(self, spec: ReplicaSpec) -> ObservedReplica:
        """Start and return at once, before the engine is ready; see the Runtime protocol."""
        folder = self._folder_of(spec.replica_id)
        if self._read_living_engine(folder) is not None:
            raise EngineStartError(f"replica {spec.replica_id} runs already", hint="stop it first")
        await self.stop_replica(spec.replica_id, grace_s=0)
        log_path = log_path_of(self._state_dir, spec.model)
        make_folders(self._state_dir, log_path.parent, folder)
        try:
            self._guards[spec.replica_id] = await start_guarded(
                spec, python=self._python, folder=folder, log_path=log_path
            )
        except BaseException:  # also when cancelled
            self._kill_now(folder)
            remove_record(folder)
            raise
        record = read_record(folder)
        if record is None:
            await self.stop_replica(spec.replica_id, grace_s=0)
            raise EnvironmentMissingError(
                f"the run record of replica {spec.replica_id} vanished from {folder}",
                hint="let nothing else write into the state folder",
            )
        return _observe(record)

    def _kill_now(self, folder: Path) -> None:
        """Kill what carries the mark and wait for it: a killed process is seen for a few ms more.

        Blocks, bounded, because it runs while a cancelled start unwinds. Twice nothing is asked for:
        inside exec a process shows no environment for a moment.
        """
        deadline_s, num_empty = time.monotonic() + _KILL_WAIT_S, 0
        while num_empty < _EMPTY_LOOKS and time.monotonic() < deadline_s:
            marked = list_marked(self._replicas_dir).get(folder.name, ())
            num_empty = 0 if marked else num_empty + 1
            for identity in marked:
                send_signal(identity, signal.SIGKILL)
            time.sleep(_LOOK_AGAIN_S)

    async def list_replicas(self) -> tuple[ObservedReplica, ...]:
        """Everything of this state folder that runs, or ended without being stopped."""
        marked = list_marked(self._replicas_dir)
        try:
            names = {path.name for path in self._replicas_dir.iterdir() if path.is_dir()}
        except OSError:
            names = set()
        observed = (
            _observe_folder(self._replicas_dir / name, marked) for name in sorted(names | set(marked))
        )
        return tuple(replica for replica in observed if replica is not None)

    async def wait_exit(self, replica_id: str) -> ExitStatus:
        """Return when the replica has ended, started here or adopted; unknown status without a record."""
        folder = self._folder_of(replica_id)
        record = read_record(folder)
        if record is None:
            return ExitStatus(code=None)
        engine = self._read_living_engine(folder)
        if engine is not None:
            await wait_gone([engine])
        if _is_marked(record.guard_process, folder):
            await wait_gone([record.guard_process], timeout_s=_KILL_WAIT_S)  # it sweeps, then says how
        return read_exit_status(folder)

    async def stop_replica(self, replica_id: str, *, grace_s: float) -> None:
        """SIGTERM, wait, kill; afterwards no process and no record of it is left. Idempotent.

        Raises EnvironmentMissingError naming the pids when something survives SIGKILL.
        """
        folder = self._folder_of(replica_id)
        record = read_record(folder)
        if record is not None and _is_marked(record.guard_process, folder):
            await _stop_by_guard(record.guard_process, grace_s=grace_s)
        await self._kill_marked(folder)
        remove_record(folder)
        own_guard = self._guards.pop(replica_id, None)
        if own_guard is not None:
            own_guard.release()

    def read_log_tail(self, replica_id: str, *, max_lines: int) -> tuple[str, ...]:
        """The last lines that this run of the engine wrote, oldest first."""
        record = read_record(self._folder_of(replica_id))
        if record is None:
            return ()
        try:
            with Path(record.log_path).open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                begin = record.log_offset if record.log_offset <= end and not _is_cut(record) else 0
                file.seek(max(begin, end - _LOG_TAIL_BYTES))
                text = file.read(_LOG_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ()
        return tuple(text.splitlines()[-max_lines:])

    def _folder_of(self, replica_id: str) -> Path:
        return self._replicas_dir / encode_file_name(replica_id)

    def _read_living_engine(self, folder: Path) -> ProcessIdentity | None:
        """The engine's process, proven by record, start time and mark alike."""
        record = read_record(folder)
        if record is None or not _is_marked(record.engine_process, folder):
            return None
        return record.engine_process

    async def _kill_marked(self, folder: Path) -> None:
        """Kill what carries this folder's mark, again and again until nothing does."""
        rounds = 0
        while leftovers := list_marked(self._replicas_dir).get(folder.name, ()):
            for identity in leftovers:
                send_signal(identity, signal.SIGKILL)
            rounds += 1
            if not await wait_gone(leftovers, timeout_s=_KILL_WAIT_S) or rounds > _MAX_KILL_ROUNDS:
                pids = ", ".join(str(identity.pid) for identity in leftovers)
                raise EnvironmentMissingError(
                    f"processes {pids} of replica {replica_id_of(folder.name)} survive SIGKILL",
                    hint="they hang inside the kernel (driver or disk); see dmesg",
                )


def _is_cut(record: RunRecord) -> bool:
    """Whether the log's beginning was moved elsewhere since this run began (launcher.log_rotation)."""
    try:
        return Path(f"{record.log_path}.1").stat().st_mtime > record.started_at_s
    except OSError:
        return False


def _is_marked(process: ProcessIdentity, folder: Path) -> bool:
    """Whether exactly this process lives and carries the folder's mark."""
    return is_alive(process) and read_mark(process.pid) == str(folder)


async def _stop_by_guard(process: ProcessIdentity, *, grace_s: float) -> None:
    """Ask the guard, then press it; what it cannot do any more is left to the caller."""
    if grace_s > 0:
        send_signal(process, signal.SIGTERM)
        if await wait_gone([process], timeout_s=grace_s):
            return
    send_signal(process, signal.SIGQUIT)
    await wait_gone([process], timeout_s=_KILL_WAIT_S / 4)


def _observe_folder(folder: Path, marked: dict[str, tuple[ProcessIdentity, ...]]) -> ObservedReplica | None:
    living = marked.get(folder.name, ())
    record = read_record(folder)
    if record is None:
        return _observe_without_record(folder, living) if living else None
    if record.engine_process in living:
        return _observe(record, rss_bytes=read_tree_rss_bytes(record.engine_pid))
    return _observe(record, exit_status=read_exit_status(folder))


def _observe_without_record(folder: Path, living: tuple[ProcessIdentity, ...]) -> ObservedReplica:
    """Processes of ours whose record is lost: enough to show and stop them, never to adopt them."""
    replica_id = replica_id_of(folder.name)
    return ObservedReplica(
        replica_id=replica_id,
        stack="",
        model=replica_id,
        engine="",
        config_hash="",
        pid=min(identity.pid for identity in living),
        port=0,
        base_url="",
        started_at_s=0.0,
        log_path="",
        dies_with_supervisor=False,
    )


def _observe(
    record: RunRecord, *, rss_bytes: int | None = None, exit_status: ExitStatus | None = None
) -> ObservedReplica:
    return ObservedReplica(
        replica_id=record.replica_id,
        stack=record.stack,
        model=record.model,
        engine=record.engine,
        config_hash=record.config_hash,
        pid=record.engine_pid,
        port=record.port,
        base_url=f"http://127.0.0.1:{record.port}",
        started_at_s=record.started_at_s,
        log_path=record.log_path,
        dies_with_supervisor=record.dies_with_supervisor,
        predicted_bytes=record.predicted_bytes,
        max_model_len=record.max_model_len,
        rss_bytes=rss_bytes,
        exit_status=exit_status,
    )
