"""Pure. A conversation of several turns: each further one carries the answers before it."""

from __future__ import annotations

import json

from trimtab.bench.corpus import Corpus, Ruler
from trimtab.bench.workload import Ask, render_words

__all__ = ["Conversation"]


class Conversation:
    """The messages of one ask, growing by a question and an answer per turn."""

    def __init__(self, ask: Ask, corpus: Corpus, ruler: Ruler, extra: bytes) -> None:
        self._ask, self._corpus, self._ruler, self._extra = ask, corpus, ruler, extra
        self._messages: list[dict[str, str]] = []

    def render(self, turn: int) -> bytes:
        """The body of turn ``turn``, with its question added."""
        words = self._ruler.words_for(self._ask.input_tokens)
        text = render_words(self._ask, self._corpus, words) if turn == 0 else self._next_words(turn, words)
        self._messages.append({"role": "user", "content": text.decode()})
        fields = {"model": self._ask.model, "max_tokens": self._ask.output_tokens, "messages": self._messages}
        return json.dumps(fields)[:-1].encode() + self._extra + b"}"

    def _next_words(self, turn: int, words: int) -> bytes:
        return self._corpus.cut(self._ask.start_word + 1009 * turn, words)

    def add_answer(self, text: str) -> None:
        """What the model said to the last question."""
        self._messages.append({"role": "assistant", "content": text})
