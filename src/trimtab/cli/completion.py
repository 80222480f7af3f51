"""I/O. ``trimtab completion SHELL``: the script that makes Tab work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

__all__ = ["complete_cached", "complete_log", "complete_target", "completion"]

_ENDINGS: Final = (".gguf", ".yaml", ".yml")
_STACKS: Final = ("stack.yaml", "trimtab.yaml")
_MAX_WORDS: Final = 200


@click.command(
    epilog="""\b
Examples:
  trimtab completion bash >> ~/.bashrc
  trimtab completion zsh > "${fpath[1]}/_trimtab"
  trimtab completion fish > ~/.config/fish/completions/trimtab.fish
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL; source it from that shell's start-up file."""
    completion_class = get_completion_class(shell)
    if completion_class is None:  # pragma: no cover - the three names above always exist
        raise click.UsageError(f"no completion for {shell}")
    source = completion_class(ctx.find_root().command, {}, "trimtab", "_TRIMTAB_COMPLETE").source()
    # With this bash goes on after a folder, where it would put a blank.
    click.echo(source.replace("complete -o nosort -F", "complete -o nosort -o filenames -F"))


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Models of ./stack.yaml, the embedded default, and paths of stacks, GGUF files and folders."""
    from trimtab.engines import embedded_model  # noqa: PLC0415 - only while Tab is pressed

    names = [*_stack_models(), embedded_model.SERVED_NAME]
    words = [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
    return [CompletionItem(word) for word in (*words, *_list_paths(incomplete))][:_MAX_WORDS]


def complete_log(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Models that have a log."""
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.runtimes.state_layout import logs_dir_of  # noqa: PLC0415

    stems = sorted(path.stem for path in logs_dir_of(read_folders().state).glob("*.log"))
    return [CompletionItem(stem) for stem in stems if stem.startswith(incomplete)]


def complete_cached(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Models that trimtab downloaded."""
    from trimtab.cli.folders import read_folders  # noqa: PLC0415
    from trimtab.probes.hub_store import list_cached  # noqa: PLC0415

    repos = dict.fromkeys(model.repo for model in list_cached(read_folders().cache))
    return [CompletionItem(repo) for repo in repos if repo.startswith(incomplete)]


def _stack_models() -> list[str]:
    """The names in the current folder's stack; none where it cannot be read, which `up` explains."""
    from trimtab.errors import StackFileError  # noqa: PLC0415
    from trimtab.stackfile.read import read_stack  # noqa: PLC0415

    path = next((Path(name) for name in _STACKS if Path(name).is_file()), None)
    try:
        return [] if path is None else [model.name for model in read_stack(path).models]
    except StackFileError:
        return []


def _list_paths(incomplete: str) -> Iterator[str]:
    folder, begin = os.path.split(incomplete)
    try:
        entries = sorted(Path(folder or ".").expanduser().iterdir())
    except (OSError, RuntimeError):
        return
    for entry in entries:
        is_hidden = entry.name.startswith(".") and not begin.startswith(".")
        if is_hidden or not entry.name.startswith(begin) or not entry.name.isprintable():
            continue
        word = os.path.join(folder, entry.name)  # noqa: PTH118 - keeps what was typed, ~ and ./ too
        if entry.is_dir():
            yield f"{word}/"
        elif entry.name.endswith(_ENDINGS):
            yield word
