"""Pure. How many tokens of KV cache a request will hold, and how many a model's engines have room for.

Both are estimates that are learnt: a request's from the answers before, the room from what engines tell
(docs/decisions/0006-admission-by-tokens.md).
"""

from __future__ import annotations

import math
from typing import Any, Final

from trimtab.engines.progress import EngineProgress
from trimtab.gateway.admission import FairQueue
from trimtab.gateway.request import RequestFacts
from trimtab.gateway.usage import TokenCount

__all__ = ["TokenEstimate", "TokenRoom"]

# Before anything is known: English text in JSON has about four bytes a token, and 512 tokens are the
# answer that plans are made for where nobody says more.
_FIRST_TOKENS_PER_BYTE: Final = 0.25
_FIRST_ANSWER_TOKENS: Final = 512.0
# What counts of each new answer: about the last twenty decide.
_SMOOTHING: Final = 0.05
# No text is denser or thinner; what is learnt outside of it is an engine's nonsense.
_TOKENS_PER_BYTE: Final = (1 / 32, 1.5)
# No answer is longer, where nobody says what the model's limit is.
_MOST_TOKENS: Final = 2**20
# A body below this holds no image worth looking for.
_SMALL_BYTES: Final = 16 * 1024
# An image, a sound: about a thousand tokens whatever its bytes.
_MEDIUM_BYTES: Final = 4096
# How much more, or less, than their cache the estimates may add up to. More where prompts share blocks or
# answers end early, less where the cache is dealt out in large blocks (hybrid models).
_CORRECTION: Final = (1 / 16, 32.0)
# Fewer that wait, of those that run, have just come and begin with the next step.
_PASSING: Final = 0.1
# Where the correction aims: what is left is for answers that are longer than those before.
_AIM: Final = 0.95
_MAX_RISE: Final = 2.0
_CUT: Final = 0.9
_MIN_RISE: Final = 1.03
# A cut takes effect as requests end; the next one has to wait for it.
_AFTER_CUT_S: Final = 3.0
# Engines are read every 1.5 s while they work.
_ROLL_S: Final = 2.0
# A rise is judged by readings over so long at least, and by one mean answer, as they grow to their end.
_WATCH_S: Final = (6.0, 60.0)


class TokenEstimate:
    """What requests of one model will hold, as learnt from those before."""

    def __init__(self) -> None:
        self._mean_tokens = _FIRST_TOKENS_PER_BYTE
        self._mean_bytes = 1.0
        self._answer_tokens = 0.0

    def guess(self, facts: RequestFacts, *, num_bytes: int, limit: int | None, has_answer: bool) -> float:
        """Tokens of the prompt and of the answer to be expected, within ``limit``."""
        prompt = _text_bytes(facts, num_bytes) * self._mean_tokens / self._mean_bytes
        answer = 0.0
        if has_answer:
            answer = self._answer_tokens or _FIRST_ANSWER_TOKENS
            if facts.max_tokens is not None and facts.max_tokens < answer:
                answer = facts.max_tokens
            answer *= _num_answers(facts)
        tokens = prompt + answer
        return tokens if limit is None or tokens < limit else limit

    def learn(self, facts: RequestFacts, tokens: TokenCount, *, num_bytes: int, limit: int | None) -> None:
        """An answer has come to its end; ``limit`` is what one prompt and its answer have at most."""
        one_answer = tokens.completion / _num_answers(facts)
        if 0 < one_answer <= (limit or _MOST_TOKENS):
            if not self._answer_tokens:
                self._answer_tokens = one_answer
            self._answer_tokens += (one_answer - self._answer_tokens) * _SMOOTHING
        if not tokens.prompt or (facts.has_uncounted_input and num_bytes >= _SMALL_BYTES):
            return
        low, high = _TOKENS_PER_BYTE
        if low <= tokens.prompt / num_bytes <= high:
            # By their sums: a long prompt says more than a short one whose template outweighs it.
            share = _SMOOTHING if self._mean_bytes > 1 else 1.0
            num_prompts = _num_prompts(facts)
            self._mean_tokens += (tokens.prompt / num_prompts - self._mean_tokens) * share
            self._mean_bytes += (num_bytes / num_prompts - self._mean_bytes) * share


def _num_prompts(facts: RequestFacts) -> int:
    """Prompts of one request: a list of them may be; one prompt may also be a list, of token ids."""
    prompt = facts.document.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1


def _num_answers(facts: RequestFacts) -> int:
    """Answers to all prompts of one request."""
    choices = facts.document.get("n")
    return _num_prompts(facts) * (min(choices, 128) if type(choices) is int and choices > 1 else 1)


def _text_bytes(facts: RequestFacts, num_bytes: int) -> int:
    """Bytes of the body that are read as text: an image is none."""
    if num_bytes < _SMALL_BYTES or not facts.has_uncounted_input:
        return num_bytes
    messages = facts.document.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            size = _medium_bytes(part)
            num_bytes -= max(0, size - _MEDIUM_BYTES)
    return max(0, num_bytes)


def _medium_bytes(part: Any) -> int:
    """Bytes of the longest text in what hangs below a part: an image's url, a sound's data."""
    if not isinstance(part, dict):
        return 0
    below = [value for holder in part.values() if isinstance(holder, dict) for value in holder.values()]
    return max((len(value) for value in below if isinstance(value, str)), default=0)


class TokenRoom:
    """Tokens that all engines of a model have room for, by the measure of ``TokenEstimate``.

    ``capacity`` is one engine's. It is corrected by what engines tell: less as soon as one of them is
    full and lets requests wait or evicts some, more when they stay emptier than they could for as long as an
    answer takes while others wait.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.correction = 1.0
        self._readings: dict[str, EngineProgress] = {}
        self._cut_at_s = self._rolled_at_s = -math.inf
        self._most_before = 0.0
        # Since when engines have been watched without a change, and the fullest that one was.
        self._watched_from_s = math.inf
        self._peak_ratio = 0.0

    def limit(self, num_engines: int) -> float:
        """Tokens that may be inside."""
        return self.capacity * num_engines * self.correction

    def note(self, replica_id: str, reading: EngineProgress, queue: FairQueue, *, now_s: float) -> None:
        """Take in what an engine tells while ``queue`` is what is inside and what waits."""
        used_ratio = reading.kv_used_ratio
        if used_ratio is None:
            return
        before = self._readings.get(replica_id)
        self._readings[replica_id] = reading
        most_tokens = self._roll(queue, now_s=now_s)
        num_evicted = 0 if before is None else max(0, reading.num_preemptions - before.num_preemptions)
        if num_evicted or _is_pressed(used_ratio, reading):
            self._watched_from_s = math.inf
            # While more is inside than may be, the last cut has not taken effect yet.
            is_within = queue.num_tokens <= self.limit(queue.num_engines)
            # Without anything inside it is the work of others.
            if most_tokens and is_within and now_s - self._cut_at_s >= _AFTER_CUT_S:
                self._cut_at_s = now_s
                self._cut(reading, num_evicted, held=most_tokens / self.capacity / queue.num_engines)
        elif queue.waits_for_tokens:
            self._watch(used_ratio, mean_s=queue.mean_s, now_s=now_s)
        else:
            self._watched_from_s = math.inf

    def forget_others(self, replica_ids: frozenset[str]) -> None:
        """Readings of engines that are gone say nothing."""
        self._readings = {one: found for one, found in self._readings.items() if one in replica_ids}

    def _roll(self, queue: FairQueue, *, now_s: float) -> float:
        """The most tokens inside within about the time between two readings of one engine."""
        most_tokens = max(self._most_before, queue.most_tokens)
        if now_s - self._rolled_at_s >= _ROLL_S:
            self._rolled_at_s = now_s
            self._most_before, queue.most_tokens = queue.most_tokens, queue.num_tokens
        return most_tokens

    def _cut(self, reading: EngineProgress, num_evicted: int, *, held: float) -> None:
        """Down to what the engine itself works on of what it has; a little where it works on all of it."""
        num_inside = max(1, reading.num_running + reading.num_waiting)
        share = (reading.num_running or num_inside) / num_inside
        if share == 1.0:
            share = max(_CUT, 1 - num_evicted / num_inside / 2)
        self._correct(max(min(self.correction, held) * share, self.correction / 2))

    def _watch(self, used_ratio: float, *, mean_s: float, now_s: float) -> None:
        """Up, once engines had room left for as long as an answer takes."""
        if self._watched_from_s == math.inf:
            self._watched_from_s, self._peak_ratio = now_s, 0.0
        self._peak_ratio = max(self._peak_ratio, used_ratio)
        low_s, high_s = _WATCH_S
        if now_s - self._watched_from_s < min(high_s, max(low_s, mean_s)):
            return
        self._watched_from_s = math.inf
        # Half of the way: a few readings miss the moment when most is in use.
        rise = math.sqrt(_AIM / max(self._peak_ratio, 0.01))
        self._correct(self.correction * min(_MAX_RISE, max(_MIN_RISE, rise)))

    def _correct(self, correction: float) -> None:
        low, high = _CORRECTION
        self.correction = min(high, max(low, correction))


def _is_pressed(used_ratio: float, reading: EngineProgress) -> bool:
    """Whether requests wait inside an engine for want of room: less is free than one of those inside holds.

    Where more is free they wait for the next steps only, as prompts are computed a piece at a time.
    """
    is_full = (1 - used_ratio) * reading.num_running < used_ratio
    return is_full and reading.num_waiting > _PASSING * reading.num_running
