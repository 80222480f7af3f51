"""I/O. ``trimtab bench``: measure an endpoint, compare results, score the speed model.

Without a verb of its own, ``trimtab bench ENDPOINT …`` measures.
"""

from __future__ import annotations

import importlib
from typing import Final

import click

__all__ = ["bench"]

_VERBS: Final[dict[str, tuple[str, str, str]]] = {
    "run": ("trimtab.cli.bench_run", "run", "Measure an endpoint; the default."),
    "compare": ("trimtab.cli.bench_compare", "compare", "Compare two results: what differs, what is real."),
    "html": ("trimtab.cli.bench_html", "html", "Write a saved result as a page with plots."),
    "score": ("trimtab.cli.bench_score", "score", "Score the speed model against a table of measurements."),
}
_DEFAULT: Final = "run"


class _BenchGroup(click.Group):
    """Verbs by name, loaded when they run; anything else on the line is ``run``'s."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _VERBS:
            return None
        module, attribute, _ = _VERBS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    # ``bench URL --rate 4`` is ``bench run URL --rate 4``.
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*_VERBS, "-h", "--help"}:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(verb, line) for verb, (_, _, line) in _VERBS.items()])


@click.group(cls=_BenchGroup)
def bench() -> None:
    """Measure an endpoint, compare two results, or score the speed model against measurements."""
