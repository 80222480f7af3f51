"""Requests that wait for a busy model, over real sockets."""

import asyncio
import json
from dataclasses import replace

import pytest
from scripted_engine import ScriptedEngine, eventually

from trimtab.engines.progress import EngineProgress
from trimtab.gateway.admission import AdmissionSettings
from trimtab.gateway.key_ring import KeyRing, add_key
from trimtab.gateway.keys import KeyLimits
from trimtab.gateway.parts import GatewayMore

SERVICE_S = 0.2
LEVELS = {"first": 0, "nightly": -1, "usual": 0, "chat": 1}


async def ask(front, *, key="k", headers=None, **fields):
    headers = {"Authorization": f"Bearer {key}"} | (headers or {})
    async with front.post(model="m", headers=headers, **fields) as answer:
        return answer.status, await answer.text(), answer.headers


def num_waiting(front):
    return sum(gate.queue.num_waiting for gate in front.gateway._parts.gates)


async def occupy(front, *, key="first", **fields):
    """A request that holds a slot until it is cancelled."""
    before = len(front.engine.requests)
    task = asyncio.ensure_future(ask(front, script="hang", key=key, **fields))
    await eventually(lambda: len(front.engine.requests) > before)
    return task


async def test_an_engine_gets_no_more_than_it_can_work_on(make_front):
    """What waits waits in the gateway, where it can be put in order."""
    front = await make_front(concurrency=2)
    tasks = [asyncio.ensure_future(ask(front, script="think_first")) for _ in range(6)]
    await eventually(lambda: num_waiting(front) == 4)
    most = 0
    while not all(task.done() for task in tasks):
        most = max(most, sum(not request.ended for request in front.engine.requests))
        await asyncio.sleep(0.01)
    answers = await asyncio.gather(*tasks)

    assert most == 2
    assert {status for status, _, _ in answers} == {200}


async def test_an_engine_gets_no_more_tokens_than_its_cache_has_room_for(make_front):
    """Long prompts wait in the gateway, though slots are free, and all of them are answered."""
    front = await make_front(concurrency=16, kv_cache_tokens=2000)
    text = "word " * 600  # 3,000 bytes, so about 750 tokens, and 100 of answer: two have room
    fields = {"script": "think_first", "messages": [{"role": "user", "content": text}], "max_tokens": 100}
    tasks = [asyncio.ensure_future(ask(front, **fields)) for _ in range(6)]
    await eventually(lambda: num_waiting(front) == 4)
    small = asyncio.ensure_future(ask(front, key="other", max_tokens=1))
    most = 0
    while not all(task.done() for task in (*tasks, small)):
        most = max(most, sum(not request.ended for request in front.engine.requests))
        await asyncio.sleep(0.01)

    # The small one has room beside two, once it is its turn.
    assert 2 <= most <= 3
    assert {task.result()[0] for task in (*tasks, small)} == {200}
    (gate,) = front.gateway._parts.gates
    assert (gate.queue.num_running, gate.queue.num_tokens) == (0, 0)


async def test_what_the_engine_tells_moves_the_bound(make_front):
    """An engine that queues inside, as nothing is free there, is sent half as much from then on."""
    front = await make_front(concurrency=16, kv_cache_tokens=2000)
    tasks = [await occupy(front, max_tokens=900) for _ in range(3)]
    tasks.append(asyncio.ensure_future(ask(front, max_tokens=900)))
    await eventually(lambda: num_waiting(front) == 1)
    told = EngineProgress(
        marks=(), num_running=1, num_waiting=1, answer_is_life=False, kv_used_ratio=0.9, num_preemptions=0
    )
    front.gateway.note_engine("m", "m-0", told)
    front.gateway.note_engine("unknown", "m-0", told)

    (gate,) = front.gateway._parts.gates
    assert gate.queue.token_limit == 1000
    for task in tasks[:3]:
        task.cancel()
    assert (await tasks[3])[0] == 200


async def test_a_key_of_higher_priority_is_next(make_front, tmp_path):
    """The chat of a person does not wait for what a nightly job had put in before."""
    path = tmp_path / "keys.json"
    keys = {name: add_key(path, name, KeyLimits(), priority=level) for name, level in LEVELS.items()}
    front = await make_front(concurrency=1, more=GatewayMore(keys=KeyRing(path)))
    first = await occupy(front, key=keys["first"])
    tasks = []
    for name in ("nightly", "usual", "nightly", "chat"):
        tasks.append(asyncio.ensure_future(ask(front, key=keys[name], who=name)))
        await eventually(lambda: num_waiting(front) == len(tasks))
    first.cancel()
    answers = await asyncio.gather(*tasks)

    assert {status for status, _, _ in answers} == {200}
    order = [request.document["who"] for request in front.engine.requests[1:]]
    assert order == ["chat", "usual", "nightly", "nightly"]


async def test_one_request_a_second_is_not_held_up_by_a_flood(make_front):
    """Of two users of one engine, the modest one waits for the answer under way and at most one more."""
    front = await make_front(concurrency=1)
    fields = {"stream": True, "events": 1, "gap_s": SERVICE_S}

    async def flood():
        while True:
            await ask(front, key="flood", **fields)

    floods = [asyncio.ensure_future(flood()) for _ in range(30)]
    await eventually(lambda: num_waiting(front) == 29)
    overtaken = []
    for _ in range(10):
        num_before = len(front.engine.requests)
        await ask(front, key="person", mine=True, **fields)
        mine = next(
            index for index, one in enumerate(front.engine.requests[num_before:]) if "mine" in one.document
        )
        overtaken.append(mine)
    for task in floods:
        task.cancel()

    # Counted in answers, not in seconds: the machine of the test may have other work. Before it comes
    # the end of the answer under way, and at most one that began while the request was on its way.
    assert max(overtaken) <= 1


async def test_a_full_queue_says_when_to_come_again(make_front):
    """A client's own retries work, instead of a time-out nobody understands."""
    front = await make_front(concurrency=1, settings={"max_waiting": 1})
    first = await occupy(front)
    second = asyncio.ensure_future(ask(front))
    await eventually(lambda: num_waiting(front) == 1)
    status, text, headers = await ask(front)

    assert (status, json.loads(text)["error"]["code"]) == (429, "queue_full")
    assert int(headers["Retry-After"]) >= 1
    first.cancel()
    assert (await second)[0] == 200


async def test_nobody_waits_longer_than_the_deadline(make_front):
    """A request that would wait for ever ends with an error in words."""
    front = await make_front(concurrency=1, settings={"max_wait_s": 0.2})
    first = await occupy(front)
    status, text, headers = await ask(front)
    first.cancel()

    assert (status, json.loads(text)["error"]["code"]) == (503, "queue_timeout")
    assert "Retry-After" in headers


@pytest.mark.parametrize("script", ["think_first", "ordinary"], ids=["before-the-head", "inside-the-stream"])
async def test_an_answer_may_take_longer_than_anybody_may_wait(make_front, script):
    """A long prompt is never cut off: the deadline bounds the queue, and nothing bounds the engine's work."""
    front = await make_front(concurrency=1, settings={"max_wait_s": 0.2, "keep_alive_s": 0.1})
    headers = {"X-Trimtab-Max-Wait": "0.2"}
    fields = {"script": script, "stream": script == "ordinary", "events": 2, "gap_s": 0.5}
    status, text, _ = await ask(front, headers=headers, **fields)

    assert status == 200
    assert "error" not in text


async def test_a_client_that_leaves_the_queue_gives_its_place_back(make_front):
    """Closed browser windows do not fill the queue."""
    front = await make_front(concurrency=1)
    first = await occupy(front)
    tasks = [asyncio.ensure_future(ask(front)) for _ in range(5)]
    await eventually(lambda: num_waiting(front) == 5)
    for task in tasks:
        task.cancel()
    await eventually(lambda: num_waiting(front) == 0)
    first.cancel()

    assert (await ask(front))[0] == 200
    assert len(front.engine.requests) == 2


async def test_who_waited_goes_to_where_the_engine_is_then(make_front):
    """A restart on another port while a request waits costs it nothing."""
    front = await make_front(concurrency=1)
    first = await occupy(front)
    waiting = asyncio.ensure_future(ask(front))
    await eventually(lambda: num_waiting(front) == 1)
    other = await ScriptedEngine().start()
    front.models[0] = replace(front.models[0], base_url=other.url)
    first.cancel()

    assert (await waiting)[0] == 200
    assert len(other.requests) == 1
    await other.stop()


async def test_a_title_does_not_come_before_the_answer(make_front, monkeypatch):
    """On an engine that does one thing at a time, the user's message overtakes the call sent before it."""
    monkeypatch.setattr("trimtab.gateway.admission._HOLD_S", 2.0)  # a busy machine may pause the test
    front = await make_front(concurrency=1)
    title = asyncio.ensure_future(ask(front, headers={"X-OpenWebUI-Task": "title_generation"}))
    await eventually(lambda: num_waiting(front) == 1)
    status, _, _ = await ask(front, stream=True, headers={"X-OpenWebUI-Task": ""})

    assert (status, (await title)[0]) == (200, 200)
    assert [bool(request.document.get("stream")) for request in front.engine.requests] == [True, False]


async def test_a_held_background_call_takes_a_free_slot_in_the_end(make_front, monkeypatch):
    """One slot stays taken and the other free: nothing ends, and the call goes on nevertheless."""
    monkeypatch.setattr("trimtab.gateway.admission._MAX_YIELD_S", 1.0)
    front = await make_front(concurrency=2)
    await occupy(front)
    status, _, _ = await asyncio.wait_for(ask(front, headers={"X-Trimtab-Priority": "background"}), 10)

    assert status == 200


async def test_a_stop_answers_those_who_wait(make_front):
    """Nobody is left without a word when trimtab stops."""
    front = await make_front(concurrency=1)
    first = await occupy(front)
    waiting = asyncio.ensure_future(ask(front))
    await eventually(lambda: num_waiting(front) == 1)
    await front.gateway.stop()

    assert json.loads((await waiting)[1])["error"]["code"] == "stopping"
    await asyncio.gather(first, return_exceptions=True)


async def test_a_request_that_can_never_work_does_not_wait(make_front):
    """A wrong limit is told at once, not after the queue."""
    front = await make_front(concurrency=1)
    first = await occupy(front)
    status, text, _ = await ask(front, max_tokens=99_999)
    first.cancel()

    assert (status, json.loads(text)["error"]["code"]) == (400, "max_tokens_exceeded")


async def test_an_over_long_prompt_is_refused_with_the_real_limit(make_front):
    """Whoever pastes a book reads how much fits, before the engine has worked on it."""
    front = await make_front()
    front.engine.prompt_tokens = 5000
    messages = [{"role": "user", "content": "word " * 5000}]
    status, text, _ = await ask(front, messages=messages)

    assert (status, json.loads(text)["error"]["code"]) == (400, "context_length_exceeded")
    assert "4,096" in text
    assert front.engine.seen("/v1/chat/completions") == []


KEEP_ALIVE = AdmissionSettings(keep_alive_s=0.1)


@pytest.mark.parametrize("script", ["hang", "hang_inside_stream"])
async def test_a_silent_stream_is_kept_alive(make_front, script):
    """A proxy that closes silent connections does not close one whose prompt is long."""
    front = await make_front(admission=KEEP_ALIVE)
    async with front.post(model="m", stream=True, script=script) as answer:
        text = ""
        while text.count(": keep-alive\n\n") < 3:
            text += (await answer.content.readany()).decode()

    assert answer.status == 200
    assert answer.content_type == "text/event-stream"


async def test_an_error_after_a_comment_is_an_event(make_front):
    """A stream that began while it waited ends with its error and [DONE], not in silence."""
    front = await make_front(admission=replace(KEEP_ALIVE, max_wait_s=1.5), concurrency=1)
    first = await occupy(front)
    status, text, _ = await ask(front, stream=True)
    first.cancel()
    *_, error, done = [line for line in text.split("\n\n") if line.startswith("data: ")]

    assert status == 200
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "queue_timeout"
    assert done == "data: [DONE]"


async def test_a_stream_that_waited_is_passed_on_whole(make_front):
    """Comments come before the answer's events, and change none of them."""
    front = await make_front(admission=KEEP_ALIVE, concurrency=1)
    first = await occupy(front)
    waiting = asyncio.ensure_future(ask(front, stream=True, events=3))
    await eventually(lambda: num_waiting(front) == 1)
    await asyncio.sleep(0.3)
    first.cancel()
    _, text, headers = await waiting

    assert headers["Content-Type"] == "text/event-stream"
    assert text.startswith(": keep-alive\n\n")
    assert text.count("data: {") == 4
    assert text.endswith("data: [DONE]\n\n")


async def test_without_keep_alive_nothing_is_added(make_front):
    """It can be switched off."""
    front = await make_front(settings={"keep_alive_s": 0})
    _, text, _ = await ask(front, stream=True, events=2, gap_s=0.3)

    assert ":" not in text.partition("data")[0]
    assert "keep-alive" not in text
