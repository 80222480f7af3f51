"""max_tokens: refused only when it can never work, else lowered to the room that is left."""

import pytest

from trimtab.errors import GatewayError
from trimtab.gateway.request import decode_request
from trimtab.gateway.token_limit import cap_max_tokens, check_max_tokens, needs_prompt_count


def test_max_tokens_equal_to_the_limit_passes():
    """Asking for exactly the context is legal: it is lowered later, not refused."""
    check_max_tokens(decode_request(b'{"max_tokens": 4096}'), limit=4096)


def test_max_tokens_above_the_limit_alone_is_refused():
    """A limit that no prompt could make legal is a 400 that names the limit."""
    with pytest.raises(GatewayError, match="above the 4,096 tokens"):
        check_max_tokens(decode_request(b'{"max_tokens": 4097}'), limit=4096)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "capped"),
    [
        pytest.param(100, 3996, None, id="fits-exactly"),
        pytest.param(100, 3997, 3996, id="one-too-many"),
        pytest.param(4095, 4096, 1, id="room-for-one"),
    ],
)
def test_cap_leaves_exactly_the_room_behind_the_prompt(prompt_tokens, max_tokens, capped):
    """The client gets as many tokens as fit, and no refusal."""
    assert cap_max_tokens(max_tokens, prompt_tokens=prompt_tokens, limit=4096) == capped


def test_prompt_that_fills_the_context_is_refused():
    """No room for one token: the error names both lengths."""
    with pytest.raises(GatewayError, match=r"4,096 tokens and leaves no room") as caught:
        cap_max_tokens(1, prompt_tokens=4096, limit=4096)

    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "limit", "needed"),
    [
        pytest.param(b'{"prompt": "hi", "max_tokens": 10}', 4096, False, id="small"),
        pytest.param(b'{"prompt": "hi"}', 64, False, id="no-limit-asked"),
        pytest.param(b'{"prompt": "hi", "max_tokens": 4090}', 4096, True, id="large-answer"),
        pytest.param(b'{"tools": [1], "max_tokens": 10}', 4096, True, id="tools"),
    ],
)
def test_prompts_are_counted_only_where_they_could_exceed(body, limit, needed):
    """Ordinary requests pay nothing for the rule."""
    assert needs_prompt_count(decode_request(body), body_bytes=len(body), limit=limit) is needed
