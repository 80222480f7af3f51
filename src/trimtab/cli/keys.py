"""I/O. ``trimtab keys`` and ``trimtab usage``: who may use the gateway, and who used what."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from trimtab.cli.options import json_option
from trimtab.errors import StackFileError

if TYPE_CHECKING:
    from trimtab.cli.folders import Folders

__all__ = ["keys", "usage"]

_AT_LEAST_ONE = click.IntRange(min=1)


@click.group(
    epilog="""\b
Examples:
  trimtab keys add alice
  trimtab keys add script --requests-per-minute 60 --concurrency 2 --model small
  trimtab keys add nightly --priority -1
  trimtab keys list
  trimtab keys rm script
"""
)
def keys() -> None:
    """Add, list and remove API keys; a gateway that serves follows within a second.

    From the first key on every request needs one, as "Authorization: Bearer KEY". Only the hash of a
    key is kept. Keys in a stack file (gateway.keys) go on working beside these.
    """


@keys.command()
@click.argument("name")
@click.option("--requests-per-minute", type=_AT_LEAST_ONE, metavar="N", help="Requests within a minute.")
@click.option(
    "--tokens-per-minute", type=_AT_LEAST_ONE, metavar="N", help="Tokens of prompts and answers in a minute."
)
@click.option("--concurrency", type=_AT_LEAST_ONE, metavar="N", help="Requests under way at once.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="A model it may use [all].")
@click.option(
    "--priority", type=click.IntRange(-5, 5), default=0, metavar="N",
    help="Of requests that wait for a busy model, those of a higher one are next; -5 to 5 [0].",
)  # fmt: skip
@json_option
def add(  # noqa: PLR0913 - what a key may be given
    *, name: str, requests_per_minute: int | None, tokens_per_minute: int | None, concurrency: int | None,
    models: tuple[str, ...], priority: int, as_json: bool,
) -> None:  # fmt: skip
    """Make a key called NAME and print it: this is the only time it is shown."""
    from trimtab.cli.folders import keys_path, read_folders  # noqa: PLC0415 - keeps --help quick
    from trimtab.gateway.key_ring import add_key  # noqa: PLC0415
    from trimtab.gateway.keys import KeyLimits  # noqa: PLC0415

    for model in models:
        _check_model(model)
    limits = KeyLimits(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrency=concurrency,
        models=models,
    )

    def show(key: str) -> None:
        click.echo(json.dumps({"name": name, "key": key}) if as_json else key)

    folders = read_folders()
    path = keys_path(folders)
    is_first = not path.exists()
    # Shown before it is kept: a key that nobody saw would be of no use to anybody.
    add_key(path, name, limits, priority=priority, show=show)
    if is_first:
        click.echo(
            "note: from now on every request needs a key; a trimtab that serves asks for one within a second",
            err=True,
        )
    _warn_of_unserved(models, folders)


def _warn_of_unserved(models: tuple[str, ...], folders: Folders) -> None:
    """A name that the stack which runs here does not serve is likely a slip; without one nobody knows."""
    from trimtab.cli.health import read_health  # noqa: PLC0415 - keeps --help quick
    from trimtab.gateway.app import url_of  # noqa: PLC0415
    from trimtab.launcher.state_folder import find_supervisor  # noqa: PLC0415

    record = find_supervisor(folders.state) if models else None
    if record is None or not record.port:
        return
    served = asyncio.run(read_health(url_of(record.host, record.port))).get("models")
    if not isinstance(served, dict) or not served:
        return
    for model in models:
        if model not in served:
            click.echo(
                f"warning: the running stack {record.stack} serves no {_shown(model)!r}"
                f" (it serves {', '.join(sorted(served))}); the key is made all the same",
                err=True,
            )


@keys.command("list")
@json_option
def list_(*, as_json: bool) -> None:
    """Show the names of the keys, and what each may do."""
    from trimtab.cli.folders import keys_path, read_folders  # noqa: PLC0415
    from trimtab.cli.render import render_table  # noqa: PLC0415
    from trimtab.gateway.key_ring import read_keys  # noqa: PLC0415

    path = keys_path(read_folders())
    found = read_keys(path)
    if as_json:
        entries = [
            {
                "name": key.name,
                "created_at_s": key.created_at_s,
                "limits": asdict(key.limits),
                "priority": key.priority,
            }
            for key in found
        ]
        click.echo(json.dumps({"keys": entries}, indent=2))
        return
    if not found and path.exists():
        click.echo(
            "no key is left, and requests are refused (401) but for keys of a stack file; add one with:"
            f" trimtab keys add NAME; to open the gateway to all, delete {path} and start it again"
        )
        return
    if not found:
        click.echo("no keys; add one with: trimtab keys add NAME")
        return
    header = ("key", "made", "requests/min", "tokens/min", "at once", "priority", "models")
    rows = [
        (
            _shown(key.name),
            time.strftime("%Y-%m-%d", time.localtime(key.created_at_s)),
            _limit(key.limits.requests_per_minute),
            _limit(key.limits.tokens_per_minute),
            _limit(key.limits.concurrency),
            str(key.priority),
            ", ".join(_shown(model) for model in key.limits.models) or "all",
        )
        for key in found
    ]
    click.echo(render_table(header, rows))


@keys.command()
@click.argument("name")
def rm(*, name: str) -> None:
    """Remove the key called NAME; requests with it are refused from then on."""
    from trimtab.cli.folders import keys_path, read_folders  # noqa: PLC0415
    from trimtab.gateway.key_ring import remove_key  # noqa: PLC0415

    path = keys_path(read_folders())
    num_left = remove_key(path, name)
    click.echo(f"removed {_shown(name)}")
    if not num_left:
        click.echo(f"no key is left: to open the gateway to all, delete {path} and start it again", err=True)


@click.command(
    epilog="""\b
Examples:
  trimtab usage
  trimtab usage --json
"""
)
@json_option
def usage(*, as_json: bool) -> None:
    """Show what was used: requests, errors and tokens per day (UTC), key and model."""
    from trimtab.cli.folders import read_folders, usage_path  # noqa: PLC0415
    from trimtab.cli.render import render_table  # noqa: PLC0415
    from trimtab.gateway.usage_log import read_usage_totals  # noqa: PLC0415

    totals = read_usage_totals(usage_path(read_folders()))
    if as_json:
        document: dict[str, Any] = {"usage": [asdict(total) for total in totals]}
        click.echo(json.dumps(document, indent=2))
        return
    if not totals:
        click.echo("nothing was used yet")
        return
    header = ("day", "key", "model", "requests", "errors", "prompt tokens", "answer tokens")
    rows = [
        (
            total.day,
            _shown(total.key) or "-",
            _shown(total.model) or "-",
            f"{total.num_requests:,}",
            f"{total.num_errors:,}",
            f"{total.prompt_tokens:,}",
            f"{'~' if total.num_estimated else ''}{total.completion_tokens:,}",
        )
        for total in totals
    ]
    click.echo(render_table(header, rows))
    if any(total.num_estimated for total in totals):
        click.echo("~ where an engine did not tell, answers count by their events and prompts not at all")


def _limit(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _shown(name: str) -> str:
    """A name as a terminal may get it, whatever wrote it into the file."""
    return name if name.isprintable() else ascii(name)[1:-1]


def _check_model(name: str) -> None:
    from trimtab.stackfile.wire import check_served_name  # noqa: PLC0415 - keeps --help quick

    try:
        check_served_name(name)
    except ValueError as error:
        raise StackFileError(f"--model is {name[:120]!a}: {error}") from error
