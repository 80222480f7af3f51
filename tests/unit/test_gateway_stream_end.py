"""How a stream ended, told from its last events."""

import pytest

from trimtab.gateway.stream_end import judge_end


@pytest.mark.parametrize(
    ("last_events", "end"),
    [
        pytest.param(b"data: [DONE]\n\n", "done", id="done"),
        pytest.param(b'data: {"choices":[]}\n\ndata:[DONE]\r\n\r\n', "done", id="done-crlf"),
        pytest.param(b'data: {"choices":[{"finish_reason":"stop"}]}\n\n', "finished", id="finish-reason"),
        pytest.param(b'data: {"choices":[],"usage":{"total_tokens":1}}\n\n', "finished", id="usage"),
        pytest.param(b'data: {"error":{"message":"x"}}\n\n', "error", id="error"),
        pytest.param(b'data: {"choices":[{"delta":{"content":"[DONE]"}}]}\n\n', "cut", id="done-as-text"),
        pytest.param(
            b'data: {"choices":[{"finish_reason":null}],"usage":{"total_tokens":1}}\n\n',
            "cut",
            id="usage-on-every-chunk",
        ),
        pytest.param(b'data: {"choices": [3]}\n\n', "cut", id="odd-choice"),
        pytest.param(b"data: {half", "cut", id="half"),
        pytest.param(b"data: \xff\n\n", "cut", id="no-utf8"),
        pytest.param(b"", "cut", id="nothing"),
    ],
)
def test_only_the_protocols_own_marks_end_a_stream(last_events, end):
    """A whole answer is never called broken, and a broken one never whole."""
    assert judge_end(last_events) == end
