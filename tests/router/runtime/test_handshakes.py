"""TLS handshakes that the poller does without a task."""

import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trustme

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.config.file import ListenerConfig, TlsConfig
from amqpmesh.router.io.streams import TcpStream
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.runtime import admission, handshakes, poller
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted_stream import Peer, connect

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

NAME = "router.example"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def listener(authority: trustme.CA, tmp_path: Path) -> ListenerConfig:
    """Write the files of a listener that demands certificates."""
    trust, own = tmp_path / "trust.pem", tmp_path / "own.pem"
    authority.cert_pem.write_to_path(trust)
    authority.issue_cert(NAME).private_key_and_cert_chain_pem.write_to_path(own)
    tls = TlsConfig(certificate=own, key=own, trust=trust, client="required")
    return ListenerConfig(url="amqps://127.0.0.1:0", tls=tls)


@pytest.fixture
def known(authority: trustme.CA) -> ssl.SSLContext:
    """Return the context of a client with a certificate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert("ada@example.org").configure_cert(context)
    return context


@pytest.fixture
def unknown(authority: trustme.CA) -> ssl.SSLContext:
    """Return the context of a client without one."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@asynccontextmanager
async def secured(router: Router, context: ssl.SSLContext) -> AsyncIterator[Peer]:
    stream = trio.SSLStream((await connect(router)).stream, context, server_hostname=NAME)
    async with stream.transport_stream:
        yield Peer(stream)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.001)


async def test_a_connection_inside_tls_has_no_task(listener: ListenerConfig, known: ssl.SSLContext) -> None:
    async with Router(listeners=[listener]) as router:
        async with secured(router, known) as first:
            await first.open()
            tasks = trio.lowlevel.current_statistics().tasks_living
            async with secured(router, known) as second, secured(router, known) as third:
                for each in (second, third):
                    await each.attach(Role.RECEIVER, "q")
                assert trio.lowlevel.current_statistics().tasks_living == tasks
                assert {each.tls for each in router.statistics().connections} == {"TLSv1.3"}
                for each in (first, second, third):
                    await each.close()  # the router ends TLS, too
        await until(lambda: router.listeners[0].connections == 0)
    assert router.statistics().is_empty


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_without_a_certificate_hears_the_alert(
    listener: ListenerConfig, unknown: ssl.SSLContext, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    unknown.maximum_version = version
    async with Router(listeners=[listener]) as router:
        async with secured(router, unknown) as peer:
            with pytest.raises(trio.BrokenResourceError) as broken:
                await peer.open()
            assert "ALERT" in str(broken.value.__cause__).upper()
        await until(lambda: router.listeners[0].connections == 0)
    [failed] = [each for each in caplog.records if event_of(each) == "TLS handshake failed"]
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in str(fields_of(failed)["reason"])
    assert router.statistics().is_empty


async def test_a_client_that_leaves_amid_its_handshake_is_forgotten(
    listener: ListenerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async with Router(listeners=[listener]) as router:
        for said in (b"", b"\x16\x03\x01", b"AMQP\x00\x01\x00\x00"):
            peer = await connect(router)
            await until(lambda: router.listeners[0].connections == 1)
            if said:
                await peer.write(said)
            await peer.stream.aclose()
            await until(lambda: router.listeners[0].connections == 0)
    assert [event_of(each) for each in caplog.records].count("TLS handshake failed") == 3
    assert router.statistics().is_empty


async def test_a_silent_client_is_cut_off_in_time(
    listener: ListenerConfig, known: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "HANDSHAKE_TIME_OUT", 0.2)
    async with Router(listeners=[listener]) as router:
        silent = [await connect(router) for _ in range(3)]
        async with secured(router, known) as peer:
            await peer.open()
            for each in silent:
                assert not await each.stream.receive_some()
                await each.stream.aclose()
            await until(lambda: router.listeners[0].connections == 1)
            await peer.close()
    failed = [fields_of(each) for each in caplog.records if event_of(each) == "TLS handshake failed"]
    assert [each["reason"] for each in failed] == ["took longer than 0.2 s"] * 3
    assert router.statistics().is_empty


async def test_many_silent_clients_are_cut_off_in_turn(
    listener: ListenerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HANDSHAKE_TIME_OUT", 0.5)
    monkeypatch.setattr(handshakes, "TURNS", 2)
    turns = 0
    failed: Counter[int] = Counter()
    fail, fail_overdue = handshakes.Handshake.fail, handshakes.Handshakes._fail_overdue

    def counted(handshake: handshakes.Handshake, reason: str) -> None:
        failed[turns] += 1
        fail(handshake, reason)

    def turn(every: handshakes.Handshakes) -> None:
        nonlocal turns
        turns += 1
        fail_overdue(every)

    monkeypatch.setattr(handshakes.Handshake, "fail", counted)
    monkeypatch.setattr(handshakes.Handshakes, "_fail_overdue", turn)
    async with Router(listeners=[listener]) as router:
        silent = [await connect(router) for _ in range(20)]
        await until(lambda: failed.total() == len(silent))
        for each in silent:
            await each.stream.aclose()
    assert max(failed.values()) == 2


async def test_a_router_that_ends_drops_its_handshakes(listener: ListenerConfig) -> None:
    async with Router(listeners=[listener]) as router:
        silent = [await connect(router) for _ in range(3)]
        await until(lambda: router.listeners[0].connections == 3)
    for each in silent:
        with trio.fail_after(60):
            assert not await each.stream.receive_some()
    assert router.listeners[0].connections == 0
    assert router.statistics().is_empty


async def test_a_system_that_takes_few_octets_delays_a_handshake_only(
    listener: ListenerConfig, known: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = TcpStream.send_nowait
    monkeypatch.setattr(TcpStream, "send_nowait", lambda stream, data: send(stream, memoryview(data)[:100]))
    async with Router(listeners=[listener]) as router, secured(router, known) as peer:
        await peer.attach(Role.RECEIVER, "q")
        await peer.close()


async def test_a_crowd_is_secured_in_turn(listener: ListenerConfig, known: ssl.SSLContext) -> None:
    async with Router(listeners=[listener]) as router, trio.open_nursery() as crowd:

        async def come_and_go() -> None:
            async with secured(router, known) as peer:
                await peer.attach(Role.RECEIVER, "q")
                await peer.close()

        for _ in range(50):
            crowd.start_soon(come_and_go)
    assert router.statistics().is_empty
