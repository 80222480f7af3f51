"""The few fields that the gateway reads from a request body."""

import json

import pytest

from trimtab.errors import GatewayError
from trimtab.gateway.request import decode_request, replace_fields


def test_decode_reads_model_stream_and_smallest_limit():
    """A request is routed by its own fields, whichever of the two limit names the client uses."""
    facts = decode_request(b'{"model": "m", "stream": true, "max_tokens": 9, "max_completion_tokens": 5}')

    assert (facts.model, facts.is_stream, facts.max_tokens) == ("m", True, 5)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        pytest.param(b'{"a": ', "invalid_json", "line 1, column 7", id="cut-off"),
        pytest.param(b"\xff{}", "invalid_utf8", "byte 0 is 0xff", id="not-utf8"),
        pytest.param(b"[1]", "invalid_json", "a list, not a JSON object", id="list"),
        pytest.param(b"null", "invalid_json", "null, not a JSON object", id="null"),
        pytest.param(b"", "invalid_json", "line 1, column 1", id="empty"),
        pytest.param(b"[" * 100_000, "invalid_json", "deeper than 200 levels", id="nested-deeply"),
        pytest.param(b'{"a":' + b"[" * 976 + b"]" * 976 + b"}", "invalid_json", "deeper than 200", id="deep"),
        pytest.param(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "invalid_json", "deeper than 200", id="201"),
        pytest.param(b'{"a": ' + b"5" * 5001 + b"}", "invalid_json", "more than 4,300 digits", id="digits"),
        pytest.param(b'{"a": NaN}', "invalid_json", "holds NaN", id="nan"),
        pytest.param(b'{"a": -Infinity}', "invalid_json", "holds -Infinity", id="infinity"),
        pytest.param(b'{"a": 1e999}', "invalid_json", "1e999, which is beyond", id="beyond"),
        pytest.param("{}".encode("utf-16"), "invalid_utf8", "begins as UTF-16", id="utf-16"),
        pytest.param(b"\xef\xbb\xbf\xff", "invalid_utf8", "byte 0 is 0xff", id="mark-and-not-utf8"),
        pytest.param(b'{"model": 3}', "invalid_value", "model is 3; legal is a string", id="model-number"),
        pytest.param(b'{"stream": "yes"}', "invalid_value", "stream is", id="stream-text"),
        pytest.param(b'{"max_tokens": 0}', "invalid_value", "max_tokens is 0", id="zero"),
        pytest.param(b'{"max_tokens": -5}', "invalid_value", "max_tokens is -5", id="negative"),
        pytest.param(b'{"max_tokens": 1.5}', "invalid_value", "max_tokens is 1.5", id="fraction"),
        pytest.param(b'{"max_completion_tokens": true}', "invalid_value", "is true", id="boolean"),
    ],
)
def test_bad_bodies_get_one_clear_sentence(body, code, words):
    """Whoever sends a broken body reads where it is broken, as a 400."""
    with pytest.raises(GatewayError) as caught:
        decode_request(body)

    assert (caught.value.status, caught.value.code) == (400, code)
    assert words in caught.value.message
    assert "set_int_max_str_digits" not in caught.value.message


@pytest.mark.parametrize("body", [b'{"a":' + b"[" * 199 + b"]" * 199 + b"}", b'\xef\xbb\xbf{"a": "[[[["}'])
def test_what_has_room_is_read(body):
    """The last legal depth is read and can be written again; a mark before UTF-8 is no fault."""
    document = decode_request(body).document
    assert json.loads(replace_fields(document, model="m", max_tokens=None)) == document | {"model": "m"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"tools": [{"type": "function"}]}, id="tools"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, id="image"
        ),
    ],
)
def test_input_that_bytes_do_not_bound_is_marked(body):
    """A prompt that the template or an image makes longer than its bytes is never taken as short."""
    assert decode_request(json.dumps(body).encode()).has_uncounted_input


def test_replace_changes_only_what_is_asked():
    """Unknown fields of a client survive when the gateway has to lower a limit."""
    document = {"model": "a", "max_tokens": 9, "x_custom": {"y": [1, "é"]}}

    changed = json.loads(replace_fields(document, model=None, max_tokens=4))

    assert changed == document | {"max_tokens": 4}
    assert document["max_tokens"] == 9
