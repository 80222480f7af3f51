"""I/O. ``up -d``: the same run in a session of its own; returns when it is ready or has failed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from trimtab.cli.first_key import key_to_show, make_first_key
from trimtab.cli.folders import Folders
from trimtab.cli.join import serves_plan, wait_until_ready
from trimtab.cli.listeners import ready_document, ready_text
from trimtab.cli.progress import Progress
from trimtab.core.plan import Plan
from trimtab.errors import EngineStartError, EnvironmentMissingError, StackFileError, TrimtabError
from trimtab.launcher.state_folder import StateFolder, find_supervisor
from trimtab.stackfile.plan_document import plan_to_document

__all__ = ["start_detached"]

# What a person reads as a line of its own; everything else is a phase.
_TOLD: Final = frozenset({"planned", "adopted", "away", "exited", "backing_off", "replanned", "failed"})


def start_detached(plan: Plan, folders: Folders, *, start_timeout_s: float, as_json: bool) -> None:
    """Start a supervisor that outlives this command, wait until every model answers, print where.

    Raises what the supervisor failed with; then nothing of it is left.
    """
    running = find_supervisor(folders.state)
    if running is not None and asyncio.run(serves_plan(running, plan, folders)):
        url = asyncio.run(wait_until_ready(running, plan, timeout_s=start_timeout_s))
        shown = _Shown(plan, key_to_show(plan.gateway, folders, None), as_json=as_json)
        shown.show(url, pid=running.pid, how="was already serving")
        return
    made = make_first_key(plan.gateway, folders)
    state = StateFolder(folders.state)
    state.prepare()
    log_path = state.logs / "trimtab.log"
    read_fd, write_fd = os.pipe()
    argv = [sys.executable, "-m", "trimtab", "up", "--plan", "-", "--ready-fd", str(write_fd)]
    argv += ["--timeout", str(start_timeout_s)]
    try:
        with log_path.open("ab") as log:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(write_fd,),
                start_new_session=True,
            )
    except OSError as error:
        os.close(read_fd)
        raise EnvironmentMissingError(f"{log_path} cannot be written: {error.strerror}") from error
    finally:
        os.close(write_fd)
    _send_plan(child, plan)
    with os.fdopen(read_fd, "rb") as reports, Progress() as progress:
        try:
            url = _wait_ready(reports, progress, child, log_path=str(log_path))
        except KeyboardInterrupt:
            progress.finish()
            click.echo("still starting in the background; `trimtab down` stops it", err=True)
            raise click.Abort from None
    shown = _Shown(plan, key_to_show(plan.gateway, folders, made), made_key=made, as_json=as_json)
    shown.show(url, pid=child.pid, how="serving")
    # Not our child to wait for any more: it outlives this process on purpose.
    child.returncode = 0


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is told of a run in the background, with ``key`` in the examples."""

    plan: Plan
    key: str | None
    made_key: str | None = None
    as_json: bool = False

    def show(self, url: str, *, pid: int, how: str) -> None:
        if self.as_json:
            click.echo(json.dumps(ready_document(self.plan, url, made_key=self.made_key) | {"pid": pid}))
        else:
            text = ready_text(self.plan, url, key=self.key)
            click.echo(f"\n{text}\n{how} in the background (pid {pid}); `trimtab down` stops it")


def _send_plan(child: subprocess.Popen[bytes], plan: Plan) -> None:
    if child.stdin is None:  # pragma: no cover - a pipe was asked for
        return
    try:
        child.stdin.write(json.dumps(plan_to_document(plan)).encode())
        child.stdin.close()
    except BrokenPipeError:
        pass  # it died already; the reports below say so


def _wait_ready(
    reports: Iterator[bytes], progress: Progress, child: subprocess.Popen[bytes], *, log_path: str
) -> str:
    for line in reports:
        report = json.loads(line)
        if report["event"] == "ready":
            return str(report["url"])
        if report["event"] == "failed":
            child.wait()
            raise _to_error(report["error"])
        if report["kind"] in {"planned", "started", "loading", "adopted"}:
            progress.show_phase(report["phase"])
        if report["text"] and report["kind"] in _TOLD:
            progress.note(report["text"])
    code = child.wait()
    if code < 0:
        raise EngineStartError(
            f"the background run was killed by {signal.Signals(-code).name} before it was ready",
            hint="trimtab up again takes over the engines that run, trimtab down stops them",
        )
    raise EngineStartError(
        f"the background run ended with exit code {code} before it was ready", hint=f"see {log_path}"
    )


def _to_error(document: dict[str, Any]) -> TrimtabError:
    """The child's failure as an exception of this process, with the same exit code."""
    if document["kind"] == EngineStartError.__name__:
        return EngineStartError(
            document["message"], hint=document["hint"], log_tail=tuple(document["log_tail"])
        )
    for kind in (EnvironmentMissingError, StackFileError):
        if document["kind"] == kind.__name__:
            return kind(document["message"], hint=document["hint"])
    return TrimtabError(document["message"], hint=document["hint"])
