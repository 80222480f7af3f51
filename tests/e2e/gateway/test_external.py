"""Models that somebody else runs: there or not by their list and by live traffic, never by a generation."""

import asyncio
from contextlib import asynccontextmanager
from types import MappingProxyType

import aiohttp
import pytest
from aiohttp import web
from scripted_engine import eventually

from trimtab.core.stack import GatewaySettings, ModelRequest
from trimtab.core.state import ReplicaState
from trimtab.errors import StackFileError
from trimtab.gateway.app import Gateway
from trimtab.gateway.external import ExternalModels
from trimtab.gateway.external_listing import external_base_url, read_listing
from trimtab.gateway.parts import GatewayMore


class Endpoint:
    """Somebody else's server: lists ``models``, answers chats unless ``is_broken``, counts both."""

    def __init__(self):
        self.models = [{"id": "their-name", "max_model_len": 8192}]
        self.status, self.is_broken, self.delay_s = 200, False, 0.0
        self.asked, self.chats, self.key, self.seen_keys = [], [], None, []
        self.chat_s, self.num_busy, self.most_busy = 0.0, 0, 0
        self.port = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self):
        app = web.Application()
        app.router.add_get("/v1/models", self._list)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self):
        await self._runner.cleanup()

    async def _list(self, request):
        self.asked.append(request.path)
        await asyncio.sleep(self.delay_s)
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "a key is needed"}}, status=401)
        return web.json_response({"data": self.models}, status=self.status)

    async def _chat(self, request):
        self.chats.append(await request.json())
        given = request.headers.get("Authorization")
        self.seen_keys.append(given)
        if self.key is not None and given != f"Bearer {self.key}":
            return web.json_response({"error": {"message": f"Incorrect API key: {given}"}}, status=401)
        if self.is_broken:
            request.transport.abort()
        self.num_busy += 1
        self.most_busy = max(self.most_busy, self.num_busy)
        await asyncio.sleep(self.chat_s)
        self.num_busy -= 1
        message = {"role": "assistant", "content": "hi"}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


@asynccontextmanager
async def served(endpoint, keys=MappingProxyType({}), client_keys=(), **changes):
    """(gateway, external models, how to chat) in front of an endpoint."""
    request = ModelRequest(**{"name": "m", "checkpoint": "", "url": endpoint.url} | changes)
    external = ExternalModels((request,), keys)
    settings = GatewaySettings(port=0, keys=client_keys)
    gateway = Gateway(settings, external.snapshot, version="0", more=GatewayMore(upstream_keys=keys))
    await gateway.start()
    await external.start(gateway.traffic_of)
    try:
        headers = {"Authorization": f"Bearer {client_keys[0]}"} if client_keys else {}
        async with aiohttp.ClientSession(headers=headers) as session:

            async def chat(**fields):
                body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
                async with session.post(gateway.url + "/v1/chat/completions", json=body) as answer:
                    return answer.status, await answer.json()

            yield gateway, external, chat
    finally:
        await external.close()
        await gateway.stop()


@pytest.fixture
async def endpoint():
    one = await Endpoint().start()
    yield one
    await one.stop()


def state(external):
    return external.snapshot()[0].state


async def test_an_external_model_is_served_under_our_name(endpoint):
    """The client's name is ours, the endpoint's is its own, and the context is what its list says."""
    async with served(endpoint, family="qwen3") as (_, external, chat):
        (model,) = external.snapshot()
        assert (model.state, model.upstream_model, model.max_model_len) == (
            ReplicaState.READY,
            "their-name",
            8192,
        )
        status, _ = await chat(model="m:instant")
    assert status == 200
    assert endpoint.chats[0]["model"] == "their-name"
    assert endpoint.chats[0]["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(("concurrency", "most"), [(2, 2), (None, 6)], ids=["bounded", "unbounded"])
async def test_an_endpoint_gets_no_more_at_once_than_wished(endpoint, concurrency, most):
    """A small server that somebody else runs is not flooded; the rest waits here, and all are answered."""
    endpoint.chat_s = 0.3
    async with served(endpoint, concurrency=concurrency) as (_, _, chat):
        answers = await asyncio.gather(*(chat() for _ in range(6)))

    assert [status for status, _ in answers] == [200] * 6
    assert endpoint.most_busy == most


async def test_watching_costs_no_token(endpoint):
    """The endpoint sees questions for its list and nothing else."""
    async with served(endpoint):
        pass
    assert endpoint.asked == ["/v1/models"]
    assert endpoint.chats == []


async def test_an_endpoint_that_is_not_there_is_waited_for(endpoint):
    """A server that starts later is found by itself; until then the reason is told."""
    await endpoint.stop()
    async with served(endpoint) as (_, external, chat):
        status, body = await chat()
        assert (status, "serve it now: nothing listens there" in body["error"]["message"]) == (503, True)
        await endpoint.start()
        await eventually(lambda: state(external) is ReplicaState.READY)
        assert (await chat())[0] == 200


async def test_a_broken_answer_has_the_endpoint_asked_at_once(endpoint):
    """Live traffic finds a death in a moment, and the way back as well."""
    async with served(endpoint) as (_, external, chat):
        endpoint.is_broken, endpoint.status = True, 503
        assert (await chat())[0] == 503
        await eventually(lambda: state(external) is ReplicaState.BACKING_OFF, within_s=2)
        status, body = await chat()
        assert (status, "answered 503" in body["error"]["message"]) == (503, True)
        endpoint.is_broken, endpoint.status = False, 200
        await eventually(lambda: state(external) is ReplicaState.READY)


async def test_a_broken_answer_alone_is_no_death(endpoint):
    """An endpoint whose list still answers is served on."""
    async with served(endpoint) as (_, external, chat):
        endpoint.is_broken = True
        assert (await chat())[0] == 503
        await eventually(lambda: len(endpoint.asked) == 2)
        assert state(external) is ReplicaState.READY


async def test_an_endpoint_that_just_died_is_away_with_a_word_when_to_come_again(endpoint):
    """The first request after a death is told the same as later ones, in words without a library's."""
    async with served(endpoint) as (gateway, external, _chat), aiohttp.ClientSession() as session:
        assert state(external) is ReplicaState.READY
        await endpoint.stop()
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        async with session.post(gateway.url + "/v1/chat/completions", json=body) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (503, "model_not_ready")
            assert int(answer.headers["Retry-After"]) > 0
        assert "nothing listens there" in error["message"]
        assert "Errno" not in error["message"]
        assert "starting" not in error["message"]
        await endpoint.start()


@pytest.mark.parametrize("keys", [{}, {"m": "wrong"}], ids=["no-key", "wrong-key"])
async def test_a_list_that_wants_another_key_is_told_as_such(endpoint, keys):
    """Coming again in a few seconds does not help, so nobody is told to; the right key is taken up."""
    endpoint.key = "right"
    async with served(endpoint, keys, api_key_env="BOX_KEY" if keys else None) as (_, external, chat):
        status, body = await chat()
        assert (status, body["error"]["code"]) == (502, "upstream_key")
        assert "models.m.api_key_env" in body["error"]["message"]
        assert "again" not in body["error"]["message"]
        endpoint.key = None
        await eventually(lambda: state(external) is ReplicaState.READY)
        assert (await chat())[0] == 200


@pytest.mark.parametrize(
    ("status", "words"),
    [
        pytest.param(401, "answered 401: it wants a key", id="key"),
        pytest.param(404, "answered 404: no OpenAI-compatible server", id="path"),
    ],
)
async def test_a_refused_list_is_explained(endpoint, status, words):
    """The reason says what stands in the way at the other side."""
    endpoint.status = status
    async with served(endpoint) as (_, external, _chat):
        assert words in external.snapshot()[0].detail


async def test_an_endpoint_with_a_key_gets_ours_and_never_the_clients(endpoint):
    """List and chat carry the endpoint's key; what the client sent to us stays with us."""
    endpoint.key = "sk-theirs"
    async with served(endpoint, {"m": "sk-theirs"}, ("our-clients",)) as (_, external, chat):
        assert state(external) is ReplicaState.READY
        assert (await chat())[0] == 200
    assert endpoint.seen_keys == ["Bearer sk-theirs"]


async def test_an_endpoint_that_refuses_our_key_is_not_the_clients_fault(endpoint):
    """502 with where to look; the endpoint's words, which repeat the key, are not passed on."""
    async with served(endpoint, {"m": "sk-theirs"}, api_key_env="THEIRS") as (_, external, chat):
        endpoint.key = "sk-another"
        status, body = await chat()
        assert (status, body["error"]["code"]) == (502, "upstream_key")
        assert "models.m.api_key_env" in body["error"]["message"]
        assert "sk-theirs" not in str(body) + repr(external.snapshot())


async def test_a_list_that_refuses_the_key_names_its_variable(endpoint):
    """The reason in status names the variable, not what it holds."""
    endpoint.key = "sk-another"
    async with served(endpoint, {"m": "sk-theirs"}, api_key_env="THEIRS") as (_, external, _chat):
        assert external.snapshot()[0].detail == "GET /models answered 401: it refuses the key in THEIRS"


async def test_without_a_key_none_is_sent(endpoint):
    """A client's key for an open gateway is dropped, not forwarded."""
    async with served(endpoint, client_keys=("our-clients",)) as (_, _external, chat):
        assert (await chat())[0] == 200
    assert endpoint.seen_keys == [None]


async def test_answers_that_flow_spare_the_question(endpoint, monkeypatch):
    """A model in use is not asked about."""
    monkeypatch.setattr("trimtab.gateway.external._READY_INTERVAL_S", 0.3)
    async with served(endpoint) as (_, _external, chat):
        for _ in range(12):
            await chat()
            await asyncio.sleep(0.1)
    assert len(endpoint.asked) <= 2


async def test_one_slow_list_is_no_death(endpoint, monkeypatch):
    """A busy server that is late once stays; one that is late again and again does not."""
    monkeypatch.setattr("trimtab.gateway.external._READY_INTERVAL_S", 0.2)
    monkeypatch.setattr("trimtab.gateway.external._ASK_TIMEOUT_S", 0.3)
    async with served(endpoint) as (_, external, _chat):
        endpoint.delay_s = 1.0
        await eventually(lambda: len(endpoint.asked) == 3)
        assert state(external) is ReplicaState.READY
        await eventually(lambda: state(external) is ReplicaState.BACKING_OFF)


def listing(*entries):
    return {"data": list(entries)}


@pytest.mark.parametrize(
    ("document", "changes", "expected"),
    [
        pytest.param(listing({"id": "a"}), {}, ("a", None, ""), id="only-one"),
        pytest.param(listing({"id": "a"}, {"id": "m"}), {}, ("m", None, ""), id="same-name"),
        pytest.param(listing({"id": "a"}, {"id": "b"}), {}, (None, None, "lists a, b, not m"), id="unknown"),
        pytest.param(listing({"id": "a"}), {"upstream_model": "b"}, (None, None, "lists a, not b"),
                     id="wished"),
        pytest.param(listing({"id": "a", "max_model_len": 99}), {"context": 50}, ("a", 50, ""), id="wish"),
        pytest.param(listing({"id": "a", "max_model_len": 99}), {"context": 200}, ("a", 99, ""), id="limit"),
        pytest.param(listing({"id": "a", "meta": {"n_ctx": 77, "n_ctx_train": 4096}}), {}, ("a", 77, ""),
                     id="llama-server"),
        pytest.param(listing(), {}, (None, None, "no model"), id="empty"),
        pytest.param("odd", {}, (None, None, "no model"), id="odd"),
        pytest.param({"data": [3, {"id": 4}]}, {}, (None, None, "no model"), id="odd-entries"),
    ],
)  # fmt: skip
def test_what_a_list_says(document, changes, expected):
    """The right model is found, or the list's own names are told."""
    request = ModelRequest(**{"name": "m", "checkpoint": "", "url": "http://x/v1"} | changes)

    listed = read_listing(document, request=request)

    assert (listed.upstream_model, listed.max_model_len) == expected[:2]
    assert expected[2] in listed.fault
    assert bool(listed.fault) == bool(expected[2])


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:8000/v1", "http://host:8000"),
        ("https://host/openai/v1/", "https://host/openai"),
    ],
)
def test_a_url_ends_in_its_version(url, base):
    """The form that every client's base_url has."""
    assert external_base_url(url) == base


@pytest.mark.parametrize(
    "url", ["host:8000/v1", "ftp://host/v1", "http:///v1", "http://host:8000", "http://h/v1?a"]
)
def test_another_url_is_refused_with_the_right_form(url):
    """A wrong URL is told at the start, with what would work."""
    with pytest.raises(StackFileError) as caught:
        external_base_url(url)
    assert "/v1" in caught.value.hint
