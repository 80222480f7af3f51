"""Several replicas of one model behind one name, over real sockets."""

import asyncio
import json
import socket

import pytest
from scripted_engine import ScriptedEngine, eventually

from trimtab.core.state import ReplicaState, ServedReplica


def replica_at(replica_id, url):
    return ServedReplica(replica_id=replica_id, state=ReplicaState.READY, base_url=url)


@pytest.fixture
async def pair(make_front):
    """A gateway in front of two replicas, the first of which is ``front.engine``."""
    second = await ScriptedEngine().start()
    front = await make_front(replicas=(replica_at("m-0", "x"), replica_at("m-1", second.url)))
    front.second = second
    set_replicas(front, m_0=front.engine.url, m_1=second.url)
    yield front
    await second.stop()


def set_replicas(front, **urls):
    replicas = tuple(replica_at(name.replace("_", "-"), url) for name, url in urls.items())
    front.models[0] = type(front.models[0])(
        name="m", engine="vllm", state=ReplicaState.READY, base_url=replicas[0].base_url, replicas=replicas
    )


def counts(front):
    return len(front.engine.requests), len(front.second.requests)


async def ask(front, **fields):
    headers = fields.pop("headers", None)
    async with front.post(model="m", headers=headers, **fields) as answer:
        return answer.status, await answer.text()


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


async def test_requests_at_once_spread_over_replicas(pair):
    """Two cards do the work of two."""
    answers = await asyncio.gather(*(ask(pair, script="think_first") for _ in range(8)))

    assert {status for status, _ in answers} == {200}
    assert counts(pair) == (4, 4)


async def test_a_chat_stays_with_one_replica(pair):
    """The second message of a chat finds its first in the cache."""
    for _ in range(6):
        await ask(pair, headers={"X-OpenWebUI-Chat-Id": "c"})

    assert sorted(counts(pair)) == [0, 6]


async def test_a_chat_without_a_name_stays_too(pair):
    """The same for clients that name no chat: they are known by how the conversation began."""
    asked = []
    for index in range(6):
        asked += [{"role": "user", "content": f"turn {index}"}]
        await ask(pair, messages=asked)
        asked += [{"role": "assistant", "content": "hi"}]

    assert sorted(counts(pair)) == [0, 6]


async def test_a_replica_that_cannot_be_reached_costs_nobody_an_answer(pair):
    """An engine that has just crashed is not noticed by those who ask."""
    set_replicas(pair, m_0=f"http://127.0.0.1:{free_port()}", m_1=pair.second.url)
    answers = [await ask(pair, stream=bool(index % 2)) for index in range(8)]

    assert {status for status, _ in answers} == {200}
    assert len(pair.second.requests) == 8


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_request_goes_to_one_other_replica_at_most(pair, stream):
    """A request that kills engines does not kill all of them."""
    third = await ScriptedEngine().start()
    set_replicas(pair, m_0=pair.engine.url, m_1=pair.second.url, m_2=third.url)
    status, text = await ask(pair, script="close_before_head", stream=stream)
    await third.stop()

    assert (status, json.loads(text)["error"]["code"]) == (502, "engine_unreachable")
    assert len(pair.engine.requests) + len(pair.second.requests) + len(third.requests) == 2


@pytest.mark.parametrize(
    ("script", "stream"),
    [("fail_dead", False), ("fail_dead", True), ("die_after_head", True), ("close_before_head", False)],
)
async def test_an_engine_whose_core_just_died_costs_nobody_an_answer(pair, script, stream):
    """What it says before its first token is no answer while another engine works."""
    pair.engine.script = script
    answers = [await ask(pair, stream=stream) for _ in range(6)]

    assert {status for status, _ in answers} == {200}
    assert not any("error" in text for _, text in answers)
    assert len(pair.second.requests) == 6
    # It is passed over for a second after each failure.
    assert 1 <= len(pair.engine.requests) <= 5


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_failure_of_two_engines_is_told_as_it_came(pair, stream):
    """The words of the last one reach the client, and a third engine is spared."""
    third = await ScriptedEngine().start()
    set_replicas(pair, m_0=pair.engine.url, m_1=pair.second.url, m_2=third.url)
    status, text = await ask(pair, script="fail_dead", stream=stream)
    await third.stop()

    assert status == (200 if stream else 500)
    assert text.count("EngineCore encountered an issue.") == 1
    assert len(pair.engine.requests) + len(pair.second.requests) + len(third.requests) == 2
    loads = pair.gateway._parts.loads
    assert [loads.in_flight_of(f"m-{number}") for number in range(3)] == [0, 0, 0]


async def test_a_client_that_leaves_before_the_first_event_frees_its_replica(pair):
    """A stream whose head came and nothing else is left with its engine told so."""
    task = asyncio.ensure_future(ask(pair, script="head_and_hang", stream=True))
    await eventually(lambda: sum(counts(pair)) == 1)
    await asyncio.sleep(0.1)
    task.cancel()
    seen = pair.engine.requests + pair.second.requests
    await eventually(lambda: seen[0].ended == "abandoned")
    loads = pair.gateway._parts.loads
    await eventually(lambda: (loads.in_flight_of("m-0"), loads.in_flight_of("m-1")) == (0, 0))


async def test_an_engine_that_is_unavailable_is_passed_over(pair):
    """A 503 of one replica is not the answer while another works."""
    first, second = pair.engine.url, pair.second.url
    await ask(pair, script="refuse", status=503, answer="no")

    assert counts(pair) == (1, 1)
    assert first != second


async def test_nothing_is_asked_twice_once_an_answer_has_begun(pair):
    """Half an answer is never followed by another one's beginning."""
    _, text = await ask(pair, script="die_inside_stream", stream=True)

    assert "engine_died" in text
    assert sum(counts(pair)) == 1


async def test_a_client_that_leaves_frees_its_replica(pair):
    """Aborted requests do not count as load for ever."""
    tasks = [asyncio.ensure_future(ask(pair, script="hang")) for _ in range(4)]
    await eventually(lambda: sum(counts(pair)) == 4)
    for task in tasks:
        task.cancel()
    loads = pair.gateway._parts.loads
    await eventually(lambda: (loads.in_flight_of("m-0"), loads.in_flight_of("m-1")) == (0, 0))
