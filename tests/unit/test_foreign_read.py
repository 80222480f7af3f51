"""I/O. Files and standard input: what cannot be read is one sentence."""

import io
import os
import sys

import pytest

from trimtab.errors import StackFileError
from trimtab.stackfile.foreign import MAX_FOREIGN_CHARS
from trimtab.stackfile.foreign_read import read_foreign

LINE = "vllm serve org/m --seed 7\n"


def fault_of(path):
    with pytest.raises(StackFileError) as caught:
        read_foreign(path)
    return caught.value.message


def test_a_file(tmp_path):
    """What stands in it is read, and it is named as the source."""
    path = tmp_path / "start.sh"
    path.write_text(LINE)

    stack = read_foreign(path)

    assert stack.source == str(path)
    assert stack.models[0].request.checkpoint == "org/m"


def test_standard_input(monkeypatch):
    """A pasted line needs no file."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE.encode())))

    assert read_foreign("-").models[0].request.checkpoint == "org/m"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("vllm serve $HOME/models/q", id="bare-variable"),
        pytest.param("vllm serve ~/models/q", id="bare-tilde"),
        pytest.param("docker run --gpus all -v ~/models:/m vllm/vllm-openai /m/q", id="docker-tilde"),
        pytest.param(
            "docker run --gpus all -v ${HOME}/models:/m vllm/vllm-openai /m/q", id="docker-variable"
        ),
        pytest.param(
            "services: {m: {image: vllm/vllm-openai, volumes: ['~/models:/m'], command: /m/q}}",
            id="compose-tilde",
        ),
        pytest.param(
            "services: {m: {image: vllm/vllm-openai, volumes: ['${HOME}/models:/m'], command: /m/q}}",
            id="compose-variable",
        ),
    ],
)
def test_the_home_folder_is_this_user_s(tmp_path, monkeypatch, text):
    """The planner finds the files that the script would serve here."""
    monkeypatch.setenv("HOME", "/home/of-somebody")
    path = tmp_path / "start"
    path.write_text(text)

    assert read_foreign(path).models[0].request.checkpoint == "/home/of-somebody/models/q"


def test_a_byte_order_mark_does_not_matter(tmp_path):
    """Files written on Windows are read."""
    path = tmp_path / "start.sh"
    path.write_bytes(b"\xef\xbb\xbf" + LINE.encode())

    assert read_foreign(path).models[0].request.checkpoint == "org/m"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param(b"vllm serve \xff\xfa", "is not UTF-8 text: byte 11 is 0xff", id="not-utf8"),
        pytest.param(LINE.encode("utf-16"), "is UTF-16 text", id="utf16"),
        pytest.param(
            b"x" * (4 * MAX_FOREIGN_CHARS + 1),
            "is larger than 1,048,576 bytes, too large for a launch command",
            id="too-large",
        ),
        pytest.param(
            b"x" * (MAX_FOREIGN_CHARS + 1),
            "has more than 262,144 characters, too many for a launch command",
            id="too-long",
        ),
        pytest.param(b"\x7fELF\0\0", "is not text", id="binary"),
        pytest.param(b"", "is empty", id="empty"),
    ],
)
def test_content_that_is_no_text(tmp_path, content, sentence):
    """A wrong file is told at once."""
    path = tmp_path / "start.sh"
    path.write_bytes(content)

    assert fault_of(path).startswith(f"{path} {sentence}")


def test_a_missing_file(tmp_path):
    """The name is repeated, so that the slip is seen."""
    assert fault_of(tmp_path / "none.sh") == f"{tmp_path / 'none.sh'} does not exist"


def test_a_folder_names_what_is_in_it(tmp_path):
    """The file meant is often in there."""
    (tmp_path / "start.sh").write_text(LINE)

    with pytest.raises(StackFileError) as caught:
        read_foreign(tmp_path)

    assert caught.value.message == f"{tmp_path} is a folder, not a file"
    assert caught.value.hint == "in it there are: start.sh"


def test_a_pipe_is_refused_without_waiting(tmp_path):
    """A FIFO would never end."""
    path = tmp_path / "fifo"
    os.mkfifo(path)

    assert "is a pipe, a socket or a device" in fault_of(path)


def test_a_device_is_refused():
    """/dev/zero would never end either."""
    assert "is a pipe, a socket or a device" in fault_of("/dev/zero")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    """The system's reason is passed on."""
    path = tmp_path / "start.sh"
    path.write_text(LINE)

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)

    assert fault_of(path) == f"{path} cannot be read: permission denied"


def test_an_impossible_name():
    """A NUL in a name is no traceback."""
    assert "cannot be read" in fault_of("a\0b")
