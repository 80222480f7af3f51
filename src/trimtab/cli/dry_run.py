"""I/O. ``up --dry-run``: the actions that ``up`` would take now, with their causes, or its refusal."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys

import click

from trimtab import __version__
from trimtab.cli.change import check_changeable, preview_change
from trimtab.cli.folders import Folders
from trimtab.core.plan import Plan
from trimtab.core.state import Action
from trimtab.launcher.reconcile import find_running_models, reconcile, render_actions
from trimtab.launcher.specs import SpecOptions, specs_of
from trimtab.launcher.state_folder import find_supervisor
from trimtab.launcher.swap_policy import choose_first
from trimtab.runtimes.routed import RoutedRuntime

__all__ = ["show_actions"]


def show_actions(plan: Plan, folders: Folders, *, as_json: bool, detach: bool) -> None:
    """Print one line per action; raises what ``up`` would be refused with.

    A trimtab that runs is asked, so that its actions are those of the real change.
    """
    record = find_supervisor(folders.state)
    quiet: list[str] = []
    if record is None:
        actions = asyncio.run(_read_actions(plan, folders, detach=detach))
    else:
        check_changeable(record, plan)
        actions, quiet = preview_change(record, plan, folders)
    if as_json:
        click.echo(json.dumps({"actions": [dataclasses.asdict(action) for action in actions]}, indent=2))
    else:
        click.echo(render_actions(actions), nl=False)
        for line in quiet:
            click.echo(line)


async def _read_actions(plan: Plan, folders: Folders, *, detach: bool) -> tuple[Action, ...]:
    specs = specs_of(plan, SpecOptions(trimtab_version=__version__, dies_with_supervisor=not detach))
    runtime = RoutedRuntime(folders.state, python=sys.executable)
    observed = await runtime.list_replicas() if folders.state.is_dir() else ()
    if plan.swap is not None:
        first = choose_first(plan.swap, find_running_models(specs, observed))
        specs = tuple(spec for spec in specs if spec.model in first)
    return reconcile(specs, observed)
