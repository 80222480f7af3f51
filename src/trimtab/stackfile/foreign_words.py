"""Pure. Shell text → words and operators, with their lines; nothing is expanded and nothing is run.

Covers what launch scripts are written in: quotes, backslashes, comments, arrays, parameters, command
substitution (kept as text), here documents (skipped) and redirections. What a shell would not take but
people paste (typographic quotes and dashes, blanks after a backslash) is read as it was meant and marked.
"""

from __future__ import annotations

import re
from typing import Final

from trimtab.errors import StackFileError
from trimtab.stackfile.foreign_tokens import Mark, Operator, Part, Token, Word

__all__ = ["read_parts", "read_tokens"]

_BLANKS: Final = " \t"
# No-break and other blanks that separate words on a web page but not in a shell; the last is invisible.
_ODD_BLANKS: Final = "\u00a0\u1680\u2002\u2003\u2007\u2009\u202f\u3000\u200b\ufeff"
_DASHES: Final = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
# Typographic quotes → the quotes they were before an editor beautified them.
_TYPED_QUOTES: Final = dict.fromkeys("\u201c\u201d\u201e", '"') | dict.fromkeys("\u2018\u2019\u201a", "'")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:=,@%+\-\[\]{}~^!*?]+")
_QUOTED_RUN: Final = re.compile(r'[^"$`\\]+')
_REDIRECT: Final = re.compile(r"\d*(?:<<<|<<-?|>>|>&|<&|<>|>\||<(?!\()|>(?!\())|&>>?")
_OPERATOR: Final = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|()]")
_ARRAY_NAME: Final = re.compile(r"[A-Za-z_]\w*\+?=")
_NAME: Final = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!\-]")
_WORD_ENDS: Final = frozenset(" \t\n;&|()<>" + _ODD_BLANKS)
_CONTINUATION: Final = re.compile(r"\\([ \t]*)(\n|\Z)")
_LAST_BACKTICK: Final = re.compile(r"`[ \t]*(?:\n|\Z)")
_ANSI: Final = re.compile(r"'((?:[^'\\]|\\.)*+)'", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


def read_tokens(text: str, *, first_line: int = 1) -> tuple[tuple[Token, ...], tuple[Mark, ...]]:
    """Words and operators of ``text``; StackFileError for a quote or a bracket that is never closed."""
    reader = _Reader(text, first_line)
    return tuple(reader.read()), tuple(reader.marks)


def read_parts(text: str, *, is_quoted: bool) -> tuple[Part, ...]:
    """The default in ``${A:-text}`` as parts; ``is_quoted`` if the whole stands in double quotes."""
    reader = _Reader(text, 0)
    return reader.read_inside() if is_quoted else reader.read_loose()


class _Reader:
    """Goes through a text once."""

    def __init__(self, text: str, first_line: int) -> None:
        self.marks: list[Mark] = []
        self._text = text
        self._pos = 0
        self._line = first_line
        self._documents: list[tuple[str, bool]] = []

    def read(self) -> list[Token]:
        """Every token up to the end."""
        tokens: list[Token] = []
        while self._pos < len(self._text):
            if self._skip_blank():
                continue
            token = self._read_operator() or self._read_word()
            if token is not None:
                tokens.append(token)
        return tokens

    def _peek(self, offset: int = 0) -> str:
        at = self._pos + offset
        return self._text[at] if at < len(self._text) else ""

    def _skip_blank(self) -> bool:
        """Blanks, comments and continued lines; whether there was any."""
        char = self._peek()
        if char in _ODD_BLANKS:
            self.marks.append(Mark(code="odd_blank", line=self._line, text=f"U+{ord(char):04X}"))
            self._pos += 1
            return True
        if char in _BLANKS:
            self._pos += 1
            return True
        if char == "#":
            end = self._text.find("\n", self._pos)
            self._pos = end if end >= 0 else len(self._text)
            return True
        return self._skip_continuation()

    def _skip_continuation(self) -> bool:
        match = _CONTINUATION.match(self._text, self._pos)
        if match is None:
            return False
        if match.group(1) and match.group(2):
            self.marks.append(Mark(code="space_after_backslash", line=self._line))
        self._pos = match.end()
        self._line += len(match.group(2))
        return True

    def _read_operator(self) -> Operator | None:
        if self._peek() == "\n":
            operator = Operator(line=self._line, text="\n")
            self._pos += 1
            self._line += 1
            self._skip_documents()
            return operator
        match = _REDIRECT.match(self._text, self._pos)
        if match is not None:
            self._pos = match.end()
            text = match.group().lstrip("0123456789")
            if text in {"<<", "<<-"}:
                self._note_document(strips_tabs=text == "<<-")
                return None
            return Operator(line=self._line, text=text, is_redirect=True)
        match = _OPERATOR.match(self._text, self._pos)
        if match is None:
            return None
        self._pos = match.end()
        return Operator(line=self._line, text=match.group())

    def _note_document(self, *, strips_tabs: bool) -> None:
        while self._peek() in {" ", "\t"}:
            self._pos += 1
        word = self._read_word()
        self._documents.append((word.literal if word else "", strips_tabs))

    def _skip_documents(self) -> None:
        """Bodies of the here documents that the line just ended has opened."""
        for end, strips_tabs in self._documents:
            first, body = self._line, []
            while self._pos < len(self._text):
                stop = self._text.find("\n", self._pos)
                stop = stop if stop >= 0 else len(self._text)
                line = self._text[self._pos : stop]
                self._pos = min(stop + 1, len(self._text))
                self._line += 1
                if (line.lstrip("\t") if strips_tabs else line) == end:
                    break
                body.append(line)
            self.marks.append(Mark(code="heredoc", line=first, text="\n".join(body)))
        self._documents = []

    def _read_word(self) -> Word | None:
        line, parts = self._line, list[Part]()
        begin = self._pos
        items: tuple[Word, ...] | None = None
        while self._pos < len(self._text):
            char = self._peek()
            if char == "(" and _is_array_name(parts):
                items = self._read_items()
                break
            if char in "<>" and self._peek(1) == "(" and not parts:
                self._pos += 1
                parts.append(Part(kind="unread", text=char + self._read_balanced("(", ")")))
            elif char in _WORD_ENDS or not self._read_piece(parts):
                break
        if self._pos == begin:
            self._pos += self._peek() not in {"", "\n", "\\"}
            return None
        return Word(line=line, parts=_joined(parts), items=items)

    def _read_piece(self, parts: list[Part]) -> bool:
        """One piece of an unquoted word; False where the word ends before it."""
        char = self._peek()
        if char == "\\":
            return self._read_backslash(parts)
        if char == "'":
            parts.append(Part(kind="text", text=self._read_single(), is_quoted=True))
        elif char == '"':
            self._pos += 1
            self._read_double(parts)
        elif char == "$":
            self._read_dollar(parts, is_quoted=False)
        elif char == "`":
            self._read_backtick(parts, is_quoted=False)
        elif char in _TYPED_QUOTES and self._read_typed_quotes(parts):
            pass
        elif char in _DASHES and not parts:
            self._read_typed_dash(parts)
        else:
            self._read_plain(parts)
        return True

    def _read_plain(self, parts: list[Part]) -> None:
        match = _PLAIN.match(self._text, self._pos)
        end = match.end() if match else self._pos + 1
        parts.append(Part(kind="text", text=self._text[self._pos : end]))
        self._pos = end

    def _read_backslash(self, parts: list[Part]) -> bool:
        following = self._peek(1)
        if following == "\n":
            self._pos += 2
            self._line += 1
            return True
        if _CONTINUATION.match(self._text, self._pos):
            return False
        parts.append(Part(kind="text", text=following, is_quoted=True))
        self._pos += 2
        return True

    def _read_single(self) -> str:
        end = self._text.find("'", self._pos + 1)
        if end < 0:
            raise _unclosed("the quote '", self._line)
        text = self._text[self._pos + 1 : end]
        self._pos = end + 1
        self._line += text.count("\n")
        return text

    def _read_double(self, parts: list[Part]) -> None:
        """Parts up to the closing quote, which is passed; one empty part if there are none."""
        first, begin = self._line, len(parts)
        while self._peek() != '"':
            if self._pos >= len(self._text):
                raise _unclosed('the quote "', first)
            self._read_quoted_piece(parts)
        self._pos += 1
        if len(parts) == begin:
            parts.append(Part(kind="text", text="", is_quoted=True))

    def read_inside(self) -> tuple[Part, ...]:
        """The whole text as the inside of double quotes; further double quotes fall away."""
        parts: list[Part] = []
        while self._pos < len(self._text):
            if self._peek() == '"':
                self._pos += 1
            else:
                self._read_quoted_piece(parts)
        return _joined(parts)

    def read_loose(self) -> tuple[Part, ...]:
        """The whole text as one unquoted run, in which blanks and operators are text."""
        parts: list[Part] = []
        while self._pos < len(self._text):
            if self._peek() in _WORD_ENDS or not self._read_piece(parts):
                parts.append(Part(kind="text", text=self._peek()))
                self._pos += 1
        return _joined(parts)

    def _read_quoted_piece(self, parts: list[Part]) -> None:
        """One piece inside double quotes."""
        char = self._peek()
        if char == "$":
            self._read_dollar(parts, is_quoted=True)
        elif char == "`":
            self._read_backtick(parts, is_quoted=True)
        elif char == "\\" and self._peek(1) in {'"', "\\", "$", "`", "\n"}:
            escaped = self._peek(1)
            self._line += escaped == "\n"
            parts.append(Part(kind="text", text="" if escaped == "\n" else escaped, is_quoted=True))
            self._pos += 2
        else:
            match = _QUOTED_RUN.match(self._text, self._pos)
            text = match.group() if match else char
            self._line += text.count("\n")
            parts.append(Part(kind="text", text=text, is_quoted=True))
            self._pos += len(text)

    def _read_dollar(self, parts: list[Part], *, is_quoted: bool) -> None:
        following = self._peek(1)
        self._pos += 1
        if following == "(":
            parts.append(Part(kind="unread", text="$" + self._read_balanced("(", ")"), is_quoted=is_quoted))
        elif following == "{":
            inside = self._read_balanced("{", "}")[1:-1]
            parts.append(Part(kind="parameter", text=inside, is_quoted=is_quoted))
        elif following == "'" and not is_quoted:
            parts.append(Part(kind="text", text=self._read_ansi(), is_quoted=True))
        elif following == '"' and not is_quoted:
            pass
        elif match := _NAME.match(self._text, self._pos):
            self._pos = match.end()
            parts.append(Part(kind="parameter", text=match.group(), is_quoted=is_quoted))
        else:
            parts.append(Part(kind="text", text="$", is_quoted=is_quoted))

    def _read_ansi(self) -> str:
        """``$'…'`` with its commonest escapes."""
        match = _ANSI.match(self._text, self._pos)
        if match is None:
            raise _unclosed("the quote $'", self._line)
        self._pos = match.end()
        self._line += match.group().count("\n")
        return re.sub(
            r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group()), match.group(1), flags=re.DOTALL
        )

    def _read_backtick(self, parts: list[Part], *, is_quoted: bool) -> None:
        if _LAST_BACKTICK.match(self._text, self._pos):
            raise StackFileError(
                f"line {self._line} ends in a backtick, which continues a line in PowerShell only",
                hint="end continued lines in a backslash, as bash has it",
            )
        end = self._text.find("`", self._pos + 1)
        if end < 0:
            raise _unclosed("the backtick `", self._line)
        text = self._text[self._pos : end + 1]
        self._pos = end + 1
        self._line += text.count("\n")
        parts.append(Part(kind="unread", text=text, is_quoted=is_quoted))

    def _read_typed_quotes(self, parts: list[Part]) -> bool:
        """Typographic quotes around a text, on one line, as plain ones."""
        kind = _TYPED_QUOTES[self._peek()]
        stop = self._text.find("\n", self._pos)
        stop = stop if stop >= 0 else len(self._text)
        for end in range(self._pos + 1, stop):
            if _TYPED_QUOTES.get(self._text[end]) == kind:
                self.marks.append(Mark(code="typed_quote", line=self._line, text=self._peek()))
                parts.append(Part(kind="text", text=self._text[self._pos + 1 : end], is_quoted=True))
                self._pos = end + 1
                return True
        return False

    def _read_typed_dash(self, parts: list[Part]) -> None:
        char = self._peek()
        self.marks.append(Mark(code="typed_dash", line=self._line, text=char))
        self._pos += 1
        rest = self._text[self._pos : self._pos + 2]
        is_long = rest[:1] not in {"-", char} and re.match(r"\w\w", rest) is not None
        parts.append(Part(kind="text", text="--" if is_long else "-"))
        if rest[:1] == char:
            self._pos += 1
            parts.append(Part(kind="text", text="-"))

    def _read_items(self) -> tuple[Word, ...]:
        """The words of an array, from its bracket to the closing one."""
        first = self._line
        self._pos += 1
        items: list[Word] = []
        while self._pos < len(self._text):
            if self._peek() == ")":
                self._pos += 1
                return tuple(items)
            if self._skip_blank():
                continue
            if self._peek() == "\n":
                self._pos += 1
                self._line += 1
                continue
            word = self._read_word()
            if word is not None:
                items.append(word)
        raise _unclosed("the array bracket (", first)

    def _read_balanced(self, opening: str, closing: str) -> str:
        """From a bracket to its partner, both included; quotes and nested brackets are passed over."""
        begin, first, depth, quote = self._pos, self._line, 0, ""
        while self._pos < len(self._text):
            char = self._peek()
            self._line += char == "\n"
            if char == "\\" and quote != "'":
                self._pos += 1
                self._line += self._peek() == "\n"
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char in {opening, closing}:
                depth += 1 if char == opening else -1
            self._pos += 1
            if depth == 0:
                return self._text[begin : self._pos]
        raise _unclosed(f"the bracket {opening}", first)


def _unclosed(what: str, line: int) -> StackFileError:
    place = f"line {line}: " if line else ""
    return StackFileError(f"{place}{what} is never closed")


def _is_array_name(parts: list[Part]) -> bool:
    text = "".join(part.text for part in parts if part.kind == "text" and not part.is_quoted)
    return len(text) == sum(len(part.text) for part in parts) and bool(_ARRAY_NAME.fullmatch(text))


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbouring pieces of the same kind as one; empty ones only where a quote makes a word of them."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.kind == part.kind == "text" and last.is_quoted == part.is_quoted:
            joined[-1] = Part(kind="text", text=last.text + part.text, is_quoted=part.is_quoted)
        else:
            joined.append(part)
    return tuple(part for part in joined if part.text or part.kind != "text" or part.is_quoted)
