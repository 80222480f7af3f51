"""I/O. ``trimtab up``: plan, show the plan, start, wait for a real answer, serve; or do so detached."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import click

from trimtab.cli.folders import Folders
from trimtab.cli.options import json_option, wish_from, wish_options
from trimtab.cli.service import install_service, render_wish, service_options, uninstall_service
from trimtab.core.plan import Plan

__all__ = ["up"]


@click.command(
    epilog="""\b
Examples:
  trimtab up                                   the embedded default model
  trimtab up ./model.gguf --context 4096       a file of yours
  trimtab up org/repo-GGUF:model.Q4_K_M.gguf   one quant from a hub
  trimtab up stack.yaml -d                     several models, in the background
  trimtab up --dry-run                         the plan and the actions, nothing started
  trimtab up stack.yaml --install-service      a systemd unit that starts it at every login
  trimtab plan m.gguf --out p.json && trimtab up --plan p.json
"""
)
@wish_options
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="Run exactly this saved plan, its commands too.",
)
@click.option("-d", "--detach", is_flag=True, help="Return when ready; keep serving in the background.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the actions; start nothing.")
@click.option(
    "--timeout", "start_timeout_s", type=click.FloatRange(min=1), default=600, show_default=True,
    metavar="SECONDS", help="Longest wait for the first real token.",
)  # fmt: skip
@service_options
@click.option("--ready-fd", type=int, hidden=True, help="Where a detached run reports (internal).")
@json_option
def up(
    *, plan_file: str | None, detach: bool, dry_run: bool, start_timeout_s: float, ready_fd: int | None,
    as_json: bool, **wish_values: Any,
) -> None:  # fmt: skip
    """Plan MODEL or STACK.yaml, start it, and serve it at one OpenAI endpoint until Ctrl-C.

    MODEL is a path to a .gguf, a Hugging Face repo id (repo:file.gguf names one quant) or the name
    of a model in ./stack.yaml. With neither, the embedded default is started: a real small model
    that needs no GPU.
    """
    from trimtab.cli.deployment import make_plan  # noqa: PLC0415 - keeps --help quick
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.cli.progress import Progress  # noqa: PLC0415

    folders, service = read_folders(), wish_values.pop("service")
    wish = wish_from(wish_values, plan_file=plan_file)
    if service == "uninstall":
        uninstall_service(wish, as_json=as_json)
        return
    with Progress() as progress:
        plan = make_plan(wish, folders, progress)
    if ready_fd is None:
        if service is None:
            _check_possible(plan, folders)
        _show_plan(plan, as_json=as_json)
    if service == "install":
        from trimtab.cli.first_key import make_first_key  # noqa: PLC0415

        make_first_key(plan.gateway, folders)
        words = (*render_wish(wish), "--timeout", str(start_timeout_s))
        install_service(words, folders, stack=plan.stack, as_json=as_json)
        return
    if ready_fd is None:
        plan = _prepare(plan, folders, dry_run=dry_run)
        if not dry_run and _joined_running(plan, folders, as_json=as_json, is_detached=detach):
            return
    if dry_run:
        from trimtab.cli.dry_run import show_actions  # noqa: PLC0415

        show_actions(plan, folders, as_json=as_json, detach=detach)
    elif detach:
        from trimtab.cli.detach import start_detached  # noqa: PLC0415

        start_detached(plan, folders, start_timeout_s=start_timeout_s, as_json=as_json)
    else:
        _serve(plan, start_timeout_s=start_timeout_s, ready_fd=ready_fd, as_json=as_json)


def _joined_running(plan: Plan, folders: Folders, *, as_json: bool, is_detached: bool) -> bool:
    """Whether a running trimtab was changed to the plan; one that serves this very plan is joined instead."""
    from trimtab.cli.change import change_in_place  # noqa: PLC0415
    from trimtab.cli.join import serves_plan  # noqa: PLC0415
    from trimtab.launcher.state_folder import find_supervisor  # noqa: PLC0415

    record = find_supervisor(folders.state)
    if record is None or (not record.port and plan.gateway.port):
        return False  # one that just starts is named by whoever comes second
    if is_detached and asyncio.run(serves_plan(record, plan, folders)):
        return False
    change_in_place(record, plan, folders, as_json=as_json)
    return True


def _check_possible(plan: Plan, folders: Folders) -> None:
    """What cannot start is refused before anybody reads its plan as a promise."""
    from trimtab.cli.vllm_ready import check_cards  # noqa: PLC0415
    from trimtab.launcher.state_folder import find_supervisor  # noqa: PLC0415

    check_cards(plan, folders)
    record = find_supervisor(folders.state)
    if record is not None:
        from trimtab.cli.change import check_changeable  # noqa: PLC0415

        check_changeable(record, plan)


def _prepare(plan: Plan, folders: Folders, *, dry_run: bool) -> Plan:
    """The plan on what a start needs, fetched and made; a dry run only hears what would stop it."""
    from trimtab.cli.progress import Progress  # noqa: PLC0415
    from trimtab.cli.vllm_ready import prepare_vllm, preview_vllm  # noqa: PLC0415

    with Progress() as progress:
        if not dry_run:
            return prepare_vllm(plan, folders, progress)
        preview_vllm(plan, folders, progress)
        return plan


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    from trimtab.cli.render import render_plan  # noqa: PLC0415

    click.echo(render_plan(plan), err=as_json)
    if not plan.fits:
        from trimtab.cli.deployment import misfit_error  # noqa: PLC0415

        raise misfit_error(plan)


def _serve(plan: Plan, *, start_timeout_s: float, ready_fd: int | None, as_json: bool) -> None:
    from trimtab.cli.first_key import make_first_key  # noqa: PLC0415
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.cli.listeners import PipeListener, TerminalListener  # noqa: PLC0415
    from trimtab.cli.running_stack import ServeOptions  # noqa: PLC0415
    from trimtab.cli.serve import run_serve  # noqa: PLC0415

    mode: Literal["foreground", "detached"] = "foreground" if ready_fd is None else "detached"
    folders = read_folders()
    options = ServeOptions(folders=folders, mode=mode, start_timeout_s=start_timeout_s)
    if ready_fd is not None:
        run_serve(plan, options, PipeListener(ready_fd))
        return
    made = make_first_key(plan.gateway, folders)
    run_serve(plan, options, TerminalListener(plan, folders, as_json=as_json, made_key=made))
