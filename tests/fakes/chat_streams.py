"""Chats' streams as engines send them, for properties of what is made of them."""

import json

from hypothesis import strategies as st

from trimtab.gateway.assemble import Assembly

TEXT = st.text(min_size=1, max_size=8)
THOUGHTS = st.lists(TEXT.map(lambda text: {"reasoning_content": text}), max_size=3)
ANSWERS = st.lists(TEXT.map(lambda text: {"content": text}), max_size=3)
ARGUMENTS = st.dictionaries(st.text(max_size=4), st.integers() | TEXT, max_size=2).map(json.dumps)


@st.composite
def tool_deltas(draw):
    """Up to three calls, one after the other or mixed, their arguments in pieces."""
    queues = []
    for index in range(draw(st.integers(0, 3))):
        text = draw(ARGUMENTS)
        at = draw(st.integers(0, len(text)))
        head = {"index": index, "id": f"call_{index}", "type": "function"}
        queue = [head | {"function": {"name": f"f{index}", "arguments": ""}}]
        queue += [{"index": index, "function": {"arguments": piece}} for piece in (text[:at], text[at:])]
        queues.append(queue)
    deltas = []
    while any(queues):
        # A call begins after the one before it began, as engines number them.
        num_begun = sum(len(queue) < 3 for queue in queues)
        queue = draw(st.sampled_from([queue for queue in queues[: num_begun + 1] if queue]))
        deltas.append({"tool_calls": [queue.pop(0)]})
    return deltas


@st.composite
def chats(draw):
    """The documents of one chat's stream, as an engine sends them."""
    deltas = [{"role": "assistant", "content": None}, *draw(THOUGHTS), *draw(ANSWERS), *draw(tool_deltas())]
    finish = "tool_calls" if "tool_calls" in deltas[-1] else draw(st.sampled_from(["stop", "length"]))
    shared = {"id": "chatcmpl-x1", "object": "chat.completion.chunk", "created": 1, "model": "engine"}
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    documents = [shared | {"choices": [choice]} for choice in choices]
    return [*documents, shared | {"choices": [], "usage": usage}]


def wire(documents):
    parts = [b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents]
    parts.insert(1, b": keep-alive\n\n")
    return b"".join(parts) + b"data: [DONE]\n\n"


@st.composite
def cuts(draw, data):
    """The bytes in pieces of any sizes."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=30))
    pieces, at = [], 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    return pieces


def assembled(documents):
    """The whole answer of the same chat."""
    assembly = Assembly()
    for document in documents:
        assembly.add(document)
    return json.dumps(assembly.finish()).encode()
