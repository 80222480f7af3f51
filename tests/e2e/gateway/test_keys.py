"""Keys from a file, their limits and the usage that is counted, over real sockets."""

import asyncio
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from trimtab.cli.main import cli
from trimtab.gateway.key_ring import KeyRing, add_key
from trimtab.gateway.keys import KeyLimits
from trimtab.gateway.parts import GatewayMore
from trimtab.gateway.request_log import RequestLog
from trimtab.gateway.usage_log import UsageLog, read_usage_totals


@pytest.fixture
async def keyed(make_front, tmp_path):
    """A gateway with the key ``me`` (two requests a minute, model m) and a log of usage."""
    limits = KeyLimits(requests_per_minute=2, models=("m",))
    key = add_key(tmp_path / "keys.json", "me", limits)
    log = UsageLog(tmp_path / "usage.sqlite3")
    front = await make_front(
        settings={"keys": ("stack-key",)},
        more=GatewayMore(keys=KeyRing(tmp_path / "keys.json"), usage=log),
    )
    front.key, front.log, front.folder = key, log, tmp_path
    yield front
    log.close()


async def ask(front, key, **fields):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with front.post(model="m", headers=headers, **fields) as answer:
        return answer.status, await answer.text(), answer.headers


async def test_only_known_keys_come_in(keyed):
    """Keys of the file and of the stack work side by side; nothing else does."""
    assert (await ask(keyed, keyed.key))[0] == 200
    assert (await ask(keyed, "stack-key"))[0] == 200
    for key in ("wrong", "", None):
        status, text, _ = await ask(keyed, key)
        assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")


async def test_without_keys_in_the_stack_the_file_alone_closes_the_gateway(make_front, tmp_path):
    """The first key closes the gateway."""
    key = add_key(tmp_path / "keys.json", "me", KeyLimits())
    front = await make_front(more=GatewayMore(keys=KeyRing(tmp_path / "keys.json")))

    assert [(await ask(front, one))[0] for one in (key, "x", None)] == [200, 401, 401]


async def test_a_key_above_its_limit_is_told_when_to_come_again(keyed):
    """One key's limit is felt by that key alone."""
    answers = [await ask(keyed, keyed.key) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 429]
    assert json.loads(answers[2][1])["error"]["code"] == "key_limit"
    assert 50 <= int(answers[2][2]["Retry-After"]) <= 61

    assert (await ask(keyed, "stack-key"))[0] == 200


async def test_usage_is_counted_per_key_and_model(keyed):
    """Whole answers count by what the engine tells, streams without usage by their events."""
    await ask(keyed, keyed.key)
    await ask(keyed, keyed.key, stream=True, events=3)
    await ask(keyed, "stack-key", script="refuse", status=400, answer="no")
    keyed.log.close()
    mine, other = sorted(read_usage_totals(keyed.folder / "usage.sqlite3"), key=lambda one: -len(one.key))

    assert (mine.key, mine.model, mine.num_requests, mine.prompt_tokens) == ("me", "m", 2, 1)
    assert (mine.completion_tokens, mine.num_estimated) == (1 + 5, 1)
    assert (other.key, other.num_requests, other.num_errors) == ("", 1, 1)


async def test_a_client_that_leaves_is_counted_for_what_it_got(keyed):
    """Half an answer costs half, and gives the key's place back."""
    task = asyncio.ensure_future(ask(keyed, keyed.key, stream=True, script="hang_inside_stream"))
    while not keyed.engine.requests or not keyed.engine.num_written_bytes:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    task.cancel()
    while keyed.gateway.num_in_flight:
        await asyncio.sleep(0.01)
    keyed.log.close()
    (mine,) = read_usage_totals(keyed.folder / "usage.sqlite3")

    assert (mine.num_requests, mine.num_errors, mine.completion_tokens) == (1, 1, 2)


async def test_refusals_count_as_errors_of_their_key_and_model(make_front, tmp_path):
    """Whatever is answered from status 400 on is in the table and in the log, once; strangers are not."""
    limits = KeyLimits(requests_per_minute=1, models=("m",))
    key = add_key(tmp_path / "keys.json", "me", limits)
    usage, log = UsageLog(tmp_path / "usage.sqlite3"), RequestLog(tmp_path / "requests.log")
    front = await make_front(
        engine="llama_cpp",
        settings={"keys": ("stack-key",)},
        more=GatewayMore(keys=KeyRing(tmp_path / "keys.json"), usage=usage, request_log=log),
    )
    front.models.append(replace(front.models[0], name="other"))
    headers = {"Authorization": f"Bearer {key}"}

    async def answer_of(headers, path, **fields):
        async with front.post(path, headers=headers, **fields) as answer:
            await answer.read()
            return answer.status

    chat = "/v1/chat/completions"
    statuses = [
        await answer_of(headers, chat, model="m", messages=[]),
        await answer_of(headers, chat, model="m", messages=[]),
        await answer_of(headers, "/v1/messages", model="other", messages=[], max_tokens=1),
        await answer_of(headers, chat, model="nobody", messages=[]),
        await answer_of(headers, "/v1/score", model="m"),
        await answer_of({"Authorization": "Bearer stack-key"}, "/v1/embeddings", model="m"),
        await answer_of({"Authorization": "Bearer wrong"}, chat, model="m", messages=[]),
    ]
    usage.close()
    log.close()

    assert statuses == [200, 429, 403, 404, 501, 501, 401]
    totals = read_usage_totals(tmp_path / "usage.sqlite3")
    assert {(one.key, one.model): (one.num_requests, one.num_errors) for one in totals} == {
        ("me", "m"): (3, 2), ("me", "other"): (1, 1), ("me", ""): (1, 1), ("", "m"): (1, 1),
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "requests.log").read_text().splitlines()]
    assert [(line["status"], line.get("key"), line["model"]) for line in lines] == [
        (200, "me", "m"), (429, "me", "m"), (403, "me", "other"), (404, "me", ""), (501, "me", "m"),
        (501, None, "m"), (401, None, ""),
    ]  # fmt: skip


async def test_a_virtual_name_is_counted_as_its_model(make_front, tmp_path):
    """What a client may call a model does not add rows."""
    key = add_key(tmp_path / "keys.json", "me", KeyLimits(models=("other",)))
    usage = UsageLog(tmp_path / "usage.sqlite3")
    front = await make_front(more=GatewayMore(keys=KeyRing(tmp_path / "keys.json"), usage=usage))
    front.models[0] = replace(front.models[0], family="qwen3")
    async with front.post(model="m:instant", headers={"Authorization": f"Bearer {key}"}) as answer:
        assert answer.status == 403
    usage.close()
    (one,) = read_usage_totals(tmp_path / "usage.sqlite3")

    assert (one.key, one.model, one.num_errors) == ("me", "m", 1)


async def test_a_key_sees_the_models_that_it_may_use(make_front, tmp_path):
    """A list of what is refused helps nobody; names that choose how a model thinks go with it."""
    some = add_key(tmp_path / "keys.json", "some", KeyLimits(models=("m", "gone")))
    every = add_key(tmp_path / "keys.json", "every", KeyLimits())
    front = await make_front(more=GatewayMore(keys=KeyRing(tmp_path / "keys.json")))
    front.models[0] = replace(front.models[0], family="qwen3")
    front.models.append(replace(front.models[0], name="other"))

    async def names_for(key):
        url = f"{front.gateway.url}/v1/models"
        async with front.session.get(url, headers={"Authorization": f"Bearer {key}"}) as answer:
            return {model["id"] for model in (await answer.json())["data"]}

    assert await names_for(some) == {"m", "m:thinking", "m:instant"}
    assert await names_for(every) >= {"m", "m:instant", "other", "other:thinking"}


def test_keys_and_usage_from_the_command_line(tmp_path, monkeypatch):
    """Keys are made, listed and removed by name; the key itself is shown once."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runner = CliRunner()

    def run(*words):
        done = runner.invoke(cli, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        told.append(done.stderr)
        return done.stdout

    told = []
    assert "nothing was used" in run("usage")
    made = json.loads(run("keys", "add", "me", "--concurrency", "2", "--model", "a", "--json"))
    assert made["key"].startswith("tt-")
    assert "from now on every request needs a key" in told[-1]
    assert len(told[-1].splitlines()) == 1
    run("keys", "add", "you")
    assert told[-1] == ""
    run("keys", "rm", "you")
    listed = json.loads(run("keys", "list", "--json"))["keys"]
    assert listed[0]["name"] == "me"
    assert listed[0]["limits"]["concurrency"] == 2
    assert made["key"] not in run("keys", "list")
    assert "removed me" in run("keys", "rm", "me")
    left = run("keys", "list")
    assert "requests are refused (401)" in left
    assert f"delete {tmp_path / 'trimtab' / 'keys.json'} and start it again" in left
    run("keys", "add", "again")
    assert told[-1] == ""
    run("keys", "rm", "again")
    assert json.loads(run("usage", "--json")) == {"usage": []}
