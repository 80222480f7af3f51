"""HTTP's pure parts: what is read, what is refused, what is written."""

import socket
import sys
import zlib
from types import SimpleNamespace

import pytest

from trimtab.errors import GatewayError
from trimtab.gateway.descriptors import DescriptorBudget, read_descriptor_limit
from trimtab.gateway.http_date import http_date
from trimtab.gateway.http_message import Request, render_head
from trimtab.gateway.http_presence import _ends_on_this_machine, _Kernel
from trimtab.gateway.http_request_reader import MAX_FIELDS, MAX_HEAD_BYTES, RequestReader
from trimtab.gateway.http_response_reader import BrokenAnswerError, ResponseReader
from trimtab.gateway.metrics import GatewayMetrics
from trimtab.gateway.request_body import decode_body, too_large


def read(*pieces, max_body_bytes=1000):
    seen = []
    reader = RequestReader(seen.append, max_body_bytes=max_body_bytes, too_large=too_large)
    for piece in pieces:
        reader.feed(piece)
    return seen


def head_of(num_bytes, *, fields=1):
    each = num_bytes // fields
    lines = [b"X%d: %b\r\n" % (n, b"y" * (each - len(b"X%d" % n))) for n in range(fields)]
    return b"GET / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n"


def test_a_head_at_the_limit_is_read_and_one_above_refused():
    """The limits are what they say, in one piece and in many."""
    fits, exceeds = head_of(MAX_HEAD_BYTES - 1), head_of(MAX_HEAD_BYTES + 1)
    assert len(read(fits)) == 1
    assert len(read(*(fits[at : at + 1000] for at in range(0, len(fits), 1000)))) == 1
    assert len(read(head_of(1000, fields=MAX_FIELDS))) == 1
    for pieces in (
        [exceeds],
        [exceeds[at : at + 1000] for at in range(0, len(exceeds), 1000)],
        [b"GET / HTTP/1.1\r\n\r\n" + exceeds],
        [head_of(2000, fields=MAX_FIELDS + 1)],
        [b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n"],
    ):
        with pytest.raises(GatewayError, match="head is larger") as caught:
            read(*pieces)
        assert caught.value.status == 431


def test_endless_trailers_and_chunk_extensions_are_refused():
    """A body of nothing but packaging cannot go on for ever."""
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    for junk in (b"1;" + b"x" * 1000, b"0\r\nX: " + b"y" * 1000):
        with pytest.raises(GatewayError, match="overhead"):
            read(head + junk, *[b"z" * 1000] * 100)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        pytest.param(b"/a?b=/c", "/a", id="query"),
        pytest.param(b"http://x:1/a/b?c", "/a/b", id="whole-url"),
        pytest.param(b"http://x", "/", id="host-only"),
        pytest.param(b"*", "*", id="asterisk"),
    ],
)
def test_the_path_is_found_in_every_form_of_target(target, path):
    """Clients of proxies write whole URLs; the path is what counts."""
    (request,) = read(b"OPTIONS %b HTTP/1.1\r\n\r\n" % target)

    assert request.path == path


def test_of_a_header_that_came_twice_the_first_counts():
    """A header that is put behind cannot override the one before it."""
    (request,) = read(b"GET / HTTP/1.1\r\nAuthorization: a\r\nauthorization: b\r\n\r\n")

    assert request.header("Authorization") == "a"


DEFLATED = zlib.compress(b"{}")


@pytest.mark.parametrize(
    ("coding", "body", "result"),
    [
        pytest.param(b"deflate", DEFLATED, b"{}", id="zlib"),
        pytest.param(b"deflate", DEFLATED[2:-4], b"{}", id="bare-deflate"),
        pytest.param(b"identity", b"{}", b"{}", id="identity"),
        pytest.param(b"br", b"{}", 415, id="unknown"),
        pytest.param(b"gzip", b"{}", 400, id="no-gzip"),
        pytest.param(b"deflate", DEFLATED[:-1], 400, id="cut-off"),
        pytest.param(b"deflate", b"", 400, id="empty"),
        pytest.param(b"deflate", zlib.compress(b" " * 1001), 413, id="bomb"),
    ],
)
def test_compressed_bodies(coding, body, result):
    """What is compressed in a known way is read, within the limit; anything else is told."""
    request = Request(fields={b"content-encoding": coding}, body_parts=[body])
    try:
        assert decode_body(request, 1000) == result
    except GatewayError as error:
        assert error.status == result


def test_a_value_cannot_end_its_header():
    """Nothing that a client or an engine writes becomes a line of its own."""
    head = render_head(200, {"X-A": "1\r\nSet-Cookie: x", "X-B": "\0\n"}, framing=b"", date=http_date())

    assert b"X-A: 1  Set-Cookie: x\r\nX-B:   \r\nDate: " in head
    assert render_head(599, {}, framing=b"", date=b"d") == b"HTTP/1.1 599 Unknown\r\nDate: d\r\n\r\n"


def test_an_answer_without_length_ends_with_its_connection():
    """An engine of the old kind, which closes instead of counting, is understood."""
    reader = ResponseReader()
    reader.expect()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\nabc")
    assert not reader.is_whole
    reader.feed_end()

    assert (reader.is_whole, reader.keeps_alive, reader.take_body()) == (True, False, b"abc")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"\x00", "no HTTP", id="garbage"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, "head", id="endless-head"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n",
            "nobody asked",
            id="second-answer",
        ),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "no HTTP", id="other-protocol"),
    ],
)
def test_what_no_engine_should_say_breaks_the_answer(data, words):
    """An engine that breaks HTTP is told from one that answers."""
    reader = ResponseReader()
    reader.expect()
    with pytest.raises(BrokenAnswerError, match=words):
        reader.feed(data)


def test_descriptors_are_counted_and_some_kept_back():
    """Connections never take the last descriptor, and one that can be spared makes room."""
    budget = DescriptorBudget(40)
    assert (budget.limit, budget.num_reserved) == (30, 10)
    assert all(budget.take() for _ in range(30))
    assert not budget.take()
    budget.make_room = lambda: True
    assert budget.take()
    budget.give()

    assert budget.num_taken == 30
    assert DescriptorBudget(1 << 20).num_reserved == 2048
    assert read_descriptor_limit() > 0


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
@pytest.mark.parametrize(
    ("listen", "family", "address"),
    [
        pytest.param("127.0.0.1", socket.AF_INET, "127.0.0.1", id="ipv4"),
        pytest.param("::", socket.AF_INET6, "127.0.0.1", id="mapped"),
        pytest.param("::1", socket.AF_INET6, "::1", id="ipv6"),
    ],
)
def test_the_kernel_tells_who_left_from_who_finished_sending(listen, family, address):
    """A socket is held while its program has it, half-closed or not, and not held once it is closed."""
    kernel = _Kernel()
    with socket.create_server((listen, 0), family=family, dualstack_ipv6=listen == "::") as server:
        client = socket.create_connection((address, server.getsockname()[1]))
        with server.accept()[0] as served:
            peer, own = served.getpeername(), served.getsockname()
            ends = _ends_on_this_machine(SimpleNamespace(extra_info={"peername": peer, "sockname": own}.get))
            assert ends == (address, peer[1], address, own[1])
            assert kernel.is_held(ends) is True
            client.shutdown(socket.SHUT_WR)
            assert kernel.is_held(ends) is True
            client.close()
            assert kernel.is_held(ends) is False
    assert kernel.is_held(("127.0.0.1", 1, "127.0.0.1", 2)) is False
    kernel.close()


def test_a_kernel_that_does_not_tell_is_no_verdict(monkeypatch):
    """Where asking is forbidden nobody is taken for gone."""

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(socket, "socket", refuse)

    assert _Kernel().is_held(("127.0.0.1", 1, "127.0.0.1", 2)) is None


def test_metrics_add_up():
    """Counters and histograms are written as Prometheus reads them: cumulative buckets, sum and count."""
    metrics = GatewayMetrics()
    model = metrics.of_model('m"\n')
    for duration_s in (0.005, 0.006, 700.0):
        model.count("/v1/x", 200, duration_s)
    model.count("/v1/x", 499, 0.01)
    text = metrics.render((), num_in_flight=3).decode()

    name = r'model="m\"\n"'
    assert f'trimtab_requests_total{{endpoint="/v1/x",{name},status="200"}} 3.0' in text
    assert f"trimtab_client_disconnects_total{{{name}}} 1.0" in text
    for bound, count in (("0.005", 1), ("0.01", 3), ("600.0", 3), ("+Inf", 4)):
        assert f'_seconds_bucket{{endpoint="/v1/x",le="{bound}",{name}}} {count}.0' in text
    assert f'trimtab_request_duration_seconds_count{{endpoint="/v1/x",{name}}} 4.0' in text
    assert "trimtab_requests_in_flight 3.0" in text
