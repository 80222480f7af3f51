"""I/O. ``trimtab keys`` and ``trimtab usage``: who may use the gateway, and who used what."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

import click

from trimtab.cli.options import json_option

__all__ = ["keys", "usage"]

_AT_LEAST_ONE = click.IntRange(min=1)


@click.group(
    epilog="""\b
Examples:
  trimtab keys add alice
  trimtab keys add script --requests-per-minute 60 --concurrency 2 --model small
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
@json_option
def add(
    *, name: str, requests_per_minute: int | None, tokens_per_minute: int | None, concurrency: int | None,
    models: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Make a key called NAME and print it: this is the only time it is shown."""
    from trimtab.cli.folders import keys_path, read_folders  # noqa: PLC0415 - keeps --help quick
    from trimtab.gateway.key_ring import add_key  # noqa: PLC0415
    from trimtab.gateway.keys import KeyLimits  # noqa: PLC0415

    limits = KeyLimits(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrency=concurrency,
        models=models,
    )
    key = add_key(keys_path(read_folders()), name, limits)
    click.echo(json.dumps({"name": name, "key": key}) if as_json else key)


@keys.command("list")
@json_option
def list_(*, as_json: bool) -> None:
    """Show the names of the keys, and what each may do."""
    from trimtab.cli.folders import keys_path, read_folders  # noqa: PLC0415
    from trimtab.cli.render import render_table  # noqa: PLC0415
    from trimtab.gateway.key_ring import read_keys  # noqa: PLC0415

    found = read_keys(keys_path(read_folders()))
    if as_json:
        entries = [
            {"name": key.name, "created_at_s": key.created_at_s, "limits": asdict(key.limits)}
            for key in found
        ]
        click.echo(json.dumps({"keys": entries}, indent=2))
        return
    if not found:
        click.echo("no keys; add one with: trimtab keys add NAME")
        return
    header = ("key", "made", "requests/min", "tokens/min", "at once", "models")
    rows = [
        (
            key.name,
            time.strftime("%Y-%m-%d", time.localtime(key.created_at_s)),
            _limit(key.limits.requests_per_minute),
            _limit(key.limits.tokens_per_minute),
            _limit(key.limits.concurrency),
            ", ".join(key.limits.models) or "all",
        )
        for key in found
    ]
    click.echo(render_table(header, rows))


@keys.command()
@click.argument("name")
def rm(*, name: str) -> None:
    """Remove the key called NAME; requests with it are refused from then on."""
    from trimtab.cli.folders import keys_path, read_folders  # noqa: PLC0415
    from trimtab.gateway.key_ring import read_keys, remove_key  # noqa: PLC0415

    path = keys_path(read_folders())
    remove_key(path, name)
    click.echo(f"removed {name}")
    if not read_keys(path):
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
            total.key or "-",
            total.model,
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
