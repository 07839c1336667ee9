"""Log lines of logins, by clients whose frames are written octet by octet."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.frames import SASL_FRAME, protocol_header
from amqpmesh.router.amqp.negotiation import SASL_ID
from amqpmesh.router.amqp.sasl.exchange import SaslInit
from amqpmesh.router.config.file import ListenerConfig, RouterConfig
from amqpmesh.router.config.users import Users
from amqpmesh.router.core import Core
from amqpmesh.router.logins import LINES, NAMES
from amqpmesh.router.logs import event_log

LISTENER = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("PLAIN",), users="users.toml", insecure=True)  # type: ignore[arg-type]  # a text
USERS = Users({}).add("alice", "secret", 4096)


class Daemon:
    """A router and its log lines."""

    def __init__(self, stream: io.StringIO) -> None:
        self.core = Core(RouterConfig(id="A"), 0.0)
        self._stream = stream

    def log_in(self, user: str, password: str, host: str = "192.0.2.1") -> None:
        """Log in, and end the connection after the router's answer, before `open`."""
        now = self.core.context.now
        record = self.core.accept(LISTENER, host, now, secured=True, users=USERS)
        body = encode_composite(
            SaslInit(mechanism=Symbol("PLAIN"), initial_response=f"\0{user}\0{password}".encode(), hostname=None)
        )
        frame = (len(body) + 8).to_bytes(4, "big") + bytes((2, SASL_FRAME, 0, 0)) + body
        self.core.receive(record, protocol_header(SASL_ID) + frame, now)
        assert record.login is not None
        record.login.do()
        self.core.logged_in(record, now)
        self.core.data_to_send(record, now)
        self.core.receive_eof(record, now)

    def lines(self) -> list[str]:
        """Return the lines since the last call, without time and connection."""
        text = self._stream.getvalue()
        self._stream.seek(0)
        self._stream.truncate()
        return [" ".join(each for each in line.split()[1:] if "connection=" not in each) for line in text.splitlines()]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    root = logging.getLogger(event_log.ROOT)
    before = root.handlers[:], root.level, root.propagate
    stream = io.StringIO()
    event_log.configure("info", "text", stream)
    yield Daemon(stream)
    root.handlers[:], root.level, root.propagate = before


def logins(lines: list[str]) -> list[str]:
    return [line for line in lines if "connection closed" not in line]


def test_each_login_and_each_refused_one_has_a_line_though_nothing_is_opened(daemon: Daemon) -> None:
    for _ in range(2):
        daemon.log_in("alice", "secret")
        daemon.log_in("alice", "wrong")
        daemon.log_in("mallory", "secret")
    refused = ' mechanism=PLAIN reason="unknown user or wrong password"'
    assert logins(daemon.lines()) == 2 * [
        "INFO logged in peer=192.0.2.1 user=alice mechanism=PLAIN",
        "WARNING authentication failed peer=192.0.2.1 user=alice" + refused,
        "WARNING authentication failed peer=192.0.2.1 user=mallory" + refused,
    ]


def test_beyond_a_hundred_a_second_one_line_for_each_host_has_the_count_and_the_users(daemon: Daemon) -> None:
    for _ in range(LINES):
        daemon.log_in("alice", "wrong")
    for user in ("alice", "bob", "bob"):
        daemon.log_in(user, "guess")
    daemon.log_in("alice", "secret")
    daemon.log_in("alice", "secret", host="192.0.2.2")
    assert [line.count("192.0.2.1") for line in logins(daemon.lines())] == [1] * LINES + [0]
    daemon.core.handle_timer(1.0)
    assert daemon.lines() == ['WARNING logins suppressed peer=192.0.2.1 count=4 refused=3 users="alice, bob"']
    daemon.log_in("alice", "secret")
    assert logins(daemon.lines()) == ["INFO logged in peer=192.0.2.1 user=alice mechanism=PLAIN"]
    daemon.core.handle_timer(2.0)
    assert daemon.core.next_timer() is None
    assert daemon.lines() == []


def test_of_many_users_that_are_left_out_some_are_named(daemon: Daemon) -> None:
    for number in range(LINES + 2 * NAMES):
        daemon.log_in(f"u{number}", "guess")
    daemon.lines()
    daemon.core.handle_timer(1.0)
    named = ", ".join(f"u{LINES + number}" for number in range(NAMES))
    assert daemon.lines() == [
        f'WARNING logins suppressed peer=192.0.2.1 count={2 * NAMES} refused={2 * NAMES} users="{named}, ..."'
    ]


def test_a_failed_handshake_of_tls_is_a_refused_login(daemon: Daemon) -> None:
    for _ in range(LINES + 5):
        daemon.core.logins.not_secured("192.0.2.1", "no certificate")
    lines = daemon.lines()
    assert len(lines) == LINES
    assert set(lines) == {'WARNING TLS handshake failed peer=192.0.2.1 reason="no certificate"'}
    daemon.core.handle_timer(1.0)
    assert daemon.lines() == ["WARNING logins suppressed peer=192.0.2.1 count=5 refused=5"]


def test_what_was_left_out_is_told_when_the_router_ends(daemon: Daemon) -> None:
    for _ in range(LINES + 1):
        daemon.log_in("alice", "wrong")
    daemon.lines()
    daemon.core.close_all(0.5, None)  # type: ignore[arg-type]  # there is nobody to be told
    assert daemon.lines() == ["WARNING logins suppressed peer=192.0.2.1 count=1 refused=1 users=alice"]
