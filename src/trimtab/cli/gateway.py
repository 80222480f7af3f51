"""I/O. ``trimtab gateway``: the one endpoint alone, in front of models that somebody else runs."""

from __future__ import annotations

from pathlib import Path

import click

from trimtab.cli.options import Number, json_option

__all__ = ["gateway"]


@click.command(
    epilog="""\b
Examples:
  trimtab gateway stack.yaml
  trimtab gateway stack.yaml --port 8080
\b
A stack of endpoints:
  models:
    qwen: {url: "http://127.0.0.1:8001/v1", family: qwen3.5, thinking: off}
"""
)
@click.argument("stack", metavar="STACK.yaml")
@click.option("--host", metavar="ADDRESS", help="Address the endpoint listens on [127.0.0.1].")
@click.option(
    "--port",
    type=Number(min=0, max=65535),
    metavar="N",
    help="Port of the endpoint; 0 takes a free one.",
)
@json_option
def gateway(*, stack: str, host: str | None, port: int | None, as_json: bool) -> None:
    """Serve the models of STACK.yaml that have a url at one endpoint; starts no engine.

    Thinking, reasoning fields and repairs are as for models that trimtab runs. The endpoints are judged
    by their model list and by live traffic, never by a generation.
    """
    from trimtab.cli.first_key import make_first_key  # noqa: PLC0415 - keeps --help quick
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.cli.listeners import TerminalListener  # noqa: PLC0415
    from trimtab.cli.options import Wish  # noqa: PLC0415
    from trimtab.cli.running_stack import ServeOptions  # noqa: PLC0415
    from trimtab.cli.serve import run_serve  # noqa: PLC0415
    from trimtab.cli.wished_stack import gateway_of  # noqa: PLC0415
    from trimtab.core.plan import Plan  # noqa: PLC0415
    from trimtab.errors import StackFileError  # noqa: PLC0415
    from trimtab.stackfile.read import read_stack  # noqa: PLC0415

    wished = read_stack(Path(stack))
    started = [model.name for model in wished.models if model.url is None]
    if started:
        raise StackFileError(
            f"{stack}: models.{started[0]} has a checkpoint, and gateway starts no engine",
            hint=f"trimtab up {stack} starts it and fronts the others too",
        )
    plan = Plan(
        stack=wished.name,
        fits=True,
        models=(),
        gateway=gateway_of(wished.gateway, Wish(target=stack, host=host, port=port)),
        externals=wished.models,
    )
    folders = read_folders()
    options = ServeOptions(folders=folders, mode="foreground", start_timeout_s=60)
    made = make_first_key(plan.gateway, folders)
    run_serve(plan, options, TerminalListener(plan, folders, as_json=as_json, made_key=made))
