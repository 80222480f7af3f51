"""Pure. Sizes and durations as people write and read them."""

import pytest

from trimtab.units import format_bytes, format_duration_s, parse_bytes, parse_count, parse_duration_s


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1024", 1024),
        ("24GiB", 24 * 2**30),
        ("500 MB", 500_000_000),
        ("1.5gib", 3 * 2**29),
        (" 2 k ", 2000),
        ("1TiB", 2**40),
        ("0", 0),
    ],
)
def test_sizes_are_read_with_their_unit(text, num_bytes):
    """GiB and GB are not the same."""
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "8Gig", "-1GiB", "1,5GiB", "1 G i B", "nan", "1e9"])
def test_what_is_no_size_is_refused(text):
    """The message lists the legal units."""
    with pytest.raises(ValueError, match="is not a size; write a number with B, KB, KiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2048, "2 KiB"),
        (3 * 2**19, "1.5 MiB"),
        (25 * 2**30, "25.0 GiB"),
        (2**41, "2.0 TiB"),
        (-(2**30), "-1.0 GiB"),
    ],
)
def test_sizes_are_shown_short(num_bytes, text):
    """One decimal is enough on a screen."""
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.35, "350 ms"),
        (4.21, "4.2 s"),
        (185, "3m 05s"),
        (7800, "2h 10m"),
        (59.96, "60.0 s"),
        (3599.9, "1h 00m"),
    ],
)
def test_durations_are_shown_short(seconds, text):
    """The unit fits the length."""
    assert format_duration_s(seconds) == text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("8192", 8192, id="plain"),
        pytest.param("256k", 256_000, id="decimal"),
        pytest.param("256K", 262_144, id="binary"),
        pytest.param("1.5k", 1500, id="fraction"),
        pytest.param("1m", 1_000_000, id="million"),
        pytest.param(" 1M ", 2**20, id="mebi"),
        pytest.param("0", 0, id="nothing"),
    ],
)
def test_counts_are_read_as_vllm_reads_them(text, number):
    """A context means the same on our command line, in the stack file and in an engine argument."""
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "1.5K", "-1", "8kk", "1e9", "٣", "9" * 16, "big"])
def test_what_is_no_count_is_refused(text):
    """The message shows numbers that would do."""
    with pytest.raises(ValueError, match=r"is no number; write one such as 8192, 256k"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("90s", 90), ("1h", 3600), ("1.5h", 5400), (" 2 m ", 120), ("0.5s", 0.5)],
)
def test_times_are_read_with_their_unit(text, seconds):
    """A budget as people write it."""
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "0.0m", "15", "-5m", "15 minutes", "m", "1e9s", "9" * 40 + "s"]
)
def test_what_is_no_time_is_refused(text):
    """A number without a unit, nothing at all, or less: said with an example."""
    with pytest.raises(ValueError, match="15m"):
        parse_duration_s(text)
