"""I/O. ``up`` and ``down MODEL`` against a trimtab that runs: changed in place, the rest serves on."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import click

from trimtab.cli.folders import Folders
from trimtab.cli.progress import Progress
from trimtab.core.plan import Plan
from trimtab.core.state import Action
from trimtab.errors import EnvironmentMissingError
from trimtab.launcher.control import send_request
from trimtab.launcher.reconcile import render_actions
from trimtab.launcher.state_folder import BESIDE, SupervisorRecord
from trimtab.runtimes.process_table import wait_gone
from trimtab.stackfile.plan_document import plan_to_document

__all__ = ["change_in_place", "check_changeable", "drop_model", "preview_change"]

# A killed process is seen as living until it has let go of everything.
_DEATH_S: Final = 0.5


def check_changeable(record: SupervisorRecord, plan: Plan) -> None:
    """EnvironmentMissingError unless the plan is one for the stack that runs, at the endpoint it has."""
    if record.stack != plan.stack:
        raise EnvironmentMissingError(
            f"stack {plan.stack} cannot start: the state folder is already supervised by {record}",
            hint=f"trimtab down stops that; if it is the same stack in a renamed file, write name:"
            f" {record.stack} into it; to run both, {BESIDE}",
        )
    if record.port and plan.gateway.port not in {0, record.port}:
        raise EnvironmentMissingError(
            f"the running stack {record.stack} listens on port {record.port}, and a port cannot change to"
            f" {plan.gateway.port} while it serves",
            hint=f"trimtab down, then up again; or leave the port as it is: --port {record.port}",
        )


def change_in_place(record: SupervisorRecord, plan: Plan, folders: Folders, *, as_json: bool) -> None:
    """Bring the running stack to ``plan``; returns when every change answers.

    Raises what the running trimtab failed with; replicas that did not have to change serve on.
    """
    request = {"command": "change", "plan": plan_to_document(plan)}
    result = _ask(record, request, folders, phase=f"changing the running stack (pid {record.pid})")
    _show(result, record, as_json=as_json)


def preview_change(
    record: SupervisorRecord, plan: Plan, folders: Folders
) -> tuple[tuple[Action, ...], list[str]]:
    """What ``change_in_place`` would do, as the running trimtab tells; nothing changes.

    With a line for each model that comes or goes without an action.
    """
    request = {"command": "preview", "plan": plan_to_document(plan)}
    result = _ask(record, request, folders, phase=f"asking the running trimtab (pid {record.pid})")
    return tuple(Action(**action) for action in result["actions"]), _quiet_changes(result)


def drop_model(record: SupervisorRecord, model: str, folders: Folders, *, as_json: bool) -> None:
    """Stop one model of the running stack, whose others serve on."""
    request = {"command": "drop", "model": model}
    result = _ask(record, request, folders, phase=f"stopping {model}")
    _show(result, record, as_json=as_json)


def _ask(
    record: SupervisorRecord, request: dict[str, Any], folders: Folders, *, phase: str
) -> dict[str, Any]:
    with Progress() as progress:
        progress.show_phase(phase)

        def show(event: dict[str, Any]) -> None:
            if event.get("kind") in {"exited", "backing_off", "failed"}:
                progress.note(f"{event['replica_id']}: {event['text']}")

        try:
            return asyncio.run(send_request(folders.state, request, show))
        except KeyboardInterrupt:
            progress.finish()
            click.echo(f"the change goes on in the running trimtab (pid {record.pid})", err=True)
            raise click.Abort from None
        except EnvironmentMissingError as error:
            progress.finish()
            if asyncio.run(wait_gone([record.process], timeout_s=_DEATH_S)):
                raise EnvironmentMissingError(
                    f"{record} has just ended, before it had answered",
                    hint="trimtab up again takes over the engines that run",
                ) from error
            raise


def _show(result: dict[str, Any], record: SupervisorRecord, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result | {"pid": record.pid}))
        return
    changed = [action for action in result["actions"] if action["kind"] != "keep"]
    click.echo(render_actions(Action(**action) for action in result["actions"]), nl=False)
    quiet = _quiet_changes(result)
    for line in quiet:
        click.echo(line)
    num_changed = len(changed) + len(quiet)
    done = f"{num_changed} changed" if num_changed else "nothing had to change"
    click.echo(f"{done}; serving at {result['endpoint']} (pid {record.pid})")


def _quiet_changes(result: dict[str, Any]) -> list[str]:
    """What changed without any engine's being touched: models that are away come and go so."""
    acted = {action["replica_id"].rpartition("/")[0] for action in result["actions"]}
    # A trimtab of an earlier version that runs tells of neither.
    added = [name for name in result.get("added", ()) if name not in acted]
    removed = [name for name in result.get("removed", ()) if name not in acted]
    return [
        *(f"{name} is served now: loaded when a request wants it" for name in added),
        *(f"{name} is no longer served: it was not loaded" for name in removed),
    ]
