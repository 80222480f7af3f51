"""Pure. A chat's stream as blocks, one open at a time: thought, text and each tool call on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trimtab.gateway.chat_events import ChatEvent, ToolPiece

__all__ = ["BlockKind", "BlockOrder", "BlockStep"]

BlockKind = Literal["thought", "text", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStep:
    """A block opens, grows by ``text``, or closes; ``call`` is the first piece of a tool call that opens."""

    step: Literal["open", "grow", "close"]
    block: BlockKind
    text: str = ""
    call: ToolPiece | None = None


class BlockOrder:
    """Puts the pieces of an answer into blocks that follow one another.

    Pieces of a second tool call wait until the first is over, which only what comes next tells: engines
    that write several at once would otherwise open blocks inside blocks.
    """

    def __init__(self) -> None:
        self._open: BlockKind | None = None
        self._call_index = 0
        self._waiting: dict[int, list[ToolPiece]] = {}

    def add(self, event: ChatEvent) -> list[BlockStep]:
        """What one event does."""
        steps = self._say("thought", event.thought) + self._say("text", event.text)
        for piece in event.tools:
            steps += self._call(piece)
        return steps

    def close(self) -> list[BlockStep]:
        """End the block that is open, and tell the tool calls that waited for that."""
        if self._open is None:
            return []
        steps = [BlockStep(step="close", block=self._open)]
        self._open = None
        waiting, self._waiting = self._waiting, {}
        for _, pieces in sorted(waiting.items()):
            for piece in pieces:
                steps += self._call(piece)
            steps += self.close()
        return steps

    def _say(self, block: BlockKind, text: str) -> list[BlockStep]:
        if not text:
            return []
        begun = [] if self._open == block else [*self.close(), BlockStep(step="open", block=block)]
        self._open = block
        return [*begun, BlockStep(step="grow", block=block, text=text)]

    def _call(self, piece: ToolPiece) -> list[BlockStep]:
        if self._open == "tool" and self._call_index != piece.index:
            self._waiting.setdefault(piece.index, []).append(piece)
            return []
        steps = []
        if self._open != "tool":
            steps = [*self.close(), BlockStep(step="open", block="tool", call=piece)]
            self._open, self._call_index = "tool", piece.index
        if piece.arguments:
            steps.append(BlockStep(step="grow", block="tool", text=piece.arguments))
        return steps
