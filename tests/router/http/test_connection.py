"""The server's end of a connection of HTTP: requests in any pieces, limits, and what is malformed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh import HttpConfig
from amqpmesh.router.http.connection import HttpConnection
from amqpmesh.router.http.requests import OK, Answer, HttpError, Request
from amqpmesh.router.http.siblings import Question

GET = b"GET /api/link?x=1&y=%20 HTTP/1.1\r\nHost: localhost:80\r\nAccept: a\r\n\r\n"
PATCH = b'PATCH /api/listener/a HTTP/1.1\r\nHost: b\r\nContent-Length: 10\r\n\r\n{"cost":5}'
LIMITS = HttpConfig(head=1024, body=100)


def read(data: bytes, limits: HttpConfig = LIMITS) -> Request | None:
    connection = HttpConnection(limits)
    connection.receive(data)
    return connection.next_request()


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.integers(0, len(GET + PATCH)), max_size=6))
def test_requests_are_read_in_any_pieces_one_after_the_other(cuts: list[int]) -> None:
    connection = HttpConnection(LIMITS)
    data, found = GET + PATCH, []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        if begin < end:
            connection.receive(data[begin:end])
        while (request := connection.next_request()) is not None:
            found.append(request)
            connection.head(Answer(OK, b"x"))
            connection.part(b"x")
            connection.end()
            assert connection.begin_next()
    assert [(each.method, each.path, dict(each.query), each.body) for each in found] == [
        ("GET", "/api/link", {"x": "1", "y": " "}, b""),
        ("PATCH", "/api/listener/a", {}, b'{"cost":5}'),
    ]
    assert [each.headers["host"] for each in found] == ["localhost:80", "b"]
    assert not connection.is_begun


def test_the_absolute_form_of_a_target_names_the_host() -> None:
    request = read(b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert request is not None
    assert (request.path, request.headers["host"]) == ("/healthz", "evil.example")


@pytest.mark.parametrize("target", [b"//localhost/api/link", b"//localhost:80/api", b"///localhost/api?x=//localhost/"])
def test_a_path_that_looks_like_a_host_names_none(target: bytes) -> None:
    # A page of evil.example, which has given its name this address, can ask for any path.
    request = read(b"GET " + target + b" HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert request is not None
    assert (request.path, request.headers["host"]) == (target.partition(b"?")[0].decode(), "evil.example")


@pytest.mark.parametrize("whole", [True, False])
def test_a_head_beyond_the_limit_is_refused_whole_or_not(whole: bool) -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 1100 + (b"\r\n\r\n" if whole else b"")
    with pytest.raises(HttpError) as refused:
        read(head)
    assert refused.value.status == 431


def test_many_small_header_fields_count_as_well() -> None:
    with pytest.raises(HttpError) as refused:
        read(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:b\r\n" * 300 + b"\r\n")
    assert refused.value.status == 431


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 101\r\n\r\n",  # refused before it comes
        b"Transfer-Encoding: chunked\r\n\r\n65\r\n" + b"x" * 101 + b"\r\n",
        b"Content-Length: 99999999999999999999\r\n\r\n",
    ],
)
def test_content_beyond_the_limit_is_refused(body: bytes) -> None:
    with pytest.raises(HttpError) as refused:
        read(b"PATCH / HTTP/1.1\r\nHost: a\r\n" + body)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\xa5\x01\r\n\r\n",  # TLS
        b"AMQP\x00\x01\x00\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nAuthorization: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nOrigin: x\r\nOrigin: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /?" + b"&".join(b"a=1" for _ in range(30)) + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /?a=%ff HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_what_is_malformed_or_ambiguous_is_refused(data: bytes) -> None:
    with pytest.raises(HttpError) as refused:
        read(data)
    assert refused.value.status in (400, 501)


@settings(derandomize=True, max_examples=200)
@given(st.binary(max_size=200))
def test_no_octets_bring_it_down(data: bytes) -> None:
    try:
        connection = HttpConnection(LIMITS)
        connection.receive(data)
        connection.next_request()
        connection.receive(b"")
        connection.next_request()
    except (HttpError, EOFError):
        return


def test_another_worker_reads_the_octets_that_a_client_has_sent() -> None:
    asked = read(GET.replace(b"Accept: a", b"Accept: \xe4"))
    assert asked is not None
    passed_on = read(Question(asked, None).octets)
    assert passed_on is not None
    assert (passed_on.path, dict(passed_on.query)) == (asked.path, dict(asked.query))
    assert passed_on.headers["accept"] == asked.headers["accept"] == "\xe4"


def test_the_answer_to_a_request_for_the_head_has_no_content() -> None:
    connection = HttpConnection(LIMITS)
    connection.receive(GET.replace(b"GET", b"HEAD"))
    assert connection.next_request() is not None
    answer = Answer(OK, b"four")
    sent = connection.head(answer) + connection.part(answer.body) + connection.end()
    head, _, content = sent.partition(b"\r\n\r\n")
    assert b"Content-Length: 4" in head
    assert content == b""


def test_no_answer_is_stored_shown_in_a_frame_or_taken_for_another_type() -> None:
    connection = HttpConnection(LIMITS)
    connection.receive(GET)
    connection.next_request()
    head = connection.head(Answer(OK, b"x")).decode()
    for line in ("Cache-Control: no-store", "X-Content-Type-Options: nosniff", "frame-ancestors 'none'"):
        assert line in head
    assert "Set-Cookie" not in head
    assert "Server:" not in head
