"""I/O. ``trimtab doctor``: what this machine lacks, each finding with its fix."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from trimtab.cli.options import json_option

if TYPE_CHECKING:
    from trimtab.core.stack import EngineName

__all__ = ["doctor"]


@click.command(
    epilog="""\b
Examples:
  trimtab doctor
  trimtab doctor --port 8080 --json
  trimtab doctor --engine vllm --engine-version 0.25.1
  trimtab doctor --copies
"""
)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Port to check.")
@click.option(
    "--engine",
    type=click.Choice(("vllm", "llama_cpp")),
    help="Engine that is to run: what stops it is an error, the rest a warning [what is installed].",
)
@click.option(
    "--engine-version",
    "vllm_version",
    metavar="V",
    default="",
    help="vLLM's version to hold driver and cards against [the one installed].",
)
@click.option(
    "--copies",
    "tries_copies",
    is_flag=True,
    help="Copy between idle GPUs and compare; takes some hundred MB of each for seconds.",
)
@json_option
@click.pass_context
def doctor(
    ctx: click.Context, *, port: int, engine: EngineName | None, vllm_version: str, tries_copies: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Look at memory, GPUs, engines, Docker, folders, port and leftovers; starts and changes nothing.

    Exit code 4 when something would keep `trimtab up` from working.
    """
    import asyncio  # noqa: PLC0415 - keeps --help quick

    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.cli.machine import DoctorWish, read_machine_facts  # noqa: PLC0415
    from trimtab.cli.render import render_findings  # noqa: PLC0415
    from trimtab.planner.preflight import check_machine  # noqa: PLC0415
    from trimtab.planner.vllm_versions import find_version  # noqa: PLC0415

    if vllm_version:
        vllm_version = find_version(vllm_version).version
    wish = DoctorWish(port=port, engine=engine, vllm_version=vllm_version, tries_copies=tries_copies)
    facts = asyncio.run(read_machine_facts(read_folders(), wish))
    findings = check_machine(facts)
    if as_json:
        click.echo(json.dumps({"findings": [dataclasses.asdict(item) for item in findings]}, indent=2))
    else:
        click.echo(render_findings(findings))
    if any(item.severity == "error" for item in findings):
        ctx.exit(4)
