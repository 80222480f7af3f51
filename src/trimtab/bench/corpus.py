"""Pure. Text of a wanted length, cheap to cut: common words in seeded order, most of them one token each.

Lengths are in words; how many tokens a server makes of a word is learnt from its usage (``Ruler``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["Corpus", "Ruler"]

_TEXT = (
    "the of and to in is that it was for on are as with they be at one have this from or had by hot but "
    "some what there we can out other were all your when up use word how said an each she which do their "
    "time if will way about many then them would write like so these her long make thing see him two has "
    "look more day could go come did my sound no most number who over know water than call first people "
    "may down side been now find any new work part take get place made live where after back little only "
    "round man year came show every good me give our under name very through just form much great think "
    "say help low line before turn cause same mean differ move right boy old too does tell sentence set "
    "three want air well also play small end put home read hand port large spell add even land here must "
    "big high such follow act why ask men change went light kind off need house picture try us again "
    "animal point mother world near build self earth father head stand own page should country found "
    "answer school grow study still learn plant cover food sun four thought let keep eye never last door "
    "between city tree cross since hard start might story saw far sea draw left late run while press "
    "close night real life few stop open seem together next white children begin got walk example ease "
    "paper often always music those both mark book letter until mile river car feet care second group "
    "carry took rain eat room friend began idea fish mountain north once base hear horse cut sure watch "
    "color face wood main enough plain girl usual young ready above ever red list though feel talk bird "
    "soon body dog family direct pose leave song measure state product black short class wind question "
    "happen complete ship area half rock order fire south problem piece told knew pass farm top whole "
    "king size heard best hour better true during hundred remember step early hold west ground interest"
)
_WORDS = _TEXT.split(" ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruler:
    """Tokens of a prompt = ``fixed_tokens`` + words x ``tokens_per_word``."""

    fixed_tokens: float = 0.0
    tokens_per_word: float = 1.0

    def words_for(self, tokens: int) -> int:
        """Words of a prompt of about ``tokens``; one at least."""
        return max(1, round((tokens - self.fixed_tokens) / self.tokens_per_word))

    @classmethod
    def from_probes(cls, short: tuple[int, int], long: tuple[int, int]) -> Ruler | None:
        """The line through two (words, tokens) probes; None where the counts make no sense."""
        words, tokens = long[0] - short[0], long[1] - short[1]
        if words <= 0 or tokens <= 0:
            return None
        slope = tokens / words
        return cls(fixed_tokens=max(0.0, short[1] - slope * short[0]), tokens_per_word=slope)


class Corpus:
    """A ring of words; ``cut`` gives any stretch of it as bytes that need no JSON escapes."""

    _NUM_WORDS = 8192

    def __init__(self, draw: Callable[[], float]) -> None:
        picked = [_WORDS[int(draw() * len(_WORDS))] for _ in range(self._NUM_WORDS)]
        self._ring = (" ".join(picked) + " ").encode()
        self._starts = [0, *accumulate(len(word) + 1 for word in picked)]

    def cut(self, start_word: int, num_words: int) -> bytes:
        """``num_words`` words from ``start_word`` on, round and round."""
        first = start_word % self._NUM_WORDS
        rounds, last = divmod(first + num_words, self._NUM_WORDS)
        end = rounds * len(self._ring) + self._starts[last]
        whole = self._ring * (rounds + 1) if rounds else self._ring
        return whole[self._starts[first] : end].rstrip()
