"""A webhook: what is posted, what is tried again, and endpoints that are slow, endless, or lead elsewhere."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from amqpmesh.pipeline.webhook import ATTEMPTS, LONGEST_PAUSE, Webhook, WebhookError
from amqpmesh.router.amqp.errors import CommandError

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
LONG = 120.0  # seconds; where nothing hangs, no attempt takes one
BODY = b'{"alerts": []}'


class Endpoint:
    """A server that gives each connection the next answer; the last one again and again.

    Args: answers: octets that it sends once it has the request; or a function that is given the socket.
    """

    def __init__(
        self, *answers: bytes | Callable[[socket.socket], None], context: ssl.SSLContext | None = None
    ) -> None:
        self.requests: list[bytes] = []
        self._answers = [*answers]
        self._context = context
        self._is_over = threading.Event()
        self._peers: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        for each in (self._listener, *self._peers):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._thread.join(120)
        self._listener.close()

    def _serve(self) -> None:
        while not self._is_over.is_set():
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._peers = [peer]
            if self._is_over.is_set():
                peer.close()
                return
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            with suppress(OSError), peer:
                peer.settimeout(120)
                if self._context is None:
                    self._answer(peer, answer)
                    continue
                with self._context.wrap_socket(peer, server_side=True) as secured:
                    self._answer(secured, answer)

    def _answer(self, peer: socket.socket, answer: bytes | Callable[[socket.socket], None]) -> None:
        if callable(answer):
            answer(peer)
            return
        data = b""
        while not _is_whole(data):
            more = peer.recv(4096)
            if not more:
                return
            data += more
        self.requests.append(data)
        peer.sendall(answer)


def _is_whole(request: bytes) -> bool:
    head, _, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return length is not None and len(body) == int(length[1])


@pytest.fixture
def endpoint() -> Iterator[Callable[..., Endpoint]]:
    made: list[Endpoint] = []

    def make(*answers: bytes | Callable[[socket.socket], None], context: ssl.SSLContext | None = None) -> Endpoint:
        made.append(Endpoint(*answers, context=context))
        return made[-1]

    yield make
    for each in made:
        each.close()


def webhook(folder: Path, text: str) -> Webhook:
    (folder / "hook.toml").write_text(text)
    return Webhook.of(folder / "hook.toml")


def at(folder: Path, endpoint: Endpoint, more: str = "") -> Webhook:
    return webhook(folder, f'url = "http://127.0.0.1:{endpoint.port}/secret?to=us"\n{more}')


def test_a_document_is_posted_with_the_token(endpoint: Callable[..., Endpoint], tmp_path: Path) -> None:
    there = endpoint(OK)
    hook = at(tmp_path, there, 'token = "s3cret"')
    hook.post(BODY, time_out=LONG)
    (request,) = there.requests
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert (first, body) == ("POST /secret?to=us HTTP/1.1", BODY)
    assert {"Authorization: Bearer s3cret", "Content-Type: application/json"} <= {*lines}
    assert "s3cret" not in repr(hook)
    assert "/secret" not in repr(hook)


@pytest.mark.parametrize(
    "refusal", [b"HTTP/1.1 503 Busy\r\n\r\n", b"HTTP/1.1 429 No\r\nRetry-After: 7\r\n\r\n", b"what?\r\n"]
)
def test_a_refusal_that_may_pass_is_tried_again_after_a_while(
    refusal: bytes, endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    there, pauses = endpoint(refusal, refusal, OK), list[float]()
    at(tmp_path, there).post(BODY, pause=pauses.append, time_out=LONG)
    assert len(there.requests) == 3
    assert pauses == [7.0, 7.0] if b"Retry" in refusal else 1 <= pauses[0] <= 1.5 < 2 <= pauses[1] <= 3


def test_it_gives_up_and_no_pause_is_longer_than_is_allowed(endpoint: Callable[..., Endpoint], tmp_path: Path) -> None:
    there, pauses = endpoint(b"HTTP/1.1 500 Broken\r\nRetry-After: 99999999\r\n\r\n"), list[float]()
    with pytest.raises(WebhookError, match=f"^webhook 127.0.0.1: it answered with 500, {ATTEMPTS} times$"):
        at(tmp_path, there).post(BODY, pause=pauses.append, time_out=LONG)
    assert pauses == [LONGEST_PAUSE] * (ATTEMPTS - 1)
    assert len(there.requests) == ATTEMPTS


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 403, 404])
def test_another_refusal_is_final_and_no_redirect_is_followed(
    status: int, endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    elsewhere = endpoint(OK)
    there = endpoint(f"HTTP/1.1 {status} No\r\nLocation: http://127.0.0.1:{elsewhere.port}/\r\n\r\n".encode())
    with pytest.raises(WebhookError, match=f"it answered with {status}"):
        at(tmp_path, there, 'token = "s3cret"').post(BODY, time_out=LONG)
    assert (len(there.requests), elsewhere.requests) == (1, [])


def drip(peer: socket.socket) -> None:
    """Answer for ever, an octet of a head at a time, so that no single read takes long."""
    peer.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    gone = threading.Event()
    while True:
        peer.sendall(b"a")
        gone.wait(0.02)


def flood(peer: socket.socket) -> None:
    """Answer with informational heads without end."""
    while True:
        peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 64)


def silent(peer: socket.socket) -> None:
    while peer.recv(4096):
        pass


@pytest.mark.parametrize("slow", [drip, flood, silent])
def test_an_attempt_ends_at_its_deadline_whatever_the_endpoint_does(
    slow: Callable[[socket.socket], None], endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    there = endpoint(slow)
    with pytest.raises(WebhookError, match=r"there was no answer within 0\.2 s, 4 times"):
        at(tmp_path, there).post(BODY, pause=lambda _: None, time_out=0.2)


def test_of_a_huge_answer_the_head_is_enough(endpoint: Callable[..., Endpoint], tmp_path: Path) -> None:
    at(tmp_path, endpoint(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\nmore to come")).post(
        BODY, time_out=LONG
    )


def test_a_head_without_end_is_refused(endpoint: Callable[..., Endpoint], tmp_path: Path) -> None:
    there = endpoint(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 2000 + b"\r\n")
    with pytest.raises(WebhookError, match="it cannot be reached"):
        at(tmp_path, there).post(BODY, pause=lambda _: None, time_out=LONG)


def test_tls_takes_trusted_certificates_only(endpoint: Callable[..., Endpoint], tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    there = endpoint(OK, context=context)
    url = f'url = "https://localhost:{there.port}/"\ntoken = "s3cret"\n'
    with pytest.raises(WebhookError, match="its certificate is not valid"):
        webhook(tmp_path, url).post(BODY, time_out=LONG)
    assert there.requests == []
    webhook(tmp_path, f'{url}ca = "ca.pem"').post(BODY, time_out=LONG)
    assert len(there.requests) == 1


def test_a_peer_that_is_not_there_is_told_by_its_host_alone(tmp_path: Path) -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))  # it does not listen
    port = taken.getsockname()[1]
    hook = webhook(tmp_path, f'url = "http://127.0.0.1:{port}/secret"')
    with pytest.raises(
        WebhookError, match=r"^webhook 127\.0\.0\.1: it cannot be reached \(Connection refused\), 4 times$"
    ):
        hook.post(BODY, pause=lambda _: None, time_out=LONG)
    taken.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "url: must be https://"),
        ('url = "ftp://a/"', "url: must be https://"),
        ('url = "https://u:hidden@a/"', "url: must be https://"),
        ('url = "https://a:99999/"', "url: must be https://"),
        ('url = "https://[a/"', "url: must be https://"),
        ('url = "http://a/"\ntoken = "hidden"', "token: is sent over TLS only"),
        ('url = "https://a/"\ntoken = "hid\\r\\nden"', "token: must be a text"),
        ('url = "https://a/"\ntoken = 7', "token: must be a text"),
        ('url = "https://a/"\ntokn = "hidden"', "there is no key 'tokn'"),
        ('url = "https://a/"\nca = "hidden"', "ca: no file"),
        ('url = "hidden', "is no TOML"),
        ("\x00" * 70_000, "is larger than"),
    ],
)
def test_a_file_that_is_not_valid_is_told_without_its_values(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError) as raised:
        webhook(tmp_path, text)
    assert said in str(raised.value)
    assert "hid" not in str(raised.value)
    with pytest.raises(CommandError, match="No such file"):
        Webhook.of(tmp_path / "nothing")
