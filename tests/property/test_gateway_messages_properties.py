"""Pure. Anthropic's protocol over any chat: any cut gives the same events, streamed is unstreamed."""

import json

from anthropic.types import Message, RawMessageStreamEvent
from chat_streams import TEXT, assembled, chats, cuts, wire
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from trimtab.errors import GatewayError
from trimtab.gateway.messages_answer import MessageStream, chat_to_message
from trimtab.gateway.messages_request import messages_to_chat

EVENTS = TypeAdapter(RawMessageStreamEvent)


def translate(pieces):
    stream = MessageStream(model="m")
    return b"".join([stream.feed(piece) for piece in pieces]) + stream.end()


def decode(data):
    events = []
    for part in data.decode().split("\n\n"):
        if part:
            head, _, body = part.partition("\n")
            document = json.loads(body.removeprefix("data: "))
            assert head == f"event: {document['type']}"
            events.append(document)
    return events


def whole(documents):
    return json.loads(chat_to_message(assembled(documents), model="m"))


@given(chats(), st.data())
def test_any_cut_of_the_engines_stream_gives_the_same_events(documents, data):
    """Where the network cuts is nothing a client can see."""
    told = wire(documents)
    assert translate(data.draw(cuts(told))) == translate([told])


@given(chats())
def test_a_streamed_message_holds_what_an_unstreamed_one_does(documents):
    """The blocks put together from events are those of the whole answer, and so are stop and usage."""
    message, partial = None, {}
    for event in decode(translate([wire(documents)])):
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                partial[event["index"]] = partial.get(event["index"], "") + delta["partial_json"]
            elif delta["type"] != "signature_delta":
                kind = delta["type"].removesuffix("_delta")
                block[kind] += delta[kind]
        elif event["type"] == "content_block_stop" and event["index"] in partial:
            message["content"][event["index"]]["input"] = json.loads(partial[event["index"]])
        elif event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    assert message == whole(documents)


@given(chats())
def test_events_come_in_anthropics_order(documents):
    """A message begins once, blocks follow one another with rising numbers, a stop is the last word."""
    events = decode(translate([wire(documents)]))
    for event in events:
        if event["type"] != "ping":
            EVENTS.validate_python(event)
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    is_open, number = False, 0
    for event in events:
        if event["type"] == "content_block_start":
            assert (is_open, event["index"]) == (False, number)
            is_open = True
        elif event["type"] == "content_block_delta":
            assert (is_open, event["index"]) == (True, number)
        elif event["type"] == "content_block_stop":
            assert (is_open, event["index"]) == (True, number)
            is_open, number = False, number + 1
    assert not is_open


@given(chats(), st.integers(0, 4000))
def test_a_stream_that_breaks_off_is_still_closed(documents, at):
    """Whatever came, no block stays open and the message ends."""
    events = decode(translate([wire(documents)[:at]]).replace(b": keep-alive\n\n", b""))
    kinds = [event["type"] for event in events]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    assert kinds[-1] == "message_stop"


@given(chats())
def test_a_whole_answer_is_a_message_of_the_sdk(documents):
    """Anthropic's own types take it."""
    Message.model_validate(whole(documents))


BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "thinking", "tool_use", "tool_result", "document", "x"])},
    optional={
        name: TEXT
        | st.none()
        | st.integers()
        | st.fixed_dictionaries({"type": TEXT})
        | st.lists(TEXT, max_size=2)
        for name in ("text", "source", "thinking", "id", "name", "input", "tool_use_id", "content")
    },
)
MESSAGES = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "x"]),
        "content": TEXT | st.lists(BLOCKS, max_size=3),
    }
)


@given(st.lists(MESSAGES, max_size=3), st.dictionaries(TEXT, TEXT, max_size=2))
def test_any_request_is_translated_or_refused_with_its_field(messages, more):
    """Nothing a client sends is a fault of the gateway's, and nothing is lost without a word."""
    try:
        chat = messages_to_chat(more | {"messages": messages, "max_tokens": 5})
    except GatewayError as refusal:
        assert refusal.status == 400
        assert (refusal.param or "").startswith("messages")
        return
    told = json.dumps(chat["messages"])
    for message in messages:
        if isinstance(message["content"], str):
            assert json.dumps(message["content"]) in told
