"""Damaged GGUF files: whatever bytes a file has, the reader answers quickly with facts or one sentence."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from functools import cache
from pathlib import Path

from gguf_files import SmallModel, write_small_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.errors import TrimtabError
from trimtab.probes.gguf_header import read_gguf_header
from trimtab.units import MIB


@cache
def _whole() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        model = SmallModel(kv_heads=[2, 1], window=64, template="{{ x }}", quant="Q8_0")
        return write_small_gguf(Path(folder) / "toy.gguf", model).read_bytes()


def _read(content: bytes) -> None:
    """Read ``content`` as a file; anything but facts or a TrimtabError fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.gguf"
        path.write_bytes(content)
        message = "facts"
        try:
            read_gguf_header(path)
        except TrimtabError as error:
            message = error.message
        assert message
        assert "\n" not in message


@settings(max_examples=400, deadline=2000)
@given(st.data())
def test_flipped_bytes_give_facts_or_one_sentence(data: st.DataObject):
    """A damaged download never ends in a traceback."""
    damaged = bytearray(_whole())
    # Most of the file is tensor data; the header is where flips hurt.
    header_bytes = min(len(damaged), 4000)
    places = data.draw(st.lists(st.integers(0, header_bytes - 1), min_size=1, max_size=8))
    for place in places:
        damaged[place] = data.draw(st.integers(0, 255))
    _read(bytes(damaged))


@settings(max_examples=200, deadline=2000)
@given(st.data())
def test_large_numbers_in_the_header_neither_hang_nor_fill_the_memory(data: st.DataObject):
    """A file that claims to be astronomically large is refused at once and without taking memory."""
    damaged = bytearray(_whole())
    place = data.draw(st.integers(4, 1500))
    damaged[place : place + 8] = data.draw(st.integers(2**31, 2**64 - 1)).to_bytes(8, "little")
    started_s = time.process_time()
    tracemalloc.start()
    try:
        _read(bytes(damaged))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20 * MIB
    assert time.process_time() - started_s < 2


@settings(max_examples=200, deadline=2000)
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic_are_survived(tail: bytes):
    """A file that only pretends to be GGUF is refused."""
    _read(b"GGUF\x03\x00\x00\x00" + tail)
