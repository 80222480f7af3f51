"""Requests for a model that is not loaded, from socket to socket: they wait, are told, and are answered."""

import asyncio
from dataclasses import replace

from trimtab.core.state import ReplicaState
from trimtab.gateway.admission import AdmissionSettings

AWAY = {"on_demand": True, "concurrency": 2, "load_s": 3.0}


def go_away(front, **changes):
    front.models[0] = replace(front.models[0], state=ReplicaState.STOPPED, base_url=None, **changes)
    front.gateway.note_models()


def come(front):
    front.models[0] = replace(front.models[0], state=ReplicaState.READY, base_url=front.engine.url)
    front.gateway.note_models()


async def test_a_request_waits_until_its_model_is_there(make_front):
    """It is seen in the metrics meanwhile, and served as soon as the model is."""
    front = await make_front(**AWAY)
    go_away(front)
    asking = asyncio.ensure_future(front.post(model="m"))
    while await front.metric('trimtab_requests_waiting{model="m"}') != 1:
        await asyncio.sleep(0.01)
    assert front.gateway.demand()[0].num_waiting == 1
    async with front.session.get(front.url + "/health") as health:
        document = await health.json()
        assert (health.status, document["status"]) == (200, "ok")
        assert document["models"]["m"]["on_demand"] is True

    come(front)

    async with await asking as answer:
        assert answer.status == 200
    assert await front.metric('trimtab_model_load_seconds{model="m"}') == 3


async def test_a_stream_is_kept_alive_while_its_model_loads(make_front):
    """Comments come before the first event, so that no proxy closes the line."""
    front = await make_front(admission=AdmissionSettings(keep_alive_s=0.1), **AWAY)
    go_away(front)
    asking = asyncio.ensure_future(front.post(model="m", stream=True))
    async with await asking as answer:
        first = await answer.content.readline()
        come(front)
        rest = await answer.read()
    assert first == b": keep-alive\n"
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_failed_load_is_an_error_or_an_event_in_the_stream(make_front):
    """Once, with the reason, and at once for whoever asks again."""
    front = await make_front(admission=AdmissionSettings(keep_alive_s=0.1), **AWAY)
    go_away(front)
    plain = asyncio.ensure_future(front.post(model="m"))
    stream = await front.post(model="m", stream=True)
    front.models[0] = replace(
        front.models[0], state=ReplicaState.FAILED, detail="no such file", retry_after_s=59.5
    )
    front.gateway.note_models()

    async with await plain as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (503, "model_load_failed")
        assert "no such file" in error["message"]
        assert answer.headers["Retry-After"] == "60"
    text = await stream.text()
    assert text.count('"model_load_failed"') == 1
    assert text.endswith("data: [DONE]\n\n")
    async with front.post(model="m") as again:
        assert again.status == 503


async def test_a_request_that_cannot_wait_for_the_load_is_refused_at_once(make_front):
    """It says what a load took, and when to come again."""
    front = await make_front(**AWAY)
    go_away(front, load_s=40.2)
    async with front.post(model="m", headers={"x-trimtab-max-wait": "20"}) as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["code"] == "model_not_loaded"
        assert answer.headers["Retry-After"] == "41"
    async with front.post(model="m", headers={"x-trimtab-max-wait": "soon"}) as answer:
        assert answer.status == 400


async def test_a_closed_model_finishes_what_is_inside_and_lets_nobody_in(make_front):
    """New requests wait until it is open again."""
    front = await make_front(**AWAY)
    front.models[0] = replace(front.models[0], admits=False)
    front.gateway.note_models()
    asking = asyncio.ensure_future(front.post(model="m"))
    await asyncio.sleep(0.1)
    assert not asking.done()
    front.models[0] = replace(front.models[0], admits=True)
    front.gateway.note_models()
    async with await asking as answer:
        assert answer.status == 200
