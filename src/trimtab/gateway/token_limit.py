"""Pure. Judges ``max_tokens`` against what one request may use.

The rule: refuse only what can never work (``max_tokens`` alone above the limit, or a prompt that
leaves no room for one token); otherwise lower it to the room that is left, and say so.
"""

from __future__ import annotations

from typing import Final

from trimtab.errors import GatewayError
from trimtab.gateway.request import RequestFacts

__all__ = ["cap_max_tokens", "check_limits", "check_max_tokens", "check_windows", "needs_prompt_count"]

# Sampling windows in tokens. llama.cpp allocates dry_penalty_last_n as asked: 300,000,000 took 2.3 GB
# (measured, xllamacpp 2026.10.11549), so one small request could take the memory of all.
_WINDOWS: Final = ("dry_penalty_last_n", "repeat_last_n")

# Tokens a chat template may add that no byte of the body stands for (a default system prompt, turn
# marks). A bound, not an estimate: too low would let a cap go unnoticed, too high costs one count.
_TEMPLATE_SLACK_TOKENS: Final = 1024

# A body of fewer bytes per token of the limit is rarely too long (text has 3 to 5 bytes a token), and the
# engine refuses the rare one: counting every second request would cost more than it spares.
_SUSPECT_BYTES_PER_TOKEN: Final = 2


def check_limits(facts: RequestFacts, *, body_bytes: int, limit: int) -> bool:
    """Whether the prompt must be counted; GatewayError (400) for what can never fit."""
    check_max_tokens(facts, limit=limit)
    check_windows(facts, limit=limit)
    return needs_prompt_count(facts, body_bytes=body_bytes, limit=limit)


def check_max_tokens(facts: RequestFacts, *, limit: int) -> None:
    """GatewayError (400) when ``max_tokens`` alone exceeds the model's limit."""
    if facts.max_tokens is not None and facts.max_tokens > limit:
        raise GatewayError(
            f"max_tokens is {facts.max_tokens:,}, above the {limit:,} tokens one request may use",
            status=400,
            code="max_tokens_exceeded",
            param="max_tokens",
            hint=f"ask for at most {limit - 1:,}, less the length of the prompt",
        )


def check_windows(facts: RequestFacts, *, limit: int) -> None:
    """GatewayError (400) when a sampling window is longer than the context, where it has no meaning."""
    for field in _WINDOWS:
        value = facts.document.get(field)
        if isinstance(value, int | float) and value > limit:
            raise GatewayError(
                f"{field} is {value:g}, above the {limit:,} tokens one request may use",
                status=400,
                code="invalid_value",
                param=field,
                hint="use -1 for the whole context",
            )


def needs_prompt_count(facts: RequestFacts, *, body_bytes: int, limit: int) -> bool:
    """Whether prompt and answer together might exceed the limit, so that the prompt must be counted.

    Guaranteed where ``max_tokens`` is set: False means that they fit. A token stands for at least one
    byte of text, and the body holds every byte of the prompt except what the template adds. Without it
    the engine ends at the limit itself, and only a body so large that its prompt may be over-long counts.
    """
    if facts.max_tokens is None:
        return body_bytes > _SUSPECT_BYTES_PER_TOKEN * limit
    if facts.has_uncounted_input:
        return True
    return body_bytes + _TEMPLATE_SLACK_TOKENS + facts.max_tokens > limit


def cap_max_tokens(max_tokens: int, *, prompt_tokens: int, limit: int) -> int | None:
    """The lower limit to use instead, or None when nothing need change.

    GatewayError (400) when the prompt leaves no room for one token.
    """
    room = limit - prompt_tokens
    if room < 1:
        raise GatewayError(
            f"the prompt has {prompt_tokens:,} tokens and leaves no room for an answer: "
            f"one request may use {limit:,} tokens",
            status=400,
            code="context_length_exceeded",
            param="messages",
        )
    return room if max_tokens > room else None
