"""I/O. ``trimtab plan``: what would run, what it takes and why; starts nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from trimtab.cli.options import json_option, wish_from, wish_options
from trimtab.core.plan import Plan

__all__ = ["plan"]


@click.command(
    epilog="""\b
Examples:
  trimtab plan                             the embedded default on this machine
  trimtab plan ./model.gguf --explain      each setting with its origin and reason
  trimtab plan m.gguf --context 32768 --set cache_type_k=q8_0
  trimtab plan stack.yaml --json           the plan as data
  trimtab plan stack.yaml --out p.json     save it; run it with: trimtab up --plan p.json
"""
)
@wish_options
@click.option("--explain", is_flag=True, help="Show every setting with its origin, and the command.")
@click.option("--out", metavar="FILE", help="Save the plan for: trimtab up --plan FILE.")
@json_option
@click.pass_context
def plan(ctx: click.Context, /, *, explain: bool, out: str | None, as_json: bool, **wish_values: Any) -> None:
    """Plan MODEL or STACK.yaml for this machine and say whether it fits (exit code 3 if not)."""
    from trimtab.cli.deployment import make_plan  # noqa: PLC0415 - keeps --help quick
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.cli.progress import Progress  # noqa: PLC0415
    from trimtab.cli.render import render_explanation, render_plan  # noqa: PLC0415
    from trimtab.stackfile.plan_document import plan_to_document  # noqa: PLC0415

    with Progress() as progress:
        made = make_plan(wish_from(wish_values), read_folders(), progress)
    document = json.dumps(plan_to_document(made), indent=2)
    if out is not None:
        _save(out, document)
    if as_json:
        click.echo(document)
    else:
        click.echo(render_plan(made))
        if explain:
            click.echo(render_explanation(made))
    ctx.exit(_exit_code(made))


def _save(file: str, document: str) -> None:
    from trimtab.errors import EnvironmentMissingError  # noqa: PLC0415

    try:
        Path(file).write_text(document + "\n", encoding="utf-8")
    except OSError as error:
        raise EnvironmentMissingError(
            f"{file} cannot be written: {(error.strerror or str(error)).lower()}"
        ) from error
    click.echo(f"plan saved to {file}", err=True)


def _exit_code(made: Plan) -> int:
    return 0 if made.fits else 3
