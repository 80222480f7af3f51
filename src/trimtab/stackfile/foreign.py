"""Pure. Somebody else's launch command, shell script or compose file → the models it serves.

``decode_foreign`` runs nothing, opens nothing and looks nothing up: what a file does not say itself is
named as unknown. The shell reader is our own: shlex loses where a word was quoted and on which line it
stood, bashlex knows no arrays and is under the GPL, and tree-sitter's grammar is a native library that
gives up on exactly the mistakes that are to be named here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trimtab.errors import StackFileError
from trimtab.stackfile.foreign_assemble import Assembly
from trimtab.stackfile.foreign_compose import read_compose
from trimtab.stackfile.foreign_container import read_container
from trimtab.stackfile.foreign_launch import Launch
from trimtab.stackfile.foreign_model import (
    Argument,
    Finding,
    FindingSeverity,
    ForeignForm,
    ForeignStack,
    at_line,
)
from trimtab.stackfile.foreign_scrub import Scrubber, find_secrets
from trimtab.stackfile.foreign_shell import read_script
from trimtab.stackfile.foreign_tokens import Mark, MarkCode

__all__ = ["MAX_FOREIGN_CHARS", "decode_foreign"]

MAX_FOREIGN_CHARS: Final = 256 * 1024
"""Far above any launch script; a log or a checkpoint given by mistake is refused unread."""

# More than any one host has cards.
_MAX_MODELS: Final = 64
_ACCEPTED: Final = (
    "what is read: a vllm serve or docker run line, a shell script with such lines, or a compose file"
)
# What else people have at hand: all of these lines are there → what it is.
_OTHERS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    ((r"^apiVersion\s*:", r"^kind\s*:"), "is a Kubernetes manifest"),
    ((r"^\[Service\]", r"^ExecStart\s*="), "is a systemd unit"),
    ((r"^FROM\s+\S", r"^(?:CMD|ENTRYPOINT|RUN|COPY)\s"), "is a Dockerfile"),
    ((r"^(?:from\s+vllm[\w.]*\s+import|import\s+vllm)\b",), "is a Python program"),
    ((r"^models\s*:\s*(?:$|\{|#)",), "is a trimtab stack file; plan it as it is"),
)
_SERVICES: Final = re.compile(r"(?m)^[\"']?services[\"']?\s*:|\A\s*\{\s*\"services\"")
# The first line that is not blank or a comment of a document, as opposed to a script.
_DOCUMENT: Final = re.compile(r"\s*(?:#(?!!).*\n\s*)*(?:---|\{|%YAML|[\w.\-\"']+\s*:(?:\s|$))")
_CARET: Final = re.compile(r"[ \t]\^[ \t]*\n")
_FENCE: Final = re.compile(r"(?m)^[ \t]*(?:```|~~~).*$")
_SEVERITIES: Final[dict[MarkCode, tuple[FindingSeverity, str, str]]] = {
    "space_after_backslash": (
        "error",
        "blanks follow the backslash, so that the command ends on this line",
        "remove them",
    ),
    "typed_quote": (
        "error",
        "typographic quotes, which the shell takes as part of the text",
        "type plain quotes",
    ),
    "typed_dash": (
        "error",
        "a typographic dash, as blogs make of two hyphens; it begins no flag",
        "type two hyphens",
    ),
    "odd_blank": (
        "error",
        "a blank that the shell does not take as one",
        "type a plain blank",
    ),
}


def decode_foreign(text: str, *, source: str, home: str = "") -> ForeignStack:
    """What ``text`` serves; ``source`` names it in messages, ``home`` is what ``$HOME`` and ``~`` stand for.

    Every flag, variable, card, folder and port that the text gives is there, with the line it stands
    on; what could not be followed is among the findings. StackFileError when the text is of another
    kind, is broken beyond reading, or starts no vLLM at all. Values of secrets are dropped.
    """
    if len(text) > MAX_FOREIGN_CHARS:
        raise StackFileError(
            f"{source} has more than {MAX_FOREIGN_CHARS:,} characters, too many for a launch command",
            hint=_ACCEPTED,
        )
    scrubber = Scrubber(secrets=find_secrets(text))
    try:
        return scrubber.scrub(_decode(text.removeprefix("\ufeff"), source, home))
    except RecursionError:
        raise StackFileError(f"{source} is nested too deeply to be read", hint=_ACCEPTED) from None
    except StackFileError as error:
        own = error.message.removeprefix(source)
        start = source if own != error.message else f"{source}: "
        hint = scrubber.mask(error.hint) or _ACCEPTED
        raise StackFileError(start + scrubber.mask(own), hint=hint) from None


def _decode(text: str, source: str, home: str) -> ForeignStack:
    if "\0" in text:
        raise StackFileError(f"{source} is not text", hint=_ACCEPTED)
    has_carriage_returns = "\r\n" in text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise StackFileError(f"{source} is empty", hint=_ACCEPTED)
    is_document = _DOCUMENT.match(text) is not None and _SERVICES.search(text) is not None
    form: ForeignForm = "compose" if is_document else "script"
    if form == "script":
        _refuse_others(text, source)
    assembly = Assembly(home=home)
    variables = {"HOME": Argument(text=home)} if home else {}
    if form == "compose":
        for container in read_compose(text, assembly.findings, variables):
            assembly.add_container(container)
            _check_number(assembly)
    else:
        _add_script(text, assembly, variables)
        if has_carriage_returns:
            assembly.findings.append(_CARRIAGE_RETURNS)
    if not assembly.models:
        raise _nothing_found(source, assembly)
    return ForeignStack(
        source=source,
        form=form,
        models=tuple(assembly.models),
        findings=tuple(sorted(dict.fromkeys(assembly.findings), key=_line_of)),
    )


def _refuse_others(text: str, source: str) -> None:
    """StackFileError for what is neither a shell's nor compose's."""
    for patterns, what in _OTHERS:
        if all(re.search(pattern, text, re.MULTILINE) for pattern in patterns):
            raise StackFileError(f"{source} {what}", hint=_ACCEPTED)
    caret = _CARET.search(text)
    if caret is not None:
        line = text.count("\n", 0, caret.start()) + 1
        raise StackFileError(
            f"{source}: line {line} ends in ^, which continues a line in the Windows command prompt only",
            hint="end continued lines in a backslash, as bash has it",
        )


_CARRIAGE_RETURNS: Final = Finding(
    code="carriage_returns",
    severity="harmful",
    text="lines end as on Windows; bash takes the carriage return as part of each line's last word",
    hint="convert the file, for example with dos2unix",
)


def _add_script(text: str, assembly: Assembly, variables: Mapping[str, Argument]) -> None:
    script = read_script(_FENCE.sub("", text), variables=variables)
    for launch in script.launches:
        _note_surroundings(launch, assembly)
        if launch.kind == "engine":
            assembly.add_engine(launch)
        else:
            container = read_container(launch.arguments, host_env=launch.env, line=launch.line)
            assembly.add_container(container)
        _check_number(assembly)
    assembly.findings.extend(script.findings)
    for mark in script.marks:
        assembly.findings.extend(_judge_mark(mark, script.launches))


def _check_number(assembly: Assembly) -> None:
    """StackFileError as soon as there are more models than one machine has cards."""
    if len(assembly.models) > _MAX_MODELS:
        raise StackFileError(
            f"it starts more than {_MAX_MODELS} models", hint="give the part for one machine"
        )


def _note_surroundings(launch: Launch, assembly: Assembly) -> None:
    for kind, line in launch.inside:
        if kind == "loop":
            text = "a loop is not followed; what it starts is read once"
            assembly.findings.append(
                Finding(code="loop_not_followed", severity="unknown", text=text, where=at_line(line))
            )
        else:
            text = f"the conditions of this {kind} are not evaluated; every branch is read"
            assembly.findings.append(
                Finding(code="condition_not_followed", severity="note", text=text, where=at_line(line))
            )
    for line in launch.lost_lines:
        assembly.findings.append(
            Finding(
                code="continuation_lost",
                severity="error",
                text="this line begins with an option, and the line before does not go on into it",
                where=at_line(line),
                hint="end the line before in a backslash; a comment line in between ends the command too",
            )
        )


def _judge_mark(mark: Mark, launches: list[Launch]) -> list[Finding]:
    """Slips inside a launch are findings; elsewhere they are nobody's business."""
    if mark.code == "heredoc":
        if "vllm" not in mark.text.lower():
            return []
        text = "a here document that mentions vLLM begins here and was not read"
        return [Finding(code="heredoc", severity="unknown", text=text, where=at_line(mark.line))]
    if not any(launch.first_line <= mark.line <= launch.last_line for launch in launches):
        return []
    severity, text, hint = _SEVERITIES[mark.code]
    return [Finding(code=mark.code, severity=severity, text=text, where=at_line(mark.line), hint=hint)]


def _nothing_found(source: str, assembly: Assembly) -> StackFileError:
    """Why no model came out: the weightiest finding, or that there is nothing of vLLM's."""
    for finding in sorted(assembly.findings, key=lambda f: f.severity not in {"error", "unknown"}):
        place = f" ({finding.where})" if finding.where else ""
        return StackFileError(f"{source}: {finding.text}{place}", hint=finding.hint or _ACCEPTED)
    return StackFileError(f"{source} starts no vLLM", hint=_ACCEPTED)


def _line_of(finding: Finding) -> int:
    digits = finding.where.removeprefix("line ")
    return int(digits) if digits.isdecimal() else 0
