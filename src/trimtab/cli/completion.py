"""I/O. ``trimtab completion SHELL``: the script that makes Tab work."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]


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
    click.echo(completion_class(ctx.find_root().command, {}, "trimtab", "_TRIMTAB_COMPLETE").source())
