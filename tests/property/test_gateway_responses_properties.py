"""Pure. OpenAI's Responses over any chat: any cut gives the same events, streamed is unstreamed."""

import json

from chat_streams import TEXT, assembled, chats, cuts, wire
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from trimtab.errors import GatewayError
from trimtab.gateway.responses_answer import ResponseStream, chat_to_response
from trimtab.gateway.responses_request import responses_to_chat

EVENTS = TypeAdapter(ResponseStreamEvent)
ASKED = {"model": "m", "input": "hi", "metadata": {"a": "b"}, "temperature": 0.5}
ENDS = {"response.completed", "response.incomplete"}


def translate(pieces):
    stream = ResponseStream(asked=ASKED, model="m")
    return b"".join([stream.feed(piece) for piece in pieces]) + stream.end()


def decode(data):
    events = []
    for part in data.decode().split("\n\n"):
        if part and not part.startswith(":"):
            head, _, body = part.partition("\n")
            document = json.loads(body.removeprefix("data: "))
            assert head == f"event: {document['type']}"
            events.append(document)
    return events


def whole(documents):
    return json.loads(chat_to_response(assembled(documents), asked=ASKED, model="m"))


@given(chats(), st.data())
def test_any_cut_of_the_engines_stream_gives_the_same_events(documents, data):
    """Where the network cuts is nothing a client can see."""
    told = wire(documents)
    assert translate(data.draw(cuts(told))) == translate([told])


@given(chats())
def test_a_streamed_response_holds_what_an_unstreamed_one_does(documents):
    """The last event carries the whole answer, and so do the pieces put together."""
    events = decode(translate([wire(documents)]))
    last = events[-1]["response"]
    assert last == whole(documents)
    texts = {}
    for event in events:
        if event["type"].endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    for item in last["output"]:
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert texts.get(item["id"], "") == text


@given(chats())
def test_events_come_in_openais_order(documents):
    """Numbered without a gap, each of the SDK's own type, items one after the other."""
    events = decode(translate([wire(documents)]))
    for event in events:
        EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ENDS
    is_open, number = False, 0
    for event in events:
        if event["type"] == "response.output_item.added":
            assert (is_open, event["output_index"]) == (False, number)
            is_open = True
        elif "output_index" in event:
            assert (is_open, event["output_index"]) == (True, number)
        if event["type"] == "response.output_item.done":
            is_open, number = False, number + 1
    assert not is_open


@given(chats(), st.integers(0, 4000))
def test_a_stream_that_breaks_off_is_still_closed(documents, at):
    """Whatever came, no item stays open and the response ends."""
    kinds = [event["type"] for event in decode(translate([wire(documents)[:at]]))]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done")
    assert kinds[-1] in ENDS


@given(chats())
def test_a_whole_answer_is_a_response_of_the_sdk(documents):
    """OpenAI's own types take it."""
    Response.model_validate(whole(documents))


@given(chats())
def test_what_was_answered_can_be_sent_back(documents):
    """The output of one turn is the input of the next: nothing of it is refused or lost."""
    output = whole(documents)["output"]
    messages = responses_to_chat({"input": [*output, {"role": "user", "content": "go on"}]})["messages"]
    sent = json.loads(assembled(documents))["choices"][0]["message"]
    if output:
        assert messages[0].get("reasoning_content") == sent.get("reasoning_content")
        assert (messages[0].get("content") or "") == (sent.get("content") or "")
        assert [call["id"] for call in messages[0].get("tool_calls", ())] == [
            call["id"] for call in sent.get("tool_calls", ())
        ]


PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "input_image", "input_file", "x"])},
    optional={name: TEXT | st.integers() for name in ("text", "image_url", "file_id")},
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "x"]),
        "role": st.sampled_from(["user", "assistant", "system", "developer", "x"]),
        "content": TEXT | st.lists(PARTS, max_size=2) | st.none(),
        "summary": st.lists(PARTS, max_size=1),
        "call_id": TEXT,
        "name": TEXT,
        "arguments": TEXT | st.none(),
        "output": TEXT | st.lists(PARTS, max_size=2),
    },
)


@given(TEXT | st.lists(ITEMS | TEXT, max_size=4) | st.none())
def test_any_input_is_translated_or_refused_with_its_field(given_input):
    """Nothing a client sends is a fault of the gateway's."""
    try:
        chat = responses_to_chat({"input": given_input})
    except GatewayError as refusal:
        assert refusal.status == 400
        assert (refusal.param or "").startswith("input")
        return
    assert all(message["role"] in {"user", "assistant", "system", "tool"} for message in chat["messages"])
