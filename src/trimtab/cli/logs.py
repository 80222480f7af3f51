"""I/O. ``trimtab logs``: what an engine, or trimtab in the background, wrote."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Final

import click

from trimtab.cli.options import complete_by, json_option
from trimtab.errors import StackFileError
from trimtab.launcher.log_files import LogFollower, read_last_lines

__all__ = ["logs"]

_POLL_S: Final = 0.2


@click.command(
    epilog="""\b
Examples:
  trimtab logs                     the last lines of every log
  trimtab logs smollm2-135m -f     follow one model
  trimtab logs trimtab -n 200      trimtab's own log of a background run
  trimtab logs trimtab-requests    a line of JSON for each request
"""
)
@click.argument("model", required=False, shell_complete=complete_by("complete_log"))
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is written; Ctrl-C ends it.")
@click.option("-n", "--lines", "num_lines", type=click.IntRange(min=0), default=50, show_default=True,
              help="Lines to begin with.")  # fmt: skip
@json_option
def logs(*, model: str | None, follow: bool, num_lines: int, as_json: bool) -> None:
    """Print the log of MODEL, or every log; they stay after a stop.

    Beside the models there are trimtab, what trimtab itself wrote in the background, and
    trimtab-requests, the requests that its gateway answered.
    """
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.launcher.state_folder import StateFolder  # noqa: PLC0415

    if follow and as_json:
        raise StackFileError("--json prints one document and --follow never ends", hint="use one of them")
    folder = StateFolder(read_folders().state).logs
    paths = _choose_logs(folder, model)
    tails = {path: _read_tail(path, num_lines, is_whole=follow) for path in paths}
    if as_json:
        document = {path.stem: [_text(line) for line in lines] for path, (lines, _) in tails.items()}
        click.echo(json.dumps(document, indent=2))
        return
    for path, (lines, _) in tails.items():
        if len(paths) > 1:
            click.echo(f"==> {path.stem} <==")
        for line in lines:
            click.echo(_text(line))
    if not paths:
        click.echo("no log yet; start something with: trimtab up", err=True)
    elif follow:
        try:
            _follow({path: at for path, (_, at) in tails.items()})
        except KeyboardInterrupt:
            return


def _choose_logs(folder: Path, model: str | None) -> list[Path]:
    # A folder or a pipe of that name is no log.
    paths = [path for path in sorted(folder.glob("*.log")) if path.is_file()]
    if model is None:
        return paths
    chosen = [path for path in paths if path.stem == model]
    if not chosen:
        known = ", ".join(path.stem for path in paths) or "none yet"
        raise StackFileError(f"there is no log of {model!r}", hint=f"logs: {known}")
    return chosen


def _read_tail(path: Path, num_lines: int, *, is_whole: bool) -> tuple[list[bytes], int]:
    try:
        return read_last_lines(path, num_lines, is_whole=is_whole)
    except OSError as error:
        raise StackFileError(f"the log {path} cannot be read: {error.strerror}") from error


def _follow(offsets: dict[Path, int]) -> None:
    """Print new lines as they come, also of a log whose beginning is cut off meanwhile."""
    with contextlib.ExitStack() as stack:
        followers = {path: LogFollower(path, offset) for path, offset in offsets.items()}
        for follower in followers.values():
            stack.callback(follower.close)
        while True:
            for path, follower in followers.items():
                for line in follower.read_lines():
                    click.echo(f"{path.stem}: {_text(line)}" if len(followers) > 1 else _text(line))
            time.sleep(_POLL_S)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
