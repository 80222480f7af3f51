"""I/O. Who hears what a serving plan does: a terminal, or the parent of a detached run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from datetime import datetime
from typing import Any

import click

from trimtab.cli.failure import failure_document
from trimtab.cli.first_key import key_to_show
from trimtab.cli.folders import Folders
from trimtab.cli.progress import Progress
from trimtab.cli.render import render_embedding_snippets, render_ranking_snippets, render_snippets
from trimtab.core.plan import Plan
from trimtab.errors import TrimtabError
from trimtab.launcher.reconcile import NOTHING_RUNS
from trimtab.launcher.specs import has_embeddings, is_ranking
from trimtab.launcher.supervise import SupervisorEvent
from trimtab.units import format_duration_s

__all__ = ["PipeListener", "TerminalListener", "ready_document", "ready_text", "starting_text"]


def ready_text(plan: Plan, url: str, *, key: str | None) -> str:
    """What people read once every model has answered: endpoint, curl line, SDK program."""
    ranking = {model.name for model in plan.models if is_ranking(model)}
    embedding = {model.name for model in plan.models if has_embeddings(model)} - ranking
    names = _names(plan)
    chatting = next((name for name in names if name not in ranking | embedding), None)
    if chatting is not None:
        return render_snippets(url, chatting, key=key)
    first = next((name for name in names if name in embedding), None)
    if first is not None:
        return render_embedding_snippets(url, first, key=key)
    return render_ranking_snippets(url, names[0], key=key)


def ready_document(plan: Plan, url: str, *, made_key: str | None) -> dict[str, Any]:
    """The same as plain JSON data, with the key that was made for it."""
    document = {"endpoint": f"{url}/v1", "models": _names(plan), "ready": True}
    return document if made_key is None else document | {"key": made_key}


def _names(plan: Plan) -> list[str]:
    """Every model that is served, those that trimtab runs first."""
    return [*(model.name for model in plan.models), *(model.name for model in plan.externals)]


def starting_text(model: str, phase: str, expected_s: float | None) -> str:
    """What a waiting person reads: the part of the start, and how long a whole one took before."""
    part = f": {phase.partition(' ')[0]}" if phase else ""
    usual = f" (took {format_duration_s(expected_s)} before)" if expected_s and expected_s >= 1 else ""
    return f"starting {model}{part}{usual}"


def _is_plain_start(event: SupervisorEvent) -> bool:
    """Nothing more than that it starts, which its phase says."""
    return event.kind == "planned" and event.text == f"start: {NOTHING_RUNS}"


def _log(text: str) -> None:
    """A line on stderr. A full disk or a reader that left must not disturb what is supervised."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def _log_at(text: str) -> None:
    """The same with the time: a log is read long after it was written."""
    _log(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {text}")


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"


class TerminalListener:
    """Prints phases while starting, then the endpoint, then whatever happens to an engine."""

    def __init__(self, plan: Plan, folders: Folders, *, as_json: bool, made_key: str | None = None) -> None:
        """``made_key`` is the key that was made for this run, None where there was no need."""
        self._plan = plan
        self._folders = folders
        self._made_key = made_key
        self._as_json = as_json
        self._progress = Progress()
        self._is_serving = False

    def on_event(self, event: SupervisorEvent) -> None:
        """Show one event; before the first readiness as a phase, later as a line."""
        if self._is_serving:
            self._say(f"{event.replica_id}: {event.text}")
        elif event.kind in {"planned", "started", "loading", "adopted"}:
            self._progress.show_phase(starting_text(event.model, event.phase, event.expected_s))
            if event.kind in {"planned", "adopted"} and not _is_plain_start(event):
                self._progress.note(f"{event.replica_id}: {event.text}")
        elif event.kind != "ready":
            self._progress.note(f"{event.replica_id}: {event.text}")

    def on_away(self, model: str, reason: str) -> None:
        """A line for each, above the endpoint."""
        self._progress.note(f"{model}: {reason} (it is asked again every second)")

    def on_ready(self, url: str) -> None:
        """Print where the endpoint is and how to use it."""
        self._progress.finish()
        self._is_serving = True
        if self._as_json:
            click.echo(json.dumps(ready_document(self._plan, url, made_key=self._made_key)))
        else:
            key = key_to_show(self._plan.gateway, self._folders, self._made_key)
            click.echo(f"\n{ready_text(self._plan, url, key=key)}\nserving; Ctrl-C stops it")
        sys.stdout.flush()

    def on_stopping(self, num_in_flight: int) -> None:
        """Say what is being waited for."""
        rest = f", finishing {_requests(num_in_flight)} (again to hurry)" if num_in_flight else ""
        self._say(f"stopping{rest}")

    def on_end(self, error: TrimtabError | None) -> None:
        """Serving is over, with or without a failure; the failure itself is printed by the caller."""
        self._progress.finish()
        if error is None and self._is_serving:
            self._say("stopped")

    def _say(self, text: str) -> None:
        _log(text)


class PipeListener:
    """Writes one JSON line per happening to the pipe of the ``up -d`` that waits for readiness."""

    def __init__(self, ready_fd: int) -> None:
        self._fd: int | None = ready_fd

    def on_event(self, event: SupervisorEvent) -> None:
        """Pass the event on while somebody waits; the log always gets it."""
        _log_at(f"{event.replica_id}: {event.kind}: {event.text}")
        self._write(
            {
                "event": "phase",
                "kind": event.kind,
                "text": "" if _is_plain_start(event) else f"{event.replica_id}: {event.text}",
                "phase": starting_text(event.model, event.phase, event.expected_s),
            }
        )

    def on_away(self, model: str, reason: str) -> None:
        """Log it, and pass it on."""
        text = f"{model}: {reason}"
        _log_at(text)
        self._write({"event": "phase", "kind": "away", "text": text, "phase": text})

    def on_ready(self, url: str) -> None:
        """Tell the parent where the endpoint is, and let it go."""
        _log_at(f"ready at {url}/v1")
        self._write({"event": "ready", "url": url})
        self._close()

    def on_stopping(self, num_in_flight: int) -> None:
        """Log it."""
        _log_at(f"stopping, {_requests(num_in_flight)} in flight")

    def on_end(self, error: TrimtabError | None) -> None:
        """Report a failure to the parent that still waits."""
        if error is not None:
            _log_at(f"ended: {error.message}")
            self._write({"event": "failed", "error": failure_document(error)})
        self._close()

    def _write(self, document: dict[str, Any]) -> None:
        if self._fd is None:
            return
        try:
            os.write(self._fd, json.dumps(document).encode() + b"\n")
        except OSError:
            # The waiting `up -d` left (Ctrl-C): the run goes on without it.
            self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
