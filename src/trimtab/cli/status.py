"""I/O. ``trimtab status``: asks the world what runs, and shows memory as predicted and as measured."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from trimtab.cli.options import json_option

if TYPE_CHECKING:
    from trimtab.cli.live_figures import LiveReading
    from trimtab.core.state import ObservedReplica

__all__ = ["status"]

_WATCH_S: Final = 2.0
# Rates and percentiles are of so many looks: long enough for percentiles, short enough for "now".
_WINDOW_LOOKS: Final = 5


@click.command(
    epilog="""\b
Examples:
  trimtab status
  trimtab status --watch
  trimtab status --json
"""
)
@click.option(
    "--watch",
    is_flag=True,
    help="A live table every two seconds: speed, latency, load, memory; Ctrl-C ends it.",
)
@json_option
def status(*, watch: bool, as_json: bool) -> None:
    """Show what trimtab runs: state, endpoint, process, and memory predicted against measured."""
    from trimtab.errors import StackFileError  # noqa: PLC0415

    if watch and as_json:
        raise StackFileError("--json prints one document and --watch never ends", hint="use one of them")
    if watch:
        with suppress(KeyboardInterrupt):
            _watch()
        return
    document = asyncio.run(_read_status())
    click.echo(json.dumps(document, indent=2) if as_json else _render(document))


def _watch() -> None:
    """The live table again and again, each of what came in the last ten seconds."""
    from trimtab.cli.render_live import render_live  # noqa: PLC0415 - keeps --help quick

    readings: deque[LiveReading] = deque(maxlen=_WINDOW_LOOKS + 1)
    while True:
        document, reading = asyncio.run(_read_both())
        lines = _render_supervisor(document) or ["nothing is running; start with: trimtab up"]
        # At each look: a window may be widened meanwhile. What is written to a file is not cut.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        old = readings[0] if readings else None
        lines += render_live(document, old, reading, now_s=time.time(), width=width)
        click.clear()
        click.echo("\n".join([*lines, *_render_details(document)]))
        readings.append(reading)
        time.sleep(_WATCH_S)


async def _read_both() -> tuple[dict[str, Any], LiveReading]:
    from trimtab.cli.folders import read_folders  # noqa: PLC0415 - keeps --help quick
    from trimtab.cli.status_live import read_live  # noqa: PLC0415

    document = await _read_status()
    return document, await read_live(read_folders().state, document["replicas"])


async def _read_status() -> dict[str, Any]:
    from trimtab.cli.folders import read_folders  # noqa: PLC0415 - keeps --help quick
    from trimtab.cli.status_external import read_external  # noqa: PLC0415
    from trimtab.cli.status_memory import read_card_memory  # noqa: PLC0415
    from trimtab.launcher.state_folder import find_supervisor  # noqa: PLC0415
    from trimtab.launcher.supervisor_search import find_unrecorded  # noqa: PLC0415
    from trimtab.runtimes.routed import RoutedRuntime  # noqa: PLC0415

    state = read_folders().state
    record = find_supervisor(state)
    unrecorded = find_unrecorded(state) if record is None else None
    runtime = RoutedRuntime(state, python=sys.executable)
    replicas = await runtime.list_replicas()
    health: dict[str, Any] = {}
    endpoint = None
    if record is not None and record.port:
        from trimtab.cli.health import read_health  # noqa: PLC0415
        from trimtab.gateway.app import url_of  # noqa: PLC0415

        url = url_of(record.host, record.port)
        endpoint = f"{url}/v1"
        health = await read_health(url)
    return {
        "running": record is not None or unrecorded is not None,
        "supervisor": None
        if record is None
        else {
            "pid": record.pid,
            "mode": record.mode,
            "stack": record.stack,
            "started_at_s": record.started_at_s,
        },
        "unrecorded_pid": None if unrecorded is None else unrecorded.pid,
        "endpoint": endpoint,
        "models": health.get("models", {}),
        "external": await read_external(state, health.get("models", {})),
        "replicas": [_entry(item, read_card_memory(state, item)) for item in replicas],
    }


def _entry(item: ObservedReplica, card_memory: Any) -> dict[str, Any]:
    """One replica as --json shows it; of one whose record is damaged only the process is known."""
    is_damaged = item.is_running and not item.engine
    return {
        "replica_id": item.replica_id,
        "model": item.model,
        "pid": item.pid,
        "port": None if is_damaged else item.port,
        "record_damaged": is_damaged,
        "running": item.is_running,
        "exit": None if item.exit_status is None else str(item.exit_status),
        "started_at_s": None if is_damaged else item.started_at_s,
        "predicted_bytes": item.predicted_bytes,
        "rss_bytes": item.rss_bytes,
        "card_memory": card_memory,
        "max_model_len": item.max_model_len,
        "log": item.log_path,
    }


def _render(document: dict[str, Any]) -> str:
    from trimtab.cli.render import render_table  # noqa: PLC0415
    from trimtab.cli.status_external import render_external  # noqa: PLC0415
    from trimtab.cli.status_memory import render_card_memory  # noqa: PLC0415

    replicas = document["replicas"]
    lines = _render_supervisor(document)
    if not lines:
        return "nothing is running; start with: trimtab up"
    header = ("replica", "state", "pid", "port", "up for", "context", "memory predicted", "measured")
    if replicas:
        lines.append(render_table(header, [_row(item, document["models"]) for item in replicas]))
    for item in replicas:
        if item["record_damaged"]:
            lines.append(
                f"{item['replica_id']}: its run record is missing or damaged; `trimtab down` stops it"
            )
        lines.extend(render_card_memory(item["replica_id"], item["card_memory"]))
    lines.extend(render_external(document["external"]))
    return "\n".join([*lines, *_render_details(document)])


def _render_details(document: dict[str, Any]) -> list[str]:
    """Why models are not ready."""
    lines = []
    external = {item["model"] for item in document["external"]}
    for name, model in document["models"].items():
        if name in external:
            continue
        parts = model.get("replicas") or {}
        for part, told in parts.items() if len(parts) > 1 else [(name, model)]:
            if told["detail"]:
                lines.append(f"{part}: {told['detail']}")
    return lines


def _render_supervisor(document: dict[str, Any]) -> list[str]:
    """Who runs the engines; empty when nothing runs."""
    supervisor = document["supervisor"]
    if supervisor is not None:
        return [
            f"endpoint  {document['endpoint'] or 'not listening yet'}",
            f"trimtab   pid {supervisor['pid']}, {supervisor['mode']}, stack {supervisor['stack']}",
        ]
    if document["unrecorded_pid"]:
        return [
            f"trimtab   pid {document['unrecorded_pid']}, whose record is missing or damaged",
            "`trimtab down` stops it and its engines",
        ]
    if any(item["running"] for item in document["replicas"]):
        return [
            "trimtab itself is gone, but engines it started are still running:",
            "`trimtab up` with the same plan and -d adopts them, `trimtab down` stops them",
        ]
    return []


def _row(item: dict[str, Any], models: dict[str, Any]) -> tuple[str, ...]:
    from trimtab.units import format_duration_s  # noqa: PLC0415

    model = models.get(item["model"])
    one = (model.get("replicas") or {}).get(item["replica_id"], model) if model else None
    living = one["state"] if one else "running"
    state = living if item["running"] else f"ended ({item['exit']})"
    predicted, measured, began_s = item["predicted_bytes"], item["rss_bytes"], item["started_at_s"]
    return (
        item["replica_id"],
        state,
        str(item["pid"]),
        "-" if item["port"] is None else str(item["port"]),
        "-" if began_s is None else format_duration_s(max(0.0, time.time() - began_s)),
        f"{item['max_model_len']:,}" if item["max_model_len"] else "-",
        _bytes(predicted),
        _bytes(measured) + _difference(predicted, measured),
    )


def _bytes(value: int | None) -> str:
    from trimtab.units import format_bytes  # noqa: PLC0415

    return "-" if value is None else format_bytes(value)


def _difference(predicted: int | None, measured: int | None) -> str:
    if not predicted or measured is None:
        return ""
    return f" ({100 * (measured - predicted) / predicted:+.1f} %)"
