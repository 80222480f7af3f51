"""I/O. ``trimtab plan``: what would run, what it takes and why; starts nothing."""

from __future__ import annotations

from typing import Any

import click

from trimtab.cli.options import json_option, wish_from, wish_options
from trimtab.cli.plan_output import EMIT_FORMS, PlanOutput

__all__ = ["plan"]


@click.command(
    epilog="""\b
Examples:
  trimtab plan                             the embedded default on this machine
  trimtab plan Qwen/Qwen3.5-35B-A3B-FP8 --gpus 4xrtx4090 --context 262144 --concurrency 4
  trimtab plan stack.yaml --gpus 2xrtx5090,1xrtx3090 --explain
  trimtab plan stack.yaml --emit docker    what a careful operator would paste
  trimtab plan --from run.sh --gpus 4xrtx4090   judge a launch script flag by flag
  trimtab plan stack.yaml --json           the plan as data
  trimtab plan stack.yaml --out p.json     save it; run it with: trimtab up --plan p.json
"""
)
@wish_options
@click.option("--explain", is_flag=True, help="Show every setting with its origin, and the command.")
@click.option(
    "--from",
    "from_file",
    metavar="FILE",
    help="Judge a vllm serve or docker run line, a script or a compose file; - reads standard input.",
)
@click.option(
    "--emit",
    type=click.Choice(EMIT_FORMS),
    help="Print what starts the plan instead of the plan.",
)
@click.option(
    "--workload",
    metavar="SPEC",
    help="What speed is estimated for, e.g. isl=8192,osl=1024,concurrency=64 [one user, 1,024 in, 512 out].",
)
@click.option("--out", metavar="FILE", help="Save the plan for: trimtab up --plan FILE.")
@json_option
@click.pass_context
def plan(ctx: click.Context, /, *, from_file: str | None, **values: Any) -> None:
    """Plan MODEL or STACK.yaml for this machine or --gpus and say whether it fits (exit code 3 if not)."""
    from trimtab.cli.folders import read_folders  # noqa: PLC0415 - keeps --help quick
    from trimtab.cli.progress import Progress  # noqa: PLC0415

    output = PlanOutput(
        explain=values.pop("explain"), emit=values.pop("emit"), out=values.pop("out"),
        as_json=values.pop("as_json"),
    )  # fmt: skip
    output.check()
    wish = wish_from(values)
    with Progress() as progress:
        if from_file is not None:
            from trimtab.cli.foreign_plan import check_file  # noqa: PLC0415

            checked = check_file(from_file, wish, read_folders(), progress)
            made = checked.check.plan
        else:
            from trimtab.cli.deployment import make_plan  # noqa: PLC0415

            checked, made = None, make_plan(wish, read_folders(), progress, is_elsewhere=True)
    output.show(made, checked)
    ctx.exit(checked.exit_code if checked is not None else 0 if made.fits else 3)
