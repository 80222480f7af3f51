"""What a hostile or careless client may not do."""

import pytest

from trimtab.errors import GatewayError
from trimtab.gateway.access import check_key
from trimtab.gateway.event_cut import split_whole_events
from trimtab.gateway.request import decode_request
from trimtab.gateway.token_limit import check_windows


def test_a_key_that_is_not_utf8_is_a_401():
    """Odd bytes in a header are a wrong key, not a failure of the gateway."""
    with pytest.raises(GatewayError) as caught:
        check_key("Bearer \udcff", ("good",))

    assert caught.value.status == 401


@pytest.mark.parametrize("field", ["dry_penalty_last_n", "repeat_last_n"])
def test_a_window_beyond_the_context_is_refused(field):
    """One small request cannot make the engine allocate gigabytes for all others to miss."""
    with pytest.raises(GatewayError, match=field):
        check_windows(decode_request(f'{{"{field}": 2147483647}}'.encode()), limit=4096)
    check_windows(decode_request(f'{{"{field}": -1}}'.encode()), limit=4096)


def test_a_deeply_nested_limit_is_a_400():
    """A value that cannot even be shown is refused like any other wrong one."""
    for depth in range(200, 1000, 7):
        body = b'{"max_tokens":' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises(GatewayError) as caught:
            decode_request(body)
        assert caught.value.status == 400


def test_the_bound_on_a_held_event_is_the_callers():
    """An answer that is put together whole may hold a large event whole."""
    data = b"data: " + b"x" * 2_000_000

    assert split_whole_events(data, max_held_bytes=10_000_000) == (b"", data)
