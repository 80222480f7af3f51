"""libcuda's few calls of the copy test over plain byte arrays, with faults on order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeCuda:
    """``damages`` changes what a copy from card to card brings; ``refused`` pairs have no peer access.

    ``codes`` maps a call's name to the code it returns instead of working.
    """

    count: int
    refused: set[tuple[int, int]] = field(default_factory=set)
    damages: Callable[[int, int, bytes], bytes] = lambda source, target, data: data
    codes: dict[str, int] = field(default_factory=dict)
    memory: dict[int, tuple[int, bytearray]] = field(default_factory=dict)
    current: int = -1
    enabled: set[tuple[int, int]] = field(default_factory=set)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        if name in self.codes:
            return lambda *_arguments: self.codes[name]
        method = getattr(type(self), f"_{name[2:].removesuffix('_v2').lower()}")
        return lambda *arguments: method(self, *arguments) or 0

    def _init(self, flags: Any) -> None:
        """Nothing to start."""

    def _deviceget(self, device: Any, ordinal: Any) -> int:
        device._obj.value = ordinal.value
        return 0 if ordinal.value < self.count else 101

    def _deviceprimaryctxretain(self, context: Any, device: Any) -> None:
        context._obj.value = 1000 + device.value

    def _ctxsetcurrent(self, context: Any) -> None:
        self.current = context.value - 1000

    def _memalloc(self, pointer: Any, size: Any) -> None:
        pointer._obj.value = (self.current + 1) << 32
        self.memory[pointer._obj.value] = (self.current, bytearray(size.value))

    def _devicecanaccesspeer(self, answer: Any, device: Any, other: Any) -> None:
        answer._obj.value = int((other.value, device.value) not in self.refused)

    def _ctxenablepeeraccess(self, context: Any, flags: Any) -> int:
        pair = (self.current, context.value - 1000)
        was_enabled = pair in self.enabled
        self.enabled.add(pair)
        return 704 if was_enabled else 0

    def _memcpyhtod(self, target: Any, data: bytes, size: Any) -> None:
        self.memory[target.value][1][:] = data[: size.value]

    def _memsetd8(self, target: Any, value: Any, size: Any) -> None:
        self.memory[target.value][1][:] = bytes([value.value]) * size.value

    def _memcpypeer(self, target: Any, to: Any, source: Any, of: Any, size: Any) -> None:
        to_card, from_card = to.value - 1000, of.value - 1000
        assert (to_card, from_card) in self.enabled
        data = bytes(self.memory[source.value][1][: size.value])
        self.memory[target.value][1][:] = self.damages(from_card, to_card, data)

    def _ctxsynchronize(self) -> None:
        """Copies are done already."""

    def _memcpydtoh(self, target: Any, source: Any, size: Any) -> None:
        ctypes.memmove(target, bytes(self.memory[source.value][1]), size.value)
