"""The control socket: whatever is sent there is answered in words, and nothing breaks the supervisor."""

from __future__ import annotations

import asyncio
import json

import pytest

from trimtab.errors import EnvironmentMissingError, StackFileError, TrimtabError
from trimtab.launcher.control import ControlServer, send_request


@pytest.fixture
async def server(tmp_path):
    """A server that repeats the model it is asked for, and fails by the names of errors."""

    async def handle(request, say):
        errors = {"stack": StackFileError("no such model", hint="look"), "type": TypeError("odd")}
        if request.get("model") in errors:
            raise errors[request["model"]]
        return {"model": request.get("model")}

    control = ControlServer(tmp_path, handle)
    await control.start()
    yield control
    await control.stop()


async def _send(folder, line):
    reader, writer = await asyncio.open_unix_connection(str(folder / "control.sock"))
    writer.write(line)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return json.loads(answer)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param(b"[]\n", "a JSON list, not an object", id="list"),
        pytest.param(b"7\n", "a JSON int, not an object", id="number"),
        pytest.param(b"[" * 100_000 + b"\n", "nested too deeply", id="deep"),
        pytest.param(b"{\n", "no JSON", id="truncated"),
        pytest.param(b"\xff\xfe\n", "no JSON", id="no-text"),
        pytest.param(b"\n", "no JSON", id="empty"),
        pytest.param(b"{}\n", "names no command", id="no-command"),
        pytest.param(b'{"command": []}\n', "names no command", id="command-list"),
        pytest.param(b'{"command": "frobnicate"}\n', "unknown command 'frobnicate'", id="unknown"),
        pytest.param(b'{"command": "drop", "model": "type"}\n', "cannot be carried out", id="failure"),
    ],
)
@pytest.mark.usefixtures("server")
async def test_an_odd_request_is_answered_in_words(tmp_path, line, words):
    """A program that sends something else reads why, and the next request is served."""
    assert words in (await _send(tmp_path, line))["error"]["message"]
    assert await send_request(tmp_path, {"command": "drop", "model": "m"}, print) == {"model": "m"}


@pytest.mark.usefixtures("server")
async def test_a_failure_keeps_its_kind_on_the_way_back(tmp_path):
    """The other command ends with the same exit code and hint."""
    with pytest.raises(StackFileError) as error:
        await send_request(tmp_path, {"command": "drop", "model": "stack"}, print)
    assert (error.value.message, error.value.hint) == ("no such model", "look")


async def test_a_folder_in_its_place_is_named(tmp_path):
    """What stands in the way is said, before a model is loaded."""
    (tmp_path / "control.sock").mkdir()
    control = ControlServer(tmp_path, None)
    with pytest.raises(EnvironmentMissingError, match=r"control\.sock is a folder"):
        await control.start()
    await control.stop()


async def test_nobody_there_is_told(tmp_path):
    """A request to a folder that nobody supervises does not hang."""
    with pytest.raises(TrimtabError, match="does not listen"):
        await send_request(tmp_path, {"command": "endpoints"}, print)
