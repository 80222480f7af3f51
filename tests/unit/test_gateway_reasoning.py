"""Every reported way of mixing up thought and answer, streamed at every cut and unstreamed."""

import json

import pytest
from reasoning_cases import CALL, CASES, Case, content, reasoning

from trimtab.errors import GatewayError
from trimtab.gateway.assemble import Assembly, decode_events
from trimtab.gateway.event_cut import split_whole_events
from trimtab.gateway.reasoning_answer import reshape_body
from trimtab.gateway.reasoning_form import AnswerShape, choose_form
from trimtab.gateway.reasoning_stream import CUT_THOUGHT_NOTE, ReasoningStream
from trimtab.gateway.thinking_families import FAMILIES

BY_NAME = {case.name: case for case in CASES}


def shape_of(case, **rest):
    starts_inside = FAMILIES[case.family].has_static_opener
    return AnswerShape(**{"is_thinking": case.is_on, "starts_inside": starts_inside} | rest)


def reshape(chunks, shape):
    stream, held, out = ReasoningStream(shape), b"", b""
    for chunk in chunks:
        whole, held = split_whole_events(held + chunk)
        out += stream.feed(whole)
    assert held == b""
    return out + stream.end()


def message_of(stream):
    assembly = Assembly()
    for document in decode_events(stream):
        assembly.add(document)
    return assembly.finish()["choices"][0]["message"]


def texts(message):
    return message.get("reasoning_content") or "", message.get("content") or ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_stream_gives_both_texts_at_every_cut(case):
    """The client reads the thought as thought and the answer as answer, wherever the network cuts."""
    data = case.stream()
    expected = reshape([data], shape_of(case))

    assert texts(message_of(expected)) == (case.thought, case.answer)
    for at in range(1, len(data)):
        assert reshape([data[:at], data[at:]], shape_of(case)) == expected
    assert reshape([data[at : at + 1] for at in range(len(data))], shape_of(case)) == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_unstreamed_answer_gives_the_same_texts(case):
    """Streaming or not, the client reads the same."""
    body, _ = reshape_body(json.dumps(case.whole()).encode(), shape_of(case))

    message = json.loads(body)["choices"][0]["message"]
    assert texts(message) == (case.thought, case.answer)
    assert message.get("tool_calls") == case.whole()["choices"][0]["message"].get("tool_calls")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_names_hold_the_thought(case):
    """Whichever of the two names a client knows, it finds the thought there."""
    message = message_of(reshape([case.stream()], shape_of(case)))

    assert message.get("reasoning") == message.get("reasoning_content")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_else_of_the_stream_changes(case):
    """Ids, usage, finish reasons, tool calls and the end mark are what the engine sent."""

    def rest(stream):
        documents = decode_events(stream)
        choices = [choice for document in documents for choice in document["choices"]]
        return {
            "heads": {tuple(document[name] for name in ("id", "object", "created", "model"))
                      for document in documents},
            "usage": [document["usage"] for document in documents if "usage" in document],
            "finish": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
            "calls": [choice["delta"]["tool_calls"] for choice in choices if "tool_calls" in choice["delta"]],
            "roles": [choice["delta"]["role"] for choice in choices if "role" in choice["delta"]],
            "end": stream[-20:],
        }  # fmt: skip

    assert rest(reshape([case.stream()], shape_of(case))) == rest(case.stream())


def test_events_without_a_change_pass_as_they_are():
    """An answer in which nothing is wrong is not rewritten, byte for byte."""
    data = Case("", (*content("Hi", " you\n"), *content("1 < 2")), "stop", "", "").stream()

    assert reshape([data], AnswerShape()) == data


def test_other_lines_of_an_event_stay():
    """Comments, ids and line ends are the engine's."""
    event = b': ping\r\n\r\nid: 3\r\ndata: {"choices":[{"index":0,"delta":{"reasoning":"a"}}]}\r\n\r\n'

    out = reshape([event], AnswerShape(is_thinking=True, form="reasoning_content"))

    assert out == event.replace(b'"reasoning"', b'"reasoning_content"')


@pytest.mark.parametrize(
    "event",
    [
        b"data: {broken\n\n",
        b"data: [DONE]\n\n",
        b'data: {"choices":3}\n\n',
        b'data: {"choices":[3,{"index":0}]}\n\n',
        b'data: {"error":{"message":"x"}}\n\n',
        b": comment\n\n",
        b"data: {\ndata: }\n\n",
        b'data: {"choices":[{"index":[],"delta":{"content":3,"reasoning":[]}}]}\n\n',
        b"no event at all\n\n",
    ],
)
def test_what_is_no_chat_event_passes(event):
    """An error or an oddity reaches the client as the engine said it."""
    assert reshape([event], AnswerShape(is_thinking=True, starts_inside=True)) == event


def test_several_choices_do_not_mix():
    """With n > 1 every choice has its own thought."""

    def event(*choices):
        entries = [{"index": index, "delta": {"content": text}} for index, text in choices]
        return b"data: " + json.dumps({"id": "c", "choices": entries}).encode() + b"\n\n"

    stream = event((0, "a</th"), (1, "b")) + event((1, "</think>B")) + event((0, "ink>A"), (1, "!"))

    out = reshape([stream], AnswerShape(is_thinking=True, starts_inside=True))

    got = {0: ["", ""], 1: ["", ""]}
    for document in decode_events(out):
        for choice in document["choices"]:
            got[choice["index"]][0] += choice["delta"].get("reasoning", "")
            got[choice["index"]][1] += choice["delta"].get("content", "")
    assert got == {0: ["a", "A"], 1: ["b", "B!"]}


def test_logprobs_stay_with_their_event():
    """An event whose text waits for the rest of a tag still brings its log probabilities."""
    choice = {"index": 0, "delta": {"content": "x</th"}, "logprobs": {"content": [{"token": "x"}]}}
    stream = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    (event,) = decode_events(ReasoningStream(AnswerShape(is_thinking=True, starts_inside=True)).feed(stream))

    assert event["choices"][0]["logprobs"] == choice["logprobs"]
    assert event["choices"][0]["delta"]["reasoning"] == "x"


def test_a_broken_stream_loses_nothing():
    """What waited for the rest of a tag comes when the stream breaks off."""
    data = Case("", content("a</think>b", "</thi"), "stop", "", "").stream()
    cut = data[: data.index(b'"finish_reason": "stop"')].rpartition(b"data:")[0]

    assert texts(message_of(reshape([cut], AnswerShape(is_thinking=True, starts_inside=True)))) == (
        "a",
        "b</thi",
    )


FORMS = [
    pytest.param("both", {"reasoning_content": "Hm", "reasoning": "Hm", "content": "Hi"}, id="both"),
    pytest.param("reasoning_content", {"reasoning_content": "Hm", "content": "Hi"}, id="old-name"),
    pytest.param("reasoning", {"reasoning": "Hm", "content": "Hi"}, id="new-name"),
    pytest.param("inline", {"content": "<think>Hm</think>Hi"}, id="inline"),
    pytest.param("none", {"content": "Hi"}, id="none"),
]
TEXT_FIELDS = ("reasoning_content", "reasoning", "content")


@pytest.mark.parametrize("is_plain", [False, True], ids=["family", "plain"])
@pytest.mark.parametrize("deltas", [(*reasoning("H", "m"), *content("H", "i")), content("H", "m</th",
                                    "ink>", "Hi")], ids=["fields", "tags"])  # fmt: skip
@pytest.mark.parametrize(("form", "fields"), FORMS)
def test_a_client_gets_the_form_it_needs(form, fields, deltas, is_plain):
    """Two fields, one, tags in the text or no thought at all: streamed and unstreamed alike."""
    if is_plain and "reasoning" not in deltas[0]:
        return
    case = Case("", deltas, "stop", "", "")
    shape = shape_of(case, form=form, is_plain=is_plain)
    streamed = message_of(reshape([case.stream()], shape))
    body, _ = reshape_body(json.dumps(case.whole()).encode(), shape)
    whole = json.loads(body)["choices"][0]["message"]

    for message in (streamed, whole):
        assert {name: message[name] for name in TEXT_FIELDS if message.get(name)} == fields


@pytest.mark.parametrize("last", [pytest.param((), id="cut"), pytest.param((CALL,), id="call")])
def test_an_inline_thought_is_always_closed(last):
    """A page never shows an opening tag without its end."""
    case = Case("", (*reasoning("H", "m"), *last), "length", "", "")

    assert message_of(reshape([case.stream()], shape_of(case, form="inline")))["content"] == (
        "<think>Hm</think>"
    )


def test_a_plain_models_tags_are_text():
    """Nothing of a model that we know nothing about is taken for a thought."""
    data = Case("", content("<think>a</think>", "b"), "stop", "", "").stream()

    assert reshape([data], AnswerShape(is_plain=True)) == data


@pytest.mark.parametrize("name", ["cut-in-thought", "cut-in-thought-split", "cut-in-tag"])
def test_the_client_is_told_that_the_limit_ended_the_thought(name):
    """An empty answer comes with its reason, in a comment that no parser minds."""
    case = BY_NAME[name]
    _, is_cut = reshape_body(json.dumps(case.whole()).encode(), shape_of(case))

    assert is_cut
    assert f": trimtab: {CUT_THOUGHT_NOTE}\n\n".encode() in reshape([case.stream()], shape_of(case))
    assert not reshape_body(json.dumps(BY_NAME["static-opener"].whole()).encode(), shape_of(case))[1]


def test_a_stop_word_inside_a_thought_makes_no_answer():
    """A client's own stop word may end a thought; half a thought is not sold as the answer."""
    case = BY_NAME["thought-without-answer"]
    shape = shape_of(case, has_stop_words=True)

    assert texts(message_of(reshape([case.stream()], shape))) == ("So four.", "")
    body, _ = reshape_body(json.dumps(case.whole()).encode(), shape)
    assert texts(json.loads(body)["choices"][0]["message"]) == ("So four.", "")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b'{"choices": 1}', b'{"choices": [1, {"message": 2}]}']
)
def test_odd_bodies_pass(body):
    """What is no chat answer reaches the client as the engine said it."""
    assert reshape_body(body, AnswerShape()) == (body, False)


def test_an_unknown_form_is_refused_with_the_legal_ones():
    """A wrong header is told, not ignored."""
    assert choose_form(None, default="inline") == "inline"
    assert choose_form(" Reasoning ", default="both") == "reasoning"
    with pytest.raises(GatewayError, match="x-trimtab-reasoning") as caught:
        choose_form("xml", default="both")
    assert (caught.value.status, "inline" in caught.value.hint) == (400, True)
