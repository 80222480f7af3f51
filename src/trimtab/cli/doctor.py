"""I/O. ``trimtab doctor``: what this machine lacks, each finding with its fix."""

from __future__ import annotations

import dataclasses
import json

import click

from trimtab.cli.options import json_option

__all__ = ["doctor"]


@click.command(
    epilog="""\b
Examples:
  trimtab doctor
  trimtab doctor --port 8080 --json
"""
)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Port to check.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, port: int, as_json: bool) -> None:
    """Look at memory, engine, model, folders, port and leftovers; starts and changes nothing.

    Exit code 4 when something would keep `trimtab up` from working.
    """
    import asyncio  # noqa: PLC0415 - keeps --help quick

    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.cli.machine import read_machine_facts  # noqa: PLC0415
    from trimtab.cli.render import render_findings  # noqa: PLC0415
    from trimtab.planner.preflight import check_machine  # noqa: PLC0415

    facts = asyncio.run(read_machine_facts(read_folders(), port=port))
    findings = check_machine(facts)
    if as_json:
        click.echo(json.dumps({"findings": [dataclasses.asdict(item) for item in findings]}, indent=2))
    else:
        click.echo(render_findings(findings))
    if any(item.severity == "error" for item in findings):
        ctx.exit(4)
