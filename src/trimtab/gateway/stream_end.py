"""Pure. Judges how a stream of server-sent events ended, from the last events that came.

HTTP alone does not tell a whole answer from one whose engine died where the stream has no length, and
an engine that shuts down in good order may still cut an answer. The protocol's own marks do tell.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from trimtab.gateway.assemble import decode_events

__all__ = ["DONE_EVENT", "StreamEnd", "judge_end"]

# done: [DONE] came · finished: a last chunk came without it · error: the engine said what failed ·
# cut: none of these.
StreamEnd: TypeAlias = Literal["done", "finished", "error", "cut"]

DONE_EVENT: Final = b"data: [DONE]\n\n"
_DONE_ENDINGS: Final = (b"data: [DONE]", b"data:[DONE]")


def judge_end(last_events: bytes) -> StreamEnd:
    """How the stream ended whose last piece with a ``data:`` line was ``last_events``."""
    if last_events.rstrip(b"\r\n").endswith(_DONE_ENDINGS) or _is_done_before_comments(last_events):
        return "done"
    try:
        documents = decode_events(last_events)
    except ValueError:
        return "cut"
    if not documents:
        return "cut"
    last = documents[-1]
    if last.get("error") is not None:
        return "error"
    choices = last.get("choices")
    is_last = last.get("usage") is not None and not choices
    if isinstance(choices, list):
        is_last |= any(isinstance(one, dict) and one.get("finish_reason") is not None for one in choices)
    return "finished" if is_last else "cut"


def _is_done_before_comments(last_events: bytes) -> bool:
    """Whether nothing but comments follows [DONE]: proxies send some to keep a connection awake."""
    lines = [line for line in last_events.splitlines() if line.startswith(b"data:")]
    return bool(lines) and lines[-1].rstrip() in _DONE_ENDINGS
