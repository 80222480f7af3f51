"""I/O. The ``trimtab`` command: finds the verb, loads only its module, turns outcomes into exit codes.

Start-up is kept short (``trimtab --help`` within 0.25 s): a verb's module, and with it every
library it needs, is imported only when that verb runs.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Final

import click

from trimtab import __version__
from trimtab.cli.failure import report_failure
from trimtab.errors import TrimtabError

__all__ = ["cli", "main"]

# verb → (module, attribute, one line for the overview). The line stands here, not in the module,
# so that the overview needs no import.
VERBS: Final[dict[str, tuple[str, str, str]]] = {
    "up": ("trimtab.cli.up", "up", "Plan, start and front a model or a stack; Ctrl-C stops it."),
    "plan": ("trimtab.cli.plan", "plan", "Show what would run, what it takes and why; starts nothing."),
    "gateway": ("trimtab.cli.gateway", "gateway", "Front OpenAI endpoints that somebody else runs."),
    "status": ("trimtab.cli.status", "status", "Show what runs, and its memory: predicted and measured."),
    "logs": ("trimtab.cli.logs", "logs", "Print what an engine or trimtab itself wrote."),
    "down": ("trimtab.cli.down", "down", "Stop everything that trimtab started."),
    "keys": ("trimtab.cli.keys", "keys", "Add, list and remove API keys of the gateway."),
    "usage": ("trimtab.cli.keys", "usage", "Show requests and tokens per day, key and model."),
    "pull": ("trimtab.cli.pull", "pull", "Download a model; what is here already is only named."),
    "rm": ("trimtab.cli.pull", "rm", "Remove a model that trimtab downloaded."),
    "bench": ("trimtab.cli.bench", "bench", "Measure an endpoint; score the speed model."),
    "try": ("trimtab.cli.try_model", "try_model", "Prove a model with dummy weights before its download."),
    "doctor": ("trimtab.cli.doctor", "doctor", "Check this machine, each finding with its fix."),
    "completion": ("trimtab.cli.completion", "completion", "Print the completion script of a shell."),
}

EXAMPLES: Final = """\b
Examples:
  trimtab up                        the embedded default, no GPU needed
  trimtab up ./model.gguf           a file of yours
  trimtab up stack.yaml -d          several models, in the background
  trimtab plan ./model.gguf         what it would take; starts nothing
  trimtab status                    what runs
  trimtab down                      stop everything
"""


class _LazyGroup(click.Group):
    """A group that knows its verbs by name and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module, attribute, _ = VERBS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(_no_such_verb(args[0]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(verb, line) for verb, (_, _, line) in VERBS.items()])


def _no_such_verb(word: str) -> str:
    """What to say to a verb that is none: the nearest one, or how to start a model."""
    import difflib  # noqa: PLC0415 - for mistakes only

    near = difflib.get_close_matches(word.lower(), VERBS, n=1)
    if near:
        return f"there is no verb {word!r}; did you mean {near[0]}?"
    if "/" in word or word.endswith((".gguf", ".yaml", ".yml")):
        return f"there is no verb {word!r}; did you mean: trimtab up {word}?"
    return f"there is no verb {word!r}; there are {', '.join(VERBS)}"


@click.group(
    cls=_LazyGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "-V", "--version", message="trimtab %(version)s")
def cli() -> None:
    """Run open-weight LLMs at their best on the machine at hand, behind one OpenAI endpoint."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with the code of its outcome (see trimtab.errors)."""
    arguments = sys.argv[1:] if argv is None else argv
    wants_json = "--json" in arguments
    try:
        code = cli.main(args=arguments, prog_name="trimtab", standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.exceptions.NoArgsIsHelpError as usage:
        click.echo(usage.format_message())
        code = 2
    except click.ClickException as error:
        code = report_failure(_from_click(error), wants_json=wants_json)
    except click.Abort:
        code = 130
    except TrimtabError as error:
        code = report_failure(error, wants_json=wants_json)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # The reader (head, less) left: not our failure. Keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0 if error.errno == errno.EPIPE else 4
    sys.exit(code if isinstance(code, int) else 0)


def _from_click(error: click.ClickException) -> TrimtabError:
    """A usage error of click as ours: one sentence, with the help line as the hint."""
    from trimtab.errors import StackFileError  # noqa: PLC0415 - keeps --help free of it

    message = error.format_message().replace("\n", " ").strip().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"see: {context.command_path} --help" if context is not None else ""
    return StackFileError(message[:1].lower() + message[1:], hint=hint)
