"""I/O. ``up --dry-run``: the actions that ``up`` would take now, with their causes."""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from trimtab import __version__
from trimtab.cli.folders import Folders
from trimtab.core.plan import Plan
from trimtab.launcher.reconcile import reconcile, render_actions
from trimtab.launcher.specs import SpecOptions, specs_of
from trimtab.runtimes.routed import RoutedRuntime

__all__ = ["show_actions"]


async def show_actions(plan: Plan, folders: Folders, *, as_json: bool, detach: bool) -> None:
    """Compare the plan with what runs, and print one line per action."""
    specs = specs_of(plan, SpecOptions(trimtab_version=__version__, dies_with_supervisor=not detach))
    runtime = RoutedRuntime(folders.state, python=sys.executable)
    observed = await runtime.list_replicas() if folders.state.is_dir() else ()
    actions = reconcile(specs, observed)
    if as_json:
        click.echo(json.dumps({"actions": [dataclasses.asdict(action) for action in actions]}, indent=2))
    else:
        click.echo(render_actions(actions))
