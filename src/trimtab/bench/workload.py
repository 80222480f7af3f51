"""Pure. What is asked: lengths, prefixes, turns and models of every request, from given chance."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimtab.bench.corpus import Corpus, Ruler
from trimtab.errors import StackFileError

__all__ = ["Ask", "IdRange", "LengthRange", "Workload", "decode_length_range", "decode_models", "render_body"]

LONGEST_TOKENS = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRange:
    """Token counts drawn evenly from ``low`` to ``high``, both included."""

    low: int
    high: int

    def pick(self, draw: Callable[[], float]) -> int:
        """One length."""
        return self.low + int(draw() * (self.high - self.low + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    """Token ids that prompts are made of, from ``low`` up to but without ``end``."""

    low: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request before its words: how long, which model, what comes first.

    ``prefix`` numbers the shared beginning (-1: none) of ``prefix_tokens``. ``messages`` is the
    user's own conversation as JSON text, and replaces made-up words. ``turns`` above 1 is a
    conversation: each further turn adds ``input_tokens`` and the answer before it. With ``ids`` the
    prompt is that many token ids, for the completions endpoint of a server that takes them.
    """

    index: int
    model: str
    input_tokens: int
    output_tokens: int
    start_word: int = 0
    prefix: int = -1
    prefix_tokens: int = 0
    turns: int = 1
    messages: str = ""
    at_s: float | None = None
    ids: IdRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The whole load's shape; ``models`` are (name, share) with shares that add up to 1."""

    models: tuple[tuple[str, float], ...]
    input_tokens: LengthRange
    output_tokens: LengthRange
    prefix_tokens: int = 0
    num_prefixes: int = 1
    turns: int = 1
    asks: tuple[Ask, ...] = ()
    ids: IdRange | None = None

    def make(self, index: int, draw: Callable[[], float]) -> Ask:
        """Request ``index``; those given (``asks``) are taken in turn, with the model filled in."""
        model = _pick_model(self.models, draw())
        if self.asks:
            given = self.asks[index % len(self.asks)]
            return Ask(
                index=index,
                model=given.model or model,
                input_tokens=given.input_tokens,
                output_tokens=given.output_tokens or self.output_tokens.pick(draw),
                start_word=given.start_word,
                messages=given.messages,
                at_s=given.at_s,
            )
        length = self.input_tokens.pick(draw)
        return Ask(
            index=index,
            model=model,
            input_tokens=length,
            output_tokens=self.output_tokens.pick(draw),
            start_word=int(draw() * 1_000_000),
            prefix=int(draw() * self.num_prefixes) if self.prefix_tokens else -1,
            prefix_tokens=min(self.prefix_tokens, length),
            turns=self.turns,
            ids=self.ids,
        )


def _pick_model(models: Sequence[tuple[str, float]], drawn: float) -> str:
    passed = 0.0
    for name, share in models:
        passed += share
        if drawn < passed:
            return name
    return models[-1][0]


def decode_length_range(text: str, *, flag: str) -> LengthRange:
    """``1024`` or ``512-2048``; StackFileError names the flag."""
    low, sign, high = text.replace(",", "").replace("_", "").partition("-")
    try:
        found = LengthRange(low=int(low), high=int(high) if sign else int(low))
    except ValueError:
        raise StackFileError(f"{flag} {text!r} isn't a count or a range", hint=f"{flag} 512-2048") from None
    if not 1 <= found.low <= found.high <= LONGEST_TOKENS:
        raise StackFileError(f"{flag} {text!r} isn't within 1 to {LONGEST_TOKENS}, low end first")
    return found


def decode_models(texts: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """``name`` or ``name=share``, several of them; shares are brought to a sum of 1."""
    found: list[tuple[str, float]] = []
    for text in texts:
        name, sign, share = text.rpartition("=")
        try:
            found.append((name, float(share)) if sign else (text, 1.0))
        except ValueError:
            found.append((text, 1.0))
    total = sum(share for _, share in found)
    if any(share <= 0 for _, share in found) or not total > 0:
        raise StackFileError("--model shares must be above 0", hint="--model big=0.8 --model small=0.2")
    return tuple((name, share / total) for name, share in found)


def render_body(ask: Ask, corpus: Corpus, ruler: Ruler, extra: bytes) -> bytes:
    """The JSON body of a first turn. ``extra`` is the tail of fields common to all, from a comma on.

    The nonce in front keeps two requests from sharing a prefix cache by chance.
    """
    common = f'{{"model":{json.dumps(ask.model)},"max_tokens":{ask.output_tokens},'
    if ask.ids is not None:
        return b"".join((common.encode(), b'"prompt":[', _render_ids(ask, ask.ids), b"]", extra, b"}"))
    head = f'{common}"messages":'.encode()
    if ask.messages:
        return b"".join((head, ask.messages.encode(), extra, b"}"))
    words = ruler.words_for(ask.input_tokens)
    if ask.prefix >= 0:
        shared = min(words, max(1, round(ask.prefix_tokens / ruler.tokens_per_word)))
        text = corpus.cut(ask.prefix * 2003, shared)
        words -= shared
        text += b" " + render_words(ask, corpus, words) if words > 0 else b""
    else:
        text = render_words(ask, corpus, words)
    return b"".join((head, b'[{"role":"user","content":"', text, b'"}]', extra, b"}"))


def _render_ids(ask: Ask, ids: IdRange) -> bytes:
    """Ids that look like chance; the request's number sets start and stride, so that no two are alike."""
    span, stride = max(1, ids.end - ids.low), 7919 + 2 * ask.index
    return ",".join(
        str(ids.low + (ask.start_word + position * stride) % span) for position in range(ask.input_tokens)
    ).encode()


def render_words(ask: Ask, corpus: Corpus, words: int) -> bytes:
    """The request's own words: three that number it, then the corpus from its place on."""
    own = corpus.cut(ask.index * 7, 1) + b" " + corpus.cut(ask.index // 8192 + 5, 1)
    if words <= 2:
        return own if words == 2 else corpus.cut(ask.index, 1)
    return own + b" " + corpus.cut(ask.start_word + ask.index, words - 2)
