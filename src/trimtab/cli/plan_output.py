"""I/O. What ``plan`` prints and saves: text, one JSON document, or the commands that start it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import click

from trimtab.core.plan import Plan
from trimtab.errors import EnvironmentMissingError, StackFileError

if TYPE_CHECKING:
    from trimtab.cli.foreign_plan import ForeignCheck

__all__ = ["EMIT_FORMS", "PlanOutput"]

EmitForm: TypeAlias = Literal["command", "docker", "compose", "script"]
EMIT_FORMS: Final[tuple[EmitForm, ...]] = ("command", "docker", "compose", "script")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutput:
    """The output flags of one ``plan``."""

    explain: bool = False
    emit: EmitForm | None = None
    out: str | None = None
    as_json: bool = False

    def check(self) -> None:
        """StackFileError where two flags want the same stdout."""
        if self.emit is not None and (self.as_json or self.explain):
            other = "--json" if self.as_json else "--explain"
            raise StackFileError(
                f"--emit prints commands and {other} prints something else", hint="give one of the two"
            )

    def show(self, plan: Plan, checked: ForeignCheck | None) -> None:
        """Print the plan as asked, and save it where asked."""
        from trimtab.stackfile.plan_document import plan_to_document  # noqa: PLC0415 - keeps --help quick

        document = plan_to_document(plan)
        if self.out is not None:
            _save(self.out, json.dumps(document, indent=2))
        if self.as_json:
            extra = {"check": checked.as_document()} if checked is not None else {}
            click.echo(json.dumps(document | extra, indent=2))
        elif self.emit is not None:
            _emit(self.emit, plan, checked)
        else:
            self._print(plan, checked)

    def _print(self, plan: Plan, checked: ForeignCheck | None) -> None:
        from trimtab.cli.render import render_explanation, render_plan  # noqa: PLC0415

        click.echo(render_plan(plan))
        if checked is not None:
            from trimtab.cli.render_check import render_check  # noqa: PLC0415

            click.echo(render_check(checked))
        if self.explain:
            click.echo(render_explanation(plan))


def _emit(form: EmitForm, plan: Plan, checked: ForeignCheck | None) -> None:
    """The commands on stdout; of a checked file those it holds, or what the planner proposes instead."""
    from trimtab.cli.deployment import misfit_error  # noqa: PLC0415
    from trimtab.engines.vllm_emit import render_emit  # noqa: PLC0415

    if checked is None:
        _check_weights(plan)
    chosen = plan if plan.fits or checked is None else checked.check.proposal or plan
    if not chosen.fits:
        raise misfit_error(chosen)
    for item in checked.left_out if checked is not None else ():
        click.echo(f"left out: {item.written}: {item.reason}", err=True)
    click.echo(render_emit(chosen, form), nl=False)


def _check_weights(plan: Plan) -> None:
    """StackFileError for a model of which only the config.json is there."""
    for model in plan.models:
        if any(warning.code == "no_weights" for warning in model.warnings):
            raise StackFileError(
                f"--emit: {model.checkpoint} has no weights, so that nothing could be started from it",
                hint="name the folder that holds them, or the repo id",
            )


def _save(file: str, document: str) -> None:
    try:
        Path(file).write_text(document + "\n", encoding="utf-8")
    except OSError as error:
        raise EnvironmentMissingError(
            f"{file} cannot be written: {(error.strerror or str(error)).lower()}"
        ) from error
    click.echo(f"plan saved to {file}", err=True)
