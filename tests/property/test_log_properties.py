"""Whatever is written, cut and read in whatever order: every byte of a log is seen once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from trimtab.launcher import log_files, log_rotation
from trimtab.launcher.log_files import LogFollower, list_log_files, read_last_lines
from trimtab.launcher.log_rotation import rotate_logs

# Lines without line ends inside; long ones make a log that is worth a cut.
LINES = st.lists(
    st.binary(max_size=12).map(lambda line: line.replace(b"\n", b" ").rstrip(b"\r")), max_size=12
)
STEPS = st.lists(st.sampled_from(["write", "write a piece", "cut", "read", "long"]), min_size=1, max_size=25)


@given(lines=LINES, rest=st.sampled_from([b"", b"unfinished"]), count=st.integers(0, 15))
def test_the_last_lines_are_the_last_lines(lines, rest, count):
    """Reading from the end in pieces gives what reading all gives."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(log_files, "_BLOCK_BYTES", 7):
        path = Path(folder) / "m.log"
        path.write_bytes(b"".join(line + b"\n" for line in lines) + rest)
        shown, end = read_last_lines(path, count)
        whole, begin = read_last_lines(path, count, is_whole=True)
        size = path.stat().st_size

    everything = [*lines, rest] if rest else lines
    assert shown == (everything[-count:] if count else [])
    assert whole == (lines[-count:] if count else [])
    assert (end, begin) == (size, size - len(rest))


@given(steps=STEPS, is_exact=st.booleans())
def test_a_follower_sees_every_byte_once(steps, is_exact):
    """Lines come in order, none twice and none missing, wherever cuts fall."""
    number, pending, seen = 0, b"", []
    patched = mock.patch.object(log_rotation, "_can_collapse", return_value=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "m.log"
        path.touch()
        follower = LogFollower(path, 0)
        for step in steps:
            data = b""
            if step == "write":
                data = b"%d\n" % number
            elif step == "write a piece":
                pending += b"p"
                data = b"p"
            elif step == "long":
                data = b"%d %s\n" % (number, b"z" * 9000)
            elif step == "cut":
                if is_exact:
                    rotate_logs(folder, max_bytes=5000, keep=100)
                else:
                    with patched:
                        rotate_logs(folder, max_bytes=5000, keep=100)
            if step in {"write", "long"}:
                number, pending = number + 1, b""
            with path.open("ab") as log:
                log.write(data)
            # Two cuts without a look between them are a minute apart in use; looks come five a second.
            if step in {"read", "cut"}:
                seen += follower.read_lines()
        seen += follower.read_lines()
        follower.close()
        stored = b"".join(file.read_bytes() for file in list_log_files(path))

    assert [int(line.lstrip(b"p").split(b" ")[0]) for line in seen] == list(range(number))
    assert b"".join(line + b"\n" for line in seen) + pending == stored
