"""Whatever bytes come in, the gateway's pure parts hold their promises."""

import json

from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import GatewayError
from trimtab.gateway.assemble import Assembly, decode_events
from trimtab.gateway.event_cut import split_whole_events
from trimtab.gateway.request import decode_request
from trimtab.gateway.token_limit import cap_max_tokens, needs_prompt_count

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(["model", "stream", "max_tokens", "max_completion_tokens", "tools", "messages", "x"])


@given(st.binary() | st.dictionaries(FIELDS, JSON).map(lambda value: json.dumps(value).encode()))
def test_any_body_is_read_or_refused(body):
    """No body whatever makes the gateway fail: it is understood, or it is a 400."""
    try:
        facts = decode_request(body)
    except GatewayError as error:
        assert error.status == 400
    else:
        assert facts.max_tokens is None or facts.max_tokens >= 1


@given(st.lists(st.binary(min_size=1)))
def test_any_chunking_loses_no_byte(chunks):
    """What goes in comes out, in order, however the stream was cut."""
    out, held = b"", b""
    for chunk in chunks:
        whole, held = split_whole_events(held + chunk)
        out += whole

    assert out + held == b"".join(chunks)


@given(st.lists(st.text(max_size=6), min_size=1), st.data())
def test_any_cut_of_a_stream_assembles_to_the_same_text(texts, data):
    """The answer does not depend on how the network cut the stream, multi-byte characters included."""
    stream = b"".join(
        b"data: "
        + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}, ensure_ascii=False).encode()
        + b"\n\n"
        for text in texts
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    assembly, held = Assembly(), b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        whole, held = split_whole_events(held + stream[start:end])
        for document in decode_events(whole):
            assembly.add(document)

    assert held == b""
    assert (assembly.finish()["choices"][0]["message"]["content"] or "") == "".join(texts)


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_capped_answer_fits_behind_its_prompt(limit, prompt_tokens, max_tokens):
    """Prompt and answer together never exceed what one request may use."""
    if prompt_tokens >= limit:
        return
    capped = cap_max_tokens(max_tokens, prompt_tokens=prompt_tokens, limit=limit)

    assert prompt_tokens + (capped if capped is not None else max_tokens) <= max(limit, prompt_tokens + 1)


@given(st.text(max_size=300), st.integers(1, 5000), st.integers(1, 5000))
def test_a_request_that_is_not_counted_fits(text, max_tokens, limit):
    """Skipping the count is only done where even one token per byte would fit."""
    body = json.dumps({"prompt": text, "max_tokens": max_tokens}).encode()

    if not needs_prompt_count(decode_request(body), body_bytes=len(body), limit=limit):
        assert len(text.encode()) + max_tokens <= limit
