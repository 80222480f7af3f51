"""Pure. Tokens of a script → simple commands and function definitions, in the order written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from trimtab.stackfile.foreign_tokens import Operator, Token, Word

__all__ = ["FunctionDefinition", "SimpleCommand", "Statement", "read_commands"]

# Keywords that stand before a command without being one.
_LEADING: Final = frozenset(
    {"if", "then", "else", "elif", "do", "while", "until", "{", "}", "!", "time", "fi", "done", "esac"}
)
_OPENING: Final = {
    "if": "if",
    "while": "loop",
    "until": "loop",
    "for": "loop",
    "select": "loop",
    "case": "case",
}
_MAX_NESTING: Final = 8
_CLOSING: Final = {"fi": "if", "done": "loop", "esac": "case"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleCommand:
    """Words up to the next separator, redirections taken out.

    ``inside`` are the constructs around it, outermost first, as (kind, line); ``loop_variable`` is
    set on the head of a ``for``. ``lost_lines`` are the lines that begin with an option though the
    line before does not end in a backslash; they are joined to the command they were meant for.
    """

    line: int
    words: tuple[Word, ...]
    inside: tuple[tuple[str, int], ...] = ()
    loop_variable: str = ""
    lost_lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionDefinition:
    """``name() { … }``."""

    line: int
    name: str
    body: tuple[SimpleCommand | FunctionDefinition, ...]


Statement: TypeAlias = SimpleCommand | FunctionDefinition


def read_commands(tokens: Sequence[Token], *, nesting: int = 0) -> tuple[Statement, ...]:
    """Every command; constructs are flattened, so that both branches of an ``if`` are there.

    Functions inside functions (``nesting``) are told apart a few levels deep only.
    """
    return _rejoined(_Commands(tokens, nesting).read())


class _Commands:
    """Goes through the tokens once."""

    def __init__(self, tokens: Sequence[Token], nesting: int) -> None:
        self._tokens = tokens
        self._nesting = nesting
        self._pos = 0
        self._inside: list[tuple[str, int]] = []

    def read(self) -> list[Statement]:
        """Statements up to the end."""
        found: list[Statement] = []
        while self._pos < len(self._tokens):
            definition = self._read_function()
            if definition is not None:
                found.append(definition)
                continue
            command = self._read_simple()
            if command is not None:
                found.append(command)
        return found

    def _at(self, offset: int) -> Token | None:
        at = self._pos + offset
        return self._tokens[at] if at < len(self._tokens) else None

    def _text_at(self, offset: int) -> str:
        """A keyword's or an operator's text, empty for anything else."""
        token = self._at(offset)
        if isinstance(token, Operator):
            return token.text
        return (token.unquoted or "") if token is not None else ""

    def _read_function(self) -> FunctionDefinition | None:
        has_keyword = self._text_at(0) == "function"
        at = 1 if has_keyword else 0
        name = self._at(at)
        if not isinstance(name, Word) or not name.unquoted or self._nesting > _MAX_NESTING:
            return None
        at += 1
        has_brackets = self._text_at(at) == "(" and self._text_at(at + 1) == ")"
        if not has_brackets and not has_keyword:
            return None
        at += 2 if has_brackets else 0
        while self._text_at(at) == "\n":
            at += 1
        if self._text_at(at) != "{":
            return None
        begin = self._pos + at + 1
        end = self._find_brace(begin)
        body = read_commands(self._tokens[begin:end], nesting=self._nesting + 1)
        self._pos = end + 1
        return FunctionDefinition(line=name.line, name=name.unquoted, body=body)

    def _find_brace(self, begin: int) -> int:
        """Where the brace that is open at ``begin`` closes; the end of the file if it never does."""
        depth, is_command_start = 1, True
        for at in range(begin, len(self._tokens)):
            token = self._tokens[at]
            text = token.unquoted if isinstance(token, Word) else None
            if is_command_start and text in {"{", "}"}:
                depth += 1 if text == "{" else -1
                if depth == 0:
                    return at
            is_command_start = isinstance(token, Operator) or (is_command_start and text in _LEADING)
        return len(self._tokens)

    def _read_simple(self) -> SimpleCommand | None:
        words: list[Word] = []
        inside: tuple[tuple[str, int], ...] | None = None
        while (token := self._at(0)) is not None:
            self._pos += 1
            if isinstance(token, Operator):
                if not token.is_redirect:
                    break
                self._pos += isinstance(self._at(0), Word)
                continue
            if not words and self._note_keyword(token):
                continue
            inside = tuple(self._inside[:_MAX_NESTING]) if inside is None else inside
            words.append(token)
        if not words:
            return None
        return self._headed(words, inside or ())

    def _note_keyword(self, word: Word) -> bool:
        """Whether the word is a keyword that opens, closes or leads; the constructs around are kept."""
        text = word.unquoted or ""
        if text in _OPENING:
            self._inside.append((_OPENING[text], word.line))
        elif text in _CLOSING and self._inside and self._inside[-1][0] == _CLOSING[text]:
            self._inside.pop()
        return text in _LEADING

    def _headed(self, words: list[Word], inside: tuple[tuple[str, int], ...]) -> SimpleCommand:
        is_loop = words[0].unquoted in {"for", "select"} and len(words) > 1
        variable = (words[1].unquoted or "") if is_loop else ""
        return SimpleCommand(line=words[0].line, words=tuple(words), inside=inside, loop_variable=variable)


def _rejoined(statements: list[Statement]) -> tuple[Statement, ...]:
    """Commands that begin with an option belong to the command before: its backslash got lost."""
    joined: list[Statement] = []
    words: list[Word] = []
    lost: list[int] = []
    for statement in (*statements, None):
        last = joined[-1] if joined else None
        if (
            isinstance(statement, SimpleCommand)
            and isinstance(last, SimpleCommand)
            and statement.words[0].literal.startswith("-")
            and statement.line > last.line
        ):
            words.extend(statement.words)
            lost.append(statement.line)
            continue
        if lost and isinstance(last, SimpleCommand):
            joined[-1] = replace(last, words=(*last.words, *words), lost_lines=tuple(lost))
            words, lost = [], []
        if statement is not None:
            joined.append(statement)
    return tuple(joined)
