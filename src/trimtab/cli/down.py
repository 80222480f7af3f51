"""I/O. ``trimtab down``: stops whatever of this user's state folder runs, and nothing else."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import click

from trimtab.cli.options import json_option

__all__ = ["down"]


@click.command(
    epilog="""\b
Examples:
  trimtab down
  trimtab down --timeout 5     less patience with requests in flight
"""
)
@click.option(
    "--timeout", "grace_s", type=click.FloatRange(min=0), default=45, show_default=True, metavar="SECONDS",
    help="How long requests in flight may take to finish before everything is killed.",
)  # fmt: skip
@json_option
def down(*, grace_s: float, as_json: bool) -> None:
    """Stop everything that trimtab started: a foreground `up` too, and leftovers of a killed one.

    Requests in flight are finished first. What trimtab did not start is never touched.
    """
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


async def _stop_everything(grace_s: float) -> dict[str, Any]:
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.cli.progress import Progress  # noqa: PLC0415
    from trimtab.launcher.apply import reap_leftovers  # noqa: PLC0415
    from trimtab.launcher.state_folder import find_supervisor, stop_supervisor  # noqa: PLC0415
    from trimtab.runtimes.local_process import LocalProcessRuntime  # noqa: PLC0415

    state = read_folders().state
    record = find_supervisor(state)
    is_clean = True
    with Progress() as progress:
        if record is not None:
            progress.show_phase(f"stopping trimtab (pid {record.pid})")
            is_clean = await stop_supervisor(record, grace_s=grace_s)
        runtime = LocalProcessRuntime(state, python=sys.executable)
        reaped = await reap_leftovers(runtime, grace_s=10)
    return {
        "supervisor_pid": record.pid if record is not None else None,
        "clean": is_clean,
        "reaped": [item.replica_id for item in reaped],
    }
