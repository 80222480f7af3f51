"""Cards as text: counts, names, free form; what is wrong is said with the nearest names."""

from __future__ import annotations

import pytest

from trimtab.core.hardware import Gpu
from trimtab.errors import StackFileError
from trimtab.planner.accelerator_specs import CARDS, complete_gpu, find_card, nearest_cards
from trimtab.planner.gpu_spec import decode_gpu_spec

GIB = 1 << 30
WANTED = {
    "h100",
    "h200",
    "b200",
    "b300",
    "a100-80g",
    "l40s",
    "l4",
    "a10",
    "rtx3090",
    "rtx4090",
    "rtx5090",
    "rtxpro6000",
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("4xrtx4090", ["rtx4090"] * 4, id="tight"),
        pytest.param("4x rtx4090", ["rtx4090"] * 4, id="spaced"),
        pytest.param("4 X RTX 4090", ["rtx4090"] * 4, id="shouting"),
        pytest.param("h200", ["h200"], id="one"),
        pytest.param("2xrtx5090,1xrtx3090", ["rtx5090", "rtx5090", "rtx3090"], id="mixed"),
        pytest.param("1xh100, h200", ["h100", "h200"], id="count-left-out"),
        pytest.param("8x a100", ["a100-80g"] * 8, id="alias"),
    ],
)
def test_counts_and_names(text: str, names: list[str]) -> None:
    """Every spelling that the manual shows."""
    gpus = decode_gpu_spec(text)
    assert [gpu.spec for gpu in gpus] == names
    assert [gpu.index for gpu in gpus] == list(range(len(names)))


def test_a_card_in_free_form() -> None:
    """Memory, bandwidth and capability describe any card."""
    gpu, other = decode_gpu_spec("1x custom:mem=24GiB,bw=1000GB/s,cc=8.9, 1xl4")
    assert (gpu.total_bytes, gpu.memory_bandwidth_bytes_per_s) == (24 * GIB, 10**12)
    assert (gpu.compute_capability, gpu.spec, other.spec) == ((8, 9), "", "l4")
    assert [card.index for card in decode_gpu_spec("3x custom:mem=16GB,cc=12.0")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "empty", id="empty"),
        pytest.param("0xh100", "asks for 0 cards", id="none"),
        pytest.param("-1xh100", "asks for -1 cards", id="negative"),
        pytest.param("1.5xh100", "whole number", id="half"),
        pytest.param("999xh100", "above 64", id="absurd"),
        pytest.param("40xh100,40xh200", "names 80 cards", id="absurd-together"),
        pytest.param("2xrtx4080", "nearest: rtx4090", id="unknown"),
        pytest.param("4x", "isn't a known card", id="no-name"),
        pytest.param("1x custom:mem=24GiB", "cc is missing", id="no-capability"),
        pytest.param("1x custom:cc=8.9", "mem is missing", id="no-memory"),
        pytest.param("1x custom:mem=-3GiB,cc=8.9", "not a size", id="negative-memory"),
        pytest.param("1x custom:mem=3PiB,cc=8.9", "not a size", id="unknown-unit"),
        pytest.param("1x custom:mem=4000GiB,cc=8.9", "1 GiB to 1 TiB", id="absurd-memory"),
        pytest.param("1x custom:mem=24GiB,cc=89", "capability", id="capability-without-dot"),
        pytest.param("1x custom:mem=24GiB,cc=8.9,bw=1B/s", "1 GB/s", id="absurd-bandwidth"),
        pytest.param("1x custom:mem=24GiB,cc=8.9,sm=3", "'sm' isn't one of", id="unknown-key"),
        pytest.param("1x custom:24GiB", "isn't key=value", id="no-key"),
        pytest.param("1x custom", "isn't key=value", id="nothing-said"),
    ],
)
def test_what_is_wrong_is_said(text: str, complaint: str) -> None:
    """One sentence with what was written; most come with what would work."""
    with pytest.raises(StackFileError) as caught:
        decode_gpu_spec(text)
    assert complaint in caught.value.message


def test_the_hint_shows_the_free_form() -> None:
    """Whoever owns another card learns how to describe it."""
    with pytest.raises(StackFileError) as caught:
        decode_gpu_spec("1x gtx1080")
    assert "custom:mem=" in caught.value.hint


def test_the_catalogue_has_what_is_promised() -> None:
    """Every promised card, each with a source, below its label's size."""
    assert CARDS.keys() >= WANTED
    for spec in CARDS.values():
        assert spec.total_source
        assert spec.sheet
        assert spec.total_bytes < 300 * GIB
    assert CARDS["rtx4090"].total_bytes < 24 * GIB
    assert CARDS["h200"].total_bytes == 150109880320


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param("NVIDIA GeForce RTX 4090", "rtx4090", id="4090"),
        pytest.param("NVIDIA H100 80GB HBM3", "h100", id="h100"),
        pytest.param("NVIDIA A100-SXM4-80GB", "a100-80g", id="a100"),
        pytest.param("NVIDIA L4", "l4", id="l4"),
        pytest.param("NVIDIA L40S", "l40s", id="l40s"),
        pytest.param("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000", id="pro"),
        pytest.param("NVIDIA GeForce RTX 4090 Laptop GPU", None, id="laptop"),
        pytest.param("NVIDIA A100-SXM4-40GB", None, id="smaller-a100"),
        pytest.param("Tesla T4", None, id="t4"),
    ],
)
def test_driver_names_are_recognised(name: str, spec: str | None) -> None:
    """What the driver calls a card finds its entry, and no other card's."""
    found = find_card(name)
    assert (found.name if found else None) == spec


def test_a_found_card_keeps_what_the_driver_said() -> None:
    """The catalogue fills gaps and overrules nothing."""
    gpu = complete_gpu(Gpu(index=3, name="NVIDIA GeForce RTX 3090", total_bytes=25 * GIB, free_bytes=GIB))
    assert (gpu.index, gpu.total_bytes, gpu.free_bytes) == (3, 25 * GIB, GIB)
    assert (gpu.spec, gpu.compute_capability, gpu.has_p2p) == ("rtx3090", (8, 6), False)
    other = Gpu(index=0, name="Tesla T4", total_bytes=16 * GIB)
    assert complete_gpu(other) == other


def test_names_that_look_alike_are_offered() -> None:
    """A slip of the finger gets its card."""
    assert nearest_cards("rtx409")[0] == "rtx4090"


@pytest.mark.parametrize(
    ("text", "maker"),
    [
        pytest.param("8xmi300x", "AMD", id="instinct"),
        pytest.param("1x AMD Instinct MI250", "AMD", id="long"),
        pytest.param("2xrx7900xtx", "AMD", id="radeon"),
        pytest.param("gaudi3", "Intel", id="gaudi"),
    ],
)
def test_a_card_of_another_maker_is_called_that(text, maker):
    """Nobody is sent to describe a card that no plan would be right for."""
    with pytest.raises(StackFileError, match=f"a card by {maker}, and only NVIDIA cards are planned"):
        decode_gpu_spec(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param(",,,", "names no card", id="commas"),
        pytest.param("1x custom:mem=24GiB,mem=48GiB,cc=8.9", "'mem' is given twice", id="twice"),
        pytest.param("x" * 100_000, "isn't a known card", id="long name"),
        pytest.param("9" * 5000 + "xh100", "above 64", id="long count"),
        pytest.param("1x custom:mem=" + "9" * 9000 + ",cc=8.9", "is not a size", id="long size"),
        pytest.param("1x custom:" + "a" * 9000, "isn't key=value", id="long field"),
        pytest.param("1x custom:mem=24GiB,cc=" + "8" * 9000, "cc is '888", id="long capability"),
    ],
)
def test_odd_texts_are_refused_and_cut(text: str, complaint: str) -> None:
    """Nothing is taken for no wish, no value counts silently, and no screen is filled."""
    with pytest.raises(StackFileError, match=complaint) as caught:
        decode_gpu_spec(text)
    assert len(caught.value.message) < 400
