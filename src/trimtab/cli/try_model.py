"""I/O. ``trimtab try``: start real vLLM with dummy weights, measure, and set it beside what was predicted."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trimtab.cli.options import json_option, model_options, wish_from
from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.units import parse_duration_s

if TYPE_CHECKING:
    from trimtab.bench.try_result import TriedModel
    from trimtab.cli.folders import Folders

__all__ = ["try_model"]

_INTERRUPTED = 130


@click.command(
    name="try",
    epilog="""\b
Examples:
  trimtab try Qwen/Qwen3.5-27B-FP8                    before its 29 GB are downloaded
  trimtab try stack.yaml --budget 30m                 every model of a stack, one after the other
  trimtab try ./config.json --context 32768 --concurrency 8
  trimtab try Qwen/Qwen3-8B --set gpu_memory_utilization=0.17   the budget of a smaller card
  trimtab try Qwen/Qwen3-8B --out result.json --json  keep it, e.g. for docs/accuracy.md
""",
)
@model_options
@click.option(
    "--budget", default="15m", show_default=True, metavar="TIME",
    help="For starting and measuring together, e.g. 90s, 15m or 1h; the most telling loads come first.",
)  # fmt: skip
@click.option("--out", metavar="FILE", help="Write the result there as well.")
@json_option
@click.pass_context
def try_model(ctx: click.Context, /, *, budget: str, out: str | None, as_json: bool, **values: Any) -> None:
    """Prove MODEL or STACK.yaml on this machine's cards before anything is downloaded.

    Only config and tokenizer are fetched. vLLM starts with random weights; its memory and its speed are
    measured, kept for later plans, and printed beside what was predicted. Ctrl-C leaves nothing behind
    and keeps what was found.
    """
    from trimtab.cli.folders import read_folders  # noqa: PLC0415 - keeps --help quick

    budget_s = _decode_budget(budget)
    if out is not None and not Path(out).parent.is_dir():
        raise StackFileError(f"--out {out}: its folder does not exist")
    wish = wish_from({"replicas": None, "ram": None, "host": None, "port": None} | values)
    ctx.exit(_Try(read_folders(), budget_s=budget_s, out=out, as_json=as_json).run(wish))


def _decode_budget(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise StackFileError(f"--budget: {error}") from None


class _Try:
    """One command: prepares, measures, writes after every step, shows."""

    def __init__(self, folders: Folders, *, budget_s: float, out: str | None, as_json: bool) -> None:
        self._folders, self._budget_s = folders, budget_s
        self._out, self._as_json = out, as_json
        self._began = dt.datetime.now(dt.UTC)
        self._file = folders.state / "try" / "results" / f"{self._began:%Y-%m-%dT%H%M%SZ}.json"

    def run(self, wish: Any) -> int:
        """The exit code: 0, 5 when an engine failed, 130 after a signal."""
        from trimtab.cli.progress import Progress  # noqa: PLC0415
        from trimtab.cli.render import render_plan  # noqa: PLC0415
        from trimtab.cli.render_try import render_tried  # noqa: PLC0415
        from trimtab.cli.try_prepare import plan_again, prepare_try  # noqa: PLC0415
        from trimtab.cli.try_session import TrySession  # noqa: PLC0415
        from trimtab.launcher.state_folder import StateFolder  # noqa: PLC0415
        from trimtab.stackfile.plan_document import plan_to_document  # noqa: PLC0415

        with Progress() as progress:
            prepared = prepare_try(wish, self._folders, progress)
        click.echo(render_plan(prepared.plan), err=True)
        held = StateFolder(self._folders.state / "try").hold(mode="foreground", stack=prepared.stack.name)
        session = TrySession(prepared, self._folders, budget_s=self._budget_s, keep=self._keep)
        try:
            with Progress() as progress, asyncio.Runner() as runner:
                runner.run(session.run(progress))
        finally:
            held.release()
        following = plan_again(prepared, self._folders)
        document = self._document(
            session.tried,
            session.elapsed_s,
            is_interrupted=session.is_interrupted,
            plan=plan_to_document(following),
        )
        self._write(document)
        if self._as_json:
            click.echo(json.dumps(document, indent=2))
        else:
            click.echo(render_tried(session.tried))
            click.echo(f"\nthe plan that follows:\n{render_plan(following)}")
        click.echo(f"result: {self._file}", err=True)
        if session.is_interrupted:
            return _INTERRUPTED
        if session.failure is not None and not self._as_json:
            raise session.failure
        return 5 if any(model.failure for model in session.tried) else 0

    def _keep(self, tried: tuple[TriedModel, ...], elapsed_s: float) -> None:
        """What is known so far, marked as unfinished: a kill in the next moment loses nothing."""
        self._write(self._document(tried, elapsed_s, is_interrupted=True, plan=None))

    def _document(
        self,
        tried: tuple[TriedModel, ...],
        elapsed_s: float,
        *,
        is_interrupted: bool,
        plan: dict[str, Any] | None,
    ) -> dict[str, Any]:
        from trimtab import __version__  # noqa: PLC0415
        from trimtab.bench.try_result import TryRun, make_try_document  # noqa: PLC0415

        run = TryRun(
            date=self._began.isoformat(timespec="seconds"),
            version=__version__,
            budget_s=self._budget_s,
            elapsed_s=elapsed_s,
            is_interrupted=is_interrupted,
        )
        return make_try_document(run, tried, plan)

    def _write(self, document: dict[str, Any]) -> None:
        text = json.dumps(document, indent=1) + "\n"
        for path in (self._file, *((Path(self._out),) if self._out is not None else ())):
            part = path.with_name(f"{path.name}.part")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                part.write_text(text, encoding="utf-8")
                part.replace(path)
            except OSError as error:
                raise EnvironmentMissingError(
                    f"{path} cannot be written: {(error.strerror or str(error)).lower()}"
                ) from error
