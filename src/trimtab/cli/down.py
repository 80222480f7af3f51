"""I/O. ``trimtab down``: stops whatever of this user's state folder runs, and nothing else."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import click

from trimtab.cli.options import complete_by, json_option

__all__ = ["down"]


@click.command(
    epilog="""\b
Examples:
  trimtab down
  trimtab down qwen3.5-27b     one model; the others serve on
  trimtab down --timeout 5     less patience with requests in flight
"""
)
@click.argument("model", required=False, shell_complete=complete_by("complete_target"))
@click.option(
    "--timeout", "grace_s", type=click.FloatRange(min=0), default=45, show_default=True, metavar="SECONDS",
    help="How long requests in flight may take to finish before everything is killed.",
)  # fmt: skip
@json_option
def down(*, model: str | None, grace_s: float, as_json: bool) -> None:
    """Stop everything that trimtab started, or one MODEL: foreground and background, and leftovers too.

    Requests in flight are finished first. What trimtab did not start is never touched.
    """
    if model is not None:
        _drop(model, as_json=as_json)
        return
    document = asyncio.run(_stop_everything(grace_s))
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    if document["supervisor_pid"]:
        how = "stopped" if document["clean"] else "did not stop in time and was killed"
        click.echo(f"trimtab (pid {document['supervisor_pid']}) {how}")
    for replica in document["reaped"]:
        click.echo(f"stopped {replica}, left over from a run that had ended")
    if not document["supervisor_pid"] and not document["reaped"]:
        click.echo("nothing was running")


def _drop(model: str, *, as_json: bool) -> None:
    """Stop one model of the stack that runs."""
    from trimtab.cli.change import drop_model  # noqa: PLC0415
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.errors import StackFileError  # noqa: PLC0415
    from trimtab.launcher.state_folder import find_supervisor  # noqa: PLC0415

    folders = read_folders()
    record = find_supervisor(folders.state)
    if record is None:
        raise StackFileError(f"no stack is running, so {model!r} is not", hint="trimtab status shows what is")
    drop_model(record, model, folders, as_json=as_json)


async def _stop_everything(grace_s: float) -> dict[str, Any]:
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.cli.progress import Progress  # noqa: PLC0415
    from trimtab.errors import EnvironmentMissingError  # noqa: PLC0415
    from trimtab.launcher.apply import reap_leftovers  # noqa: PLC0415
    from trimtab.launcher.state_folder import find_supervisor, stop_supervisor  # noqa: PLC0415
    from trimtab.launcher.supervisor_search import find_unrecorded  # noqa: PLC0415
    from trimtab.runtimes.routed import RoutedRuntime  # noqa: PLC0415

    state = read_folders().state
    # While one lives it would start again whatever is stopped here.
    record = find_supervisor(state) or find_unrecorded(state)
    is_clean = True
    with Progress() as progress:
        if record is not None:
            progress.show_phase(f"stopping trimtab (pid {record.pid})")
            is_clean = await stop_supervisor(record, grace_s=grace_s)
        runtime = RoutedRuntime(state, python=sys.executable)
        reaped = await reap_leftovers(runtime, grace_s=10)
    left = find_unrecorded(state)
    if left is not None:
        raise EnvironmentMissingError(
            f"process {left.pid} supervises {state} still, and starts again what was stopped",
            hint=f"trimtab down again, or: kill {left.pid}",
        )
    return {
        "supervisor_pid": record.pid if record is not None else None,
        "clean": is_clean,
        "reaped": [item.replica_id for item in reaped],
    }
