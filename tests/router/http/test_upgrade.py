"""Requests for a WebSocket: the ones that are accepted, and the answers to all others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh import ListenerConfig, WebSocketConfig
from amqpmesh.router.http.upgrade import Upgrade
from tests.support.peers.websockets import ACCEPTED, BINARY, KEY, request, ws_frame

LOOPBACK = ListenerConfig(url="ws://127.0.0.1:8080", origins=("https://console.example",))
AT_PATH = ListenerConfig(url="ws://127.0.0.1:8080/amqp")
BOUNDED = ListenerConfig(url="ws://127.0.0.1:8080", websocket=WebSocketConfig(head=1024))


def answered(octets: bytes, config: ListenerConfig = LOOPBACK) -> tuple[int, Upgrade]:
    """Return the status of the answer."""
    upgrade = Upgrade(config)
    upgrade.receive(octets)
    return int(upgrade.answer.split()[1]) if upgrade.answer else 0, upgrade


@pytest.mark.parametrize("target", ["/", "/amqp", "/$servicebus/websocket", "/a?b=c"])
def test_a_listener_without_a_path_opens_a_websocket_at_each(target: str) -> None:
    status, upgrade = answered(request(target))
    assert status == 101
    assert upgrade.refusal is None
    assert upgrade.framing is not None
    assert f"Sec-WebSocket-Accept: {ACCEPTED}\r\n".encode() in upgrade.answer
    assert b"Sec-WebSocket-Protocol: amqp\r\n" in upgrade.answer
    assert b"xtension" not in upgrade.answer


def test_a_listener_with_a_path_has_its_websocket_there_only() -> None:
    assert answered(request("/amqp"), AT_PATH)[0] == 101
    assert answered(request("/amqp?x=y"), AT_PATH)[0] == 101
    status, upgrade = answered(request("/"), AT_PATH)
    assert (status, upgrade.refusal) == (404, "the listener has its WebSocket at another path")
    assert upgrade.framing is None


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("amqp", "amqp"),
        ("binary, AMQPWSB10, amqp", "amqp"),
        ("AMQPWSB10", "AMQPWSB10"),
        ("mqtt,binary", "binary"),
    ],
)
def test_amqp_is_chosen_and_the_names_of_older_clients_stand_for_it(offered: str, chosen: str) -> None:
    _, upgrade = answered(request(sec_websocket_protocol=offered))
    assert f"Sec-WebSocket-Protocol: {chosen}\r\n".encode() in upgrade.answer


def test_a_websocket_needs_the_http_of_its_standard() -> None:
    status, upgrade = answered(request().replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (status, upgrade.refusal) == (400, "a WebSocket needs HTTP/1.1")


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"method": "POST"}, 405),
        ({"upgrade": None}, 426),
        ({"upgrade": "h2c"}, 426),
        ({"connection": "keep-alive"}, 400),
        ({"sec_websocket_version": "8"}, 426),
        ({"sec_websocket_version": None}, 426),
        ({"sec_websocket_key": None}, 400),
        ({"sec_websocket_key": "c2hvcnQ="}, 400),
        ({"sec_websocket_key": "not base64 at all"}, 400),
        ({"sec_websocket_protocol": None}, 400),
        ({"sec_websocket_protocol": "mqtt, AMQP"}, 400),
        ({"host": None}, 400),
        ({"host": "evil.example"}, 421),
        ({"host": "\xff"}, 400),
        ({"content_length": "5"}, 413),
        ({"x": "y" * 2000}, 101),
    ],
)
def test_other_requests_are_refused_with_their_status(changed: dict[str, str | None], status: int) -> None:
    found, upgrade = answered(request(**changed))  # type: ignore[arg-type]  # `method` is one of them
    assert found == status
    assert (upgrade.refusal is None) is (status == 101)
    assert (upgrade.framing is None) is (status != 101)
    if status == 426:
        assert b"Upgrade: websocket\r\n" in upgrade.answer


def test_a_refusal_of_the_version_names_the_right_one() -> None:
    _, upgrade = answered(request(sec_websocket_version="8"))
    assert b"Sec-WebSocket-Version: 13\r\n" in upgrade.answer


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 101),
        ("http://127.0.0.1", 101),
        ("https://console.example", 101),
        ("http://evil.example", 403),
        ("https://127.0.0.1", 403),  # a page by TLS is another origin
        ("http://127.0.0.1:9", 403),
        ("null", 403),
    ],
)
def test_only_the_listeners_own_pages_and_those_of_origins_open_one(origin: str | None, status: int) -> None:
    assert answered(request(origin=origin))[0] == status


def test_of_two_keys_or_origins_none_counts() -> None:
    for name in ("sec-websocket-key", "origin"):
        twice = request(origin="http://127.0.0.1").replace(
            f"{name}: ".encode(), f"{name}: {KEY}\r\n{name}: ".encode(), 1
        )
        assert answered(twice)[0] == 400


def test_a_request_that_is_too_long_is_refused_before_its_end() -> None:
    assert answered(request(x="y" * 900), BOUNDED)[0] == 431
    status, _ = answered(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 2000, BOUNDED)
    assert status == 431


def test_octets_behind_the_request_are_the_first_of_the_websocket() -> None:
    _, upgrade = answered(request() + ws_frame(BINARY, b"AMQP"))
    assert upgrade.framing is not None
    assert upgrade.framing.take() == b"AMQP"


def test_a_client_may_leave_before_its_request_and_amid_it() -> None:
    with pytest.raises(EOFError):
        Upgrade(LOOPBACK).receive(b"")
    upgrade = Upgrade(LOOPBACK)
    upgrade.receive(request()[:40])
    upgrade.receive(b"")
    assert upgrade.refusal == "the request is malformed"


@given(st.integers(1, len(request())))
def test_a_request_may_come_in_any_pieces(size: int) -> None:
    upgrade, octets = Upgrade(LOOPBACK), request()
    for at in range(0, len(octets), size):
        assert not upgrade.answer
        upgrade.receive(octets[at : at + size])
    assert upgrade.framing is not None


@given(st.binary(max_size=300))
def test_octets_that_are_no_request_open_nothing(octets: bytes) -> None:
    upgrade = Upgrade(LOOPBACK)
    upgrade.receive(octets + b"\r\n\r\n")
    assert upgrade.framing is None
