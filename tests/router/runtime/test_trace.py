"""The frame trace of a running router, in its log."""

import logging
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import MockClock

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.sasl.exchange import SaslInit
from amqpmesh.router.amqp.sasl.mechanisms import MIN_ITERATIONS
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Close, Open, Transfer
from amqpmesh.router.config.file import ListenerConfig, TlsConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.io.tls import client_context
from amqpmesh.router.logs.event_log import TextFormatter, event_of, fields_of
from amqpmesh.router.logs.frame_trace import NAME
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted import SASL
from tests.support.peers.scripted_stream import AMQP, TLS, Peer, connect, connected, credit, frame
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

OPEN_LISTENER = ListenerConfig(url="amqp://127.0.0.1:0", name="traced", trace_frames=True)


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)


def frames(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == NAME]


def traced(caplog: pytest.LogCaptureFixture, way: str) -> list[str]:
    """Return the names of the frames of one direction, in order."""
    return [str(fields_of(each)["frame"]) for each in frames(caplog) if event_of(each) == way]


async def test_a_connection_is_traced_from_its_header_to_its_close(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Router(id="A") as router:
        receiver, sender = connected(nursery, router, OPEN_LISTENER), connected(nursery, router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        await sender.attach(Role.SENDER, "q")
        await sender.send(0, b"a secret body", settled=True)
        await receiver.expect(Transfer)
        await sender.close()
        await receiver.close()
    assert traced(caplog, "in") == ["header", "open", "begin", "attach", "flow", "close"]
    assert traced(caplog, "out") == ["header", "open", "begin", "attach", "transfer", "close"]
    (bound,) = {(fields_of(each)["connection"], fields_of(each)["listener"]) for each in frames(caplog)}
    assert bound[1] == "traced", "the other listener does not say so"
    assert "secret" not in "".join(TextFormatter().format(each) for each in caplog.records)


async def test_over_a_socket_what_waits_to_be_written_is_traced_once(caplog: pytest.LogCaptureFixture) -> None:
    async with Router(id="A", listeners=[OPEN_LISTENER]) as router:
        receiver, sender = await connect(router), await connect(router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(100))
        await sender.attach(Role.SENDER, "q")
        for number in range(50):
            await sender.send(number, b"\x00" * 30_000, settled=True)
        for _ in range(50):
            await receiver.expect(Transfer)
        await sender.close()
        await receiver.close()
    assert traced(caplog, "out").count("transfer") == traced(caplog, "in").count("transfer") == 50


async def test_no_password_is_in_the_log(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    users = tmp_path / "users.toml"
    add_user(users, "ada", "sesame", MIN_ITERATIONS)
    listener = replace(OPEN_LISTENER, sasl=("PLAIN",), users=users, insecure=True)
    async with Router(id="A") as router:
        peer = connected(nursery, router, listener)
        init = SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0ada\0sesame")
        await peer.write(SASL, frame(encode_composite(init), type=1), AMQP, Open(container_id="c"), Close())
        while await peer.stream.receive_some():
            pass
    assert traced(caplog, "in") == ["header", "sasl-init", "header", "open", "close"]
    assert traced(caplog, "out") == ["header", "sasl-mechanisms", "sasl-outcome", "header", "open", "close"]
    written = "".join(TextFormatter().format(each) for each in caplog.records)
    assert "sesame" not in written
    assert b"sesame".hex() not in written
    assert 'initial_response="11 octets"' in written


async def test_frames_within_tls_are_traced_in_clear(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    leaf = authority.issue_cert("router.example")
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "a.pem"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "a.key"))
    tls = TlsConfig(certificate=tmp_path / "a.pem", key=tmp_path / "a.key")
    async with Router(id="A") as router:
        peer = connected(nursery, router, replace(OPEN_LISTENER, tls=tls))
        await peer.write(TLS)
        assert await peer.expect_header() == TLS
        context: ssl.SSLContext = client_context(tmp_path / "ca.pem")
        peer = Peer(trio.SSLStream(peer.stream, context, server_hostname="router.example"))
        await peer.open()
        await peer.close()
    assert traced(caplog, "in") == traced(caplog, "out") == ["header", "header", "open", "close"]


async def test_garbage_is_traced_as_such(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Router(id="A") as router:
        peer = connected(nursery, router, OPEN_LISTENER)
        await peer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await peer.expect_header() == AMQP
        await peer.expect_end()
    assert traced(caplog, "in") == ["malformed"]
    assert traced(caplog, "out") == ["header"]
