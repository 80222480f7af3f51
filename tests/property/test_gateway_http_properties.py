"""HTTP on both sides of the gateway: however the network cuts the bytes, the same comes out."""

import asyncio
import json
from itertools import pairwise

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ReplicaState, ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.endpoints import CHAT
from trimtab.gateway.exchange_task import make_task, read_chat_settings
from trimtab.gateway.http_client import EngineConnection, UpstreamError
from trimtab.gateway.http_message import Request, render_chunk
from trimtab.gateway.http_request_reader import RequestReader
from trimtab.gateway.http_response_reader import BrokenAnswerError, ResponseReader
from trimtab.gateway.metrics import GatewayMetrics
from trimtab.gateway.pass_through import find_pass_through
from trimtab.gateway.relay import Relay
from trimtab.gateway.request import decode_request
from trimtab.gateway.request_body import too_large
from trimtab.gateway.routing import choose_mode
from trimtab.gateway.thinking_request import prepare_chat

TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", min_size=1, max_size=12)
OUR_FIELDS = {"content-length", "transfer-encoding", "connection", "host", "upgrade", "expect"}
VALUE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30).map(str.strip)
HEADERS = st.lists(st.tuples(TOKEN.filter(lambda name: name.lower() not in OUR_FIELDS), VALUE), max_size=8)
BODY = st.binary(max_size=300)
CUTS = st.lists(st.integers(0, 4000), max_size=30)


def pieces_of(data, cuts):
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(at)]


@st.composite
def bodies(draw):
    """A body's own bytes, its framing header and its bytes on the wire."""
    body = draw(BODY)
    if draw(st.booleans()):
        return body, f"Content-Length: {len(body)}", body
    parts = [part for part in pieces_of(body, draw(st.lists(st.integers(0, 300), max_size=6))) if part]
    trailer = draw(st.sampled_from([b"", b"X-Trailer: 1\r\n"]))
    return (
        body,
        "Transfer-Encoding: chunked",
        b"".join(map(render_chunk, parts)) + b"0\r\n" + trailer + b"\r\n",
    )


@st.composite
def requests(draw):
    """(method, path, headers, body) and the bytes of the request."""
    method = draw(st.sampled_from(["GET", "POST", "PUT", "OPTIONS"]))
    path = "/" + "/".join(draw(st.lists(TOKEN, max_size=3)))
    query = draw(st.sampled_from(["", "?", "?a=b/c?d"]))
    headers = draw(HEADERS)
    body, framing, wire = draw(bodies())
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    upgrade = draw(st.sampled_from(["", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"]))
    text = f"{method} {path}{query} HTTP/1.1\r\nHost: x\r\n{head}{upgrade}{framing}\r\n\r\n"
    return (method, path, headers, body), text.encode() + wire


def read_requests(pieces, *, max_body_bytes=1 << 20):
    """(requests as they were read, the refusal that ended the reading)."""
    seen = []
    reader = RequestReader(seen.append, max_body_bytes=max_body_bytes, too_large=too_large)
    try:
        for piece in pieces:
            reader.feed(piece)
    except GatewayError as error:
        return seen, (error.status, error.message)
    return seen, None


@given(st.lists(requests(), min_size=1, max_size=4), CUTS)
def test_any_split_of_request_bytes_gives_the_same_requests(wanted, cuts):
    """A request is the same in one segment, in two hundred, and behind others on one connection."""
    seen, refusal = read_requests(pieces_of(b"".join(data for _, data in wanted), cuts))

    assert refusal is None
    assert [(one.method, one.path, one.body, one.is_whole) for one in seen] == [
        (method, path, body, True) for (method, path, _, body), _ in wanted
    ]
    for one, ((_, _, headers, _), _) in zip(seen, wanted, strict=True):
        first = {}
        for name, value in headers:
            first.setdefault(name.lower(), value)
        assert {name: one.header(name) for name in first} == first


@given(st.binary(max_size=200), st.lists(requests(), max_size=2), CUTS)
def test_any_split_of_garbage_is_refused_alike(garbage, before, cuts):
    """What is no HTTP is refused for the same reason, and after the same requests, however it is cut."""
    data = b"".join(one for _, one in before) + garbage
    whole, refusal = read_requests([data])
    cut, cut_refusal = read_requests(pieces_of(data, cuts))

    assert cut_refusal == refusal
    key = [(one.method, one.path, one.body, one.is_whole) for one in whole]
    assert [(one.method, one.path, one.body, one.is_whole) for one in cut] == key


@given(requests(), st.integers(0, 299), CUTS)
def test_the_limit_on_bodies_holds_in_any_split(wanted, limit, cuts):
    """A body above the limit is refused and never held, with a length and without, however it comes."""
    (_, _, _, body), data = wanted
    (seen, *_), _ = read_requests(pieces_of(data, cuts), max_body_bytes=limit)

    assert (seen.refusal is not None) == (len(body) > limit)
    assert sum(map(len, seen.body_parts)) <= limit


@st.composite
def answers(draw):
    """(status, content type, body) of an answer and its bytes; the last may end with the connection."""
    status = draw(st.sampled_from([200, 400, 503]))
    kind = draw(st.sampled_from(["application/json", "text/event-stream"]))
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    body, framing, wire = draw(bodies())
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n".encode()
    return (status, kind, body), interim + head + wire


def read_answer(reader, pieces):
    reader.expect()
    body = b""
    for piece in pieces:
        reader.feed(piece)
        body += reader.take_body()
    return reader.status, reader.fields.get(b"content-type", b"").decode(), body


@given(st.lists(answers(), min_size=1, max_size=3), CUTS)
def test_any_split_of_an_answer_gives_the_same_answer(wanted, cuts):
    """An engine's answer is the same however the network cuts it, one after the other on one connection."""
    reader = ResponseReader()
    for expected, data in wanted:
        assert read_answer(reader, pieces_of(data, cuts)) == expected
        assert reader.is_whole
        assert reader.keeps_alive


@given(answers(), st.integers(0, 2000), CUTS)
def test_an_answer_that_breaks_off_anywhere_is_no_whole_one(wanted, at, cuts):
    """Half an answer is told from a whole one wherever the connection ends, and what came is kept."""
    (_, _, body), data = wanted
    part = data[: at % len(data)]
    reader = ResponseReader()
    _, _, came = read_answer(reader, pieces_of(part, cuts))

    assert body.startswith(came)
    if not reader.is_whole:
        with pytest.raises(BrokenAnswerError):
            reader.feed_end()


class Transport(asyncio.Transport):
    """Takes everything, and is never full."""

    def __init__(self):
        super().__init__()
        self.is_closed = False

    def write(self, data):
        pass

    def is_closing(self):
        return self.is_closed

    def abort(self):
        self.is_closed = True

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


class Client:
    """What a stream is sent to; keeps what came."""

    def __init__(self):
        self.sent = b""

    def begin_stream(self, headers, flow=None):
        pass

    def send(self, data):
        self.sent += data

    def end_stream(self):
        self.sent += b"<end>"


async def relay(pieces, *, ends):
    """What the client of a stream gets when the engine's connection carries these pieces."""
    connection = EngineConnection(lambda _: None, lambda _: None)
    connection.connection_made(Transport())
    answer = connection.ask(b"", b"")
    client = Client()

    async def pass_on():
        await answer.came
        answer.check_head()
        await Relay(client, {}, GatewayMetrics().of_model("m")).pass_on(answer, started_s=0.0)

    passing = asyncio.ensure_future(pass_on())
    for piece in pieces:
        connection.data_received(piece)
        await asyncio.sleep(0)
    if ends:
        connection.eof_received()
        connection.connection_lost(None)
    try:
        await passing
    except UpstreamError:
        client.sent += b"<no answer>"
    return client.sent


EVENTS = [b'data: {"choices":[{"delta":{"content":"\xc3\xa4\xf0\x9f\x98\x80"}}]}\n\n', b": ping\n\n",
          b'data: {"choices":[{"finish_reason":"stop"}]}\r\n\r\n', b"data: [DONE]\n\n"]  # fmt: skip
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@settings(max_examples=60)
@given(st.lists(st.sampled_from(EVENTS), max_size=6), CUTS, CUTS, st.integers(0, 2000))
@example([EVENTS[0], EVENTS[3]], [], list(range(400)), 10_000)
def test_any_split_of_upstream_bytes_gives_the_same_client_bytes(events, chunk_cuts, cuts, broken_at):
    """A stream looks the same to the client in whatever chunks and segments it came, also when it breaks."""
    chunks = [chunk for chunk in pieces_of(b"".join(events), chunk_cuts) if chunk]
    data = STREAM_HEAD + b"".join(map(render_chunk, chunks)) + b"0\r\n\r\n"
    is_broken = broken_at < len(data)
    data = data[:broken_at] if is_broken else data

    whole = asyncio.run(relay([data] if data else [], ends=True))
    cut = asyncio.run(relay(pieces_of(data, cuts), ends=True))

    assert cut == whole
    if not is_broken:
        assert whole.startswith(b"".join(events))


JSON = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.sampled_from(["x", "### Task:", "/think"])
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "assistant"]),
            "content": st.sampled_from(
                ["hi /no_think", '### Task:\nMake a "title"\n<chat_history>x</chat_history>', None, []]
            ),
        }
    ),
    max_size=3,
)
DOCUMENTS = st.fixed_dictionaries(
    {"messages": MESSAGES},
    optional={
        "model": st.sampled_from(["m", "up"]),
        "stream": st.booleans(),
        "tools": st.just([{}]),
        "extra_body": st.sampled_from([{}, {"top_k": 1}, "{}", 3]),
        "include_reasoning": st.booleans(),
        "enable_thinking": st.booleans(),
        "chat_template_kwargs": st.just({"enable_thinking": True}),
        "reasoning_effort": st.sampled_from(["none", "high"]),
        "thinking_budget": st.integers(0, 9),
        "temperature": JSON,
        "x": JSON,
    },
)
WISHES = st.dictionaries(
    st.sampled_from([b"x-trimtab-reasoning", b"x-trimtab-repairs", b"x-openwebui-task", b"authorization"]),
    st.sampled_from([b"none", b"", b"title_generation", b"Bearer k"]),
    max_size=2,
)


@given(
    DOCUMENTS,
    WISHES,
    st.builds(
        ServedModel,
        name=st.just("m"),
        engine=st.sampled_from(["vllm", "llama_cpp"]),
        state=st.just(ReplicaState.READY),
        upstream_model=st.sampled_from([None, "m", "up"]),
        family=st.sampled_from(["plain", "qwen3.5"]),
    ),
    st.builds(
        GatewaySettings,
        reasoning_fields_by_key=st.sampled_from([(), (("k", "inline"),)]),
        reasoning_fields=st.sampled_from(["both", "none", "reasoning"]),
    ),
)
def test_what_passes_unprepared_would_have_come_out_unchanged(document, wishes, model, rules):
    """The short way for usual requests gives the engine the same bytes and reads its answer the same way."""
    body = json.dumps(document).encode()
    facts = decode_request(body)
    request = Request(path=CHAT, fields=wishes)
    passed = find_pass_through(request, facts, model, rules)
    if passed is None:
        return
    _, mode = choose_mode(facts.model, (model,))

    chat = prepare_chat(facts.document, read_chat_settings(request, model, mode, rules))
    task = make_task(facts, model, chat, endpoint=CHAT).finish(body)

    assert task.body == body
    assert chat.headers() == {}
    assert task.shape == passed.shape
    assert not task.must_assemble
    assert (task.budget_field, task.limit_tokens) == (None, None)


def test_most_requests_of_a_plain_model_take_the_short_way():
    """The property above is about something: an ordinary chat passes, streamed or not."""
    model = ServedModel(name="m", engine="vllm", state=ReplicaState.READY)
    for stream in (False, True):
        facts = decode_request(json.dumps({"model": "m", "messages": [], "stream": stream}).encode())
        assert find_pass_through(Request(path=CHAT), facts, model, GatewaySettings()) is not None


def test_the_parser_is_strict():
    """The library's grammar is the strict one of llhttp: nothing of ours would see what it lets through."""
    with pytest.raises(httptools.HttpParserError):
        httptools.HttpRequestParser(object()).feed_data(
            b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
