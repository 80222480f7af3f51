"""I/O. ``trimtab logs``: what an engine, or trimtab in the background, wrote."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO, Final

import click

from trimtab.cli.options import json_option
from trimtab.errors import StackFileError

__all__ = ["logs"]

_POLL_S: Final = 0.2


@click.command(
    epilog="""\b
Examples:
  trimtab logs                     the last lines of every log
  trimtab logs smollm2-135m -f     follow one model
  trimtab logs trimtab -n 200      trimtab's own log of a background run
"""
)
@click.argument("model", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is written; Ctrl-C ends it.")
@click.option("-n", "--lines", "num_lines", type=click.IntRange(min=0), default=50, show_default=True,
              help="Lines to begin with.")  # fmt: skip
@json_option
def logs(*, model: str | None, follow: bool, num_lines: int, as_json: bool) -> None:
    """Print the log of MODEL, or every log; they stay after a stop."""
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.launcher.state_folder import StateFolder  # noqa: PLC0415

    if follow and as_json:
        raise StackFileError("--json prints one document and --follow never ends", hint="use one of them")
    folder = StateFolder(read_folders().state).logs
    paths = _choose_logs(folder, model)
    tails = {path: _read_tail(path, num_lines) for path in paths}
    if as_json:
        click.echo(json.dumps({path.stem: lines for path, (lines, _) in tails.items()}, indent=2))
        return
    for path, (lines, _) in tails.items():
        if len(paths) > 1:
            click.echo(f"==> {path.stem} <==")
        for line in lines:
            click.echo(line)
    if not paths:
        click.echo("no log yet; start something with: trimtab up", err=True)
    elif follow:
        try:
            _follow({path: at for path, (_, at) in tails.items()})
        except KeyboardInterrupt:
            return


def _choose_logs(folder: Path, model: str | None) -> list[Path]:
    paths = sorted(folder.glob("*.log")) if folder.is_dir() else []
    if model is None:
        return paths
    chosen = [path for path in paths if path.stem == model]
    if not chosen:
        known = ", ".join(path.stem for path in paths) or "none yet"
        raise StackFileError(f"there is no log of {model!r}", hint=f"logs: {known}")
    return chosen


def _read_tail(path: Path, num_lines: int) -> tuple[list[str], int]:
    """The last lines and the offset after them."""
    with path.open("rb") as file:
        lines = deque(file, maxlen=num_lines)
        return [_text(line) for line in lines], file.tell()


def _follow(offsets: dict[Path, int]) -> None:
    """Print new lines as they come; a log that was begun anew is followed from its start."""
    files: dict[Path, BinaryIO] = {}
    rests = dict.fromkeys(offsets, b"")
    try:
        for path, offset in offsets.items():
            files[path] = path.open("rb")
            files[path].seek(offset)
        while True:
            for path, file in files.items():
                if os.fstat(file.fileno()).st_size < file.tell():
                    file.seek(0)
                *whole, rests[path] = (rests[path] + file.read()).split(b"\n")
                for line in whole:
                    click.echo(f"{path.stem}: {_text(line)}" if len(files) > 1 else _text(line))
            time.sleep(_POLL_S)
    finally:
        for file in files.values():
            file.close()


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n")
