"""Sockets with epoll and without: bounded turns, partial writes, TLS, and all kinds of end."""

import os
import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import wait_all_tasks_blocked

from amqpmesh.router.amqp.frames import EMPTY_FRAME
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Close, Detach, Flow, Open, Transfer
from amqpmesh.router.config.file import ListenerConfig, RouterConfig, TlsConfig
from amqpmesh.router.core import Core
from amqpmesh.router.io.streams import READ_SIZE
from amqpmesh.router.io.tls import client_context
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime import transport
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted import transferred
from tests.support.peers.scripted_stream import AMQP, TLS, Peer, attached, begun, connect, credit, frame
from tests.support.tasks.stopwatches import measure
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

LOOPBACK = "amqp://127.0.0.1:0"
NAME = "router.example"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Note the number of octets that each connection passes to the core, in order."""
    found: list[tuple[str, int]] = []
    receive = Core.receive

    def noted(core: Core, record: ConnectionRecord, data: bytes, now: float) -> bool:
        found.append((record.peer.container_id, len(data)))
        return receive(core, record, data, now)

    monkeypatch.setattr(Core, "receive", noted)
    return found


async def opened(router: Router, name: str) -> Peer:
    peer = await connect(router)
    await peer.write(AMQP, Open(container_id=name))
    assert await peer.expect_header() == AMQP
    await peer.expect(Open)
    return peer


def written_at_once(peer: Peer, data: bytes) -> int:
    """Write as much as the system takes, without giving the router a turn. Returns: octets."""
    assert isinstance(peer.stream, trio.SocketStream)
    with socket.socket(fileno=os.dup(peer.stream.socket.fileno())) as raw:
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
        written = 0
        with suppress(BlockingIOError):
            while written < len(data):
                written += raw.send(data[written:])
        return written


async def test_a_peer_that_floods_has_its_turn_and_no_more(told: list[tuple[str, int]]) -> None:
    measure(lambda: 0.0)
    flood = EMPTY_FRAME * 2**17
    async with Router(listeners=[LOOPBACK]) as router:
        flooding, quiet = await opened(router, "flooding"), await opened(router, "quiet")
        told.clear()
        written = written_at_once(flooding, flood)
        assert written > READ_SIZE
        assert written_at_once(quiet, frame(Close())) == len(frame(Close()))
        await quiet.expect(Close)
        before = told[: [name for name, _ in told].index("quiet")]
        assert sum(octets for _, octets in before) <= READ_SIZE
        await flooding.write(flood[written:], Close())
        await flooding.expect(Close)
    assert router.statistics().is_empty


@pytest.mark.parametrize(("takes", "least", "most"), [(0.0, 2**16, 2**20), (0.004, 0, 2**13)], ids=["fast", "slow"])
async def test_the_faster_the_work_the_more_is_told_at_once(
    takes: float, least: int, most: int, told: list[tuple[str, int]]
) -> None:
    looked = 0

    def stopwatch() -> float:
        nonlocal looked
        looked += 1
        return looked * takes

    measure(stopwatch)
    async with Router(listeners=[LOOPBACK]) as router:
        peer = await opened(router, "peer")
        told.clear()
        await peer.write(EMPTY_FRAME * 2**18, Close())
        await peer.expect(Close)
        assert least <= max(octets for _, octets in told) <= most
    assert router.statistics().is_empty


async def test_a_peer_that_ends_its_direction_behind_its_close_is_answered() -> None:
    async with Router(listeners=[LOOPBACK]) as router:
        peer = await connect(router)
        await peer.write(AMQP, Open(container_id="brief"), Close())
        assert isinstance(peer.stream, trio.SocketStream)
        await peer.stream.send_eof()
        assert await peer.expect_header() == AMQP
        await peer.expect(Open)
        await peer.expect(Close)
        await peer.expect_end()
        await peer.stream.aclose()
    assert router.statistics().is_empty


async def test_a_peer_that_reads_no_answer_and_is_reset_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BACKLOG_LIMIT", 100_000)
    question = frame(attached(Role.RECEIVER, "q" * 200)) + frame(Detach(handle=0, closed=True))
    async with Router(listeners=[LOOPBACK]) as router:
        peer = await connect(router)
        assert isinstance(peer.stream, trio.SocketStream)
        peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await peer.open()
        await peer.write(begun())
        with trio.move_on_after(0.5) as patience:  # seconds in which the router reads all that it will read
            while True:
                await peer.write(question * 100)
        assert patience.cancelled_caught, "it is read no further"
        peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await peer.stream.aclose()
        with trio.fail_after(60):
            while router.statistics().router.connections:
                await trio.lowlevel.checkpoint()
    assert router.statistics().is_empty


async def test_a_router_that_has_ended_has_left_no_descriptor_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with Router(listeners=[LOOPBACK]) as router:
        peers = [await connect(router) for _ in range(5)]
        for peer in peers:
            await peer.open()
        for peer in peers[:2]:
            await peer.close()
        await peers[2].stream.aclose()
    for peer in peers[3:]:
        await peer.expect(Close)
        await peer.stream.aclose()
    assert len(os.listdir("/proc/self/fd")) == before


# Within TLS.


@dataclass(frozen=True)
class Authority:
    """The router's TLS settings, and the authority that its clients trust."""

    tls: TlsConfig
    trust: Path

    def client(self) -> ssl.SSLContext:
        return client_context(self.trust)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    folder = tmp_path_factory.mktemp("authority")
    issuer = trustme.CA()
    issuer.cert_pem.write_to_path(folder / "ca.pem")
    issued = issuer.issue_cert(NAME)
    (folder / "router.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(folder / "router.key")
    return Authority(TlsConfig(certificate=folder / "router.pem", key=folder / "router.key"), folder / "ca.pem")


class InTls:
    """A client in TLS that decides which octets go into one write."""

    def __init__(self, peer: Peer, authority: Authority) -> None:
        assert isinstance(peer.stream, trio.SocketStream)
        self._stream = peer.stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._incoming.write(peer.rest())
        self._tls = authority.client().wrap_bio(self._incoming, self._outgoing, server_hostname=NAME)

    async def begin(self, *together: bytes) -> None:
        """Do the handshake. Args: together: octets to write together with its last flight."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._send()
                self._incoming.write(await self._stream.receive_some())
        await self.write(*together)

    async def write(self, *together: bytes, end: bool = False) -> None:
        """Write octets at once. Args: end: end TLS after them; the stream stays open."""
        for each in together:
            self._tls.write(each)
        if end:
            with suppress(ssl.SSLError):  # a clean end waits for the peer's
                self._tls.unwrap()
        await self._send()

    async def hear(self, octets: int) -> bytes:
        """Read a number of octets, or all octets until the peer ends TLS."""
        heard = b""
        while len(heard) < octets:
            try:
                part = self._tls.read(octets - len(heard))
            except ssl.SSLWantReadError:
                self._incoming.write(await self._stream.receive_some())
                continue
            except ssl.SSLZeroReturnError:
                break
            if not part:
                break
            heard += part
        return heard

    async def rest(self) -> bytes:
        """Read the stream to its end."""
        heard = b""
        while data := await self._stream.receive_some():
            heard += data
        return heard

    async def _send(self) -> None:
        await self._stream.send_all(self._outgoing.read())


@pytest.mark.parametrize("asked", [False, True], ids=["first", "in-the-stream"])
async def test_octets_in_one_piece_with_the_handshake_are_read(asked: bool, authority: Authority) -> None:
    listener = ListenerConfig(url=f"{'amqp' if asked else 'amqps'}://127.0.0.1:0", tls=authority.tls)
    async with Router(listeners=[listener]) as router:
        peer = await connect(router)
        if asked:
            await peer.write(TLS)
            assert await peer.expect_header() == TLS
        client = InTls(peer, authority)
        await client.begin(AMQP + frame(Open(container_id="ada")))
        assert await client.hear(8) == AMQP
        await peer.stream.aclose()
    assert router.statistics().is_empty


async def test_an_end_of_tls_in_one_piece_with_what_came_before_it_is_noticed(authority: Authority) -> None:
    async with Router(listeners=[ListenerConfig(url="amqps://127.0.0.1:0", tls=authority.tls)]) as router:
        peer = await connect(router)
        client = InTls(peer, authority)
        await client.begin(AMQP + frame(Open(container_id="ada")))
        assert await client.hear(8) == AMQP
        await client.write(EMPTY_FRAME, end=True)
        with trio.fail_after(60):
            await client.rest()  # the router ends the stream although the client has not
        await peer.stream.aclose()
    assert router.statistics().is_empty


async def test_a_stream_that_ends_without_the_end_of_tls_has_ended(authority: Authority) -> None:
    async with Router(listeners=[ListenerConfig(url="amqps://127.0.0.1:0", tls=authority.tls)]) as router:
        peer = await connect(router)
        client = InTls(peer, authority)
        await client.begin(AMQP + frame(Open(container_id="ada")) + frame(Close()))
        assert isinstance(peer.stream, trio.SocketStream)
        await peer.stream.send_eof()
        answer = await client.hear(10_000)
        assert answer.startswith(AMQP)
        assert b"\x00\x53\x18" in answer, "the answer to its close"
        await peer.stream.aclose()
    assert router.statistics().is_empty


async def test_what_is_no_tls_any_more_ends_the_connection(authority: Authority) -> None:
    async with Router(listeners=[ListenerConfig(url="amqps://127.0.0.1:0", tls=authority.tls)]) as router:
        peer = await connect(router)
        client = InTls(peer, authority)
        await client.begin(AMQP + frame(Open(container_id="ada")))
        assert await client.hear(8) == AMQP
        await peer.write(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record that no key has made
        with trio.fail_after(60):
            await peer.stream.receive_some()
            await client.rest()
        await peer.stream.aclose()
    assert router.statistics().is_empty


async def test_a_peer_in_tls_that_does_not_read_misses_nothing(authority: Authority) -> None:
    number, body = 200, os.urandom(50_000)  # 10 MB: far more than sockets take
    listener = ListenerConfig(url="amqps://127.0.0.1:0", tls=authority.tls, max_frame_size=65_536)

    async def secured(router: Router) -> Peer:
        peer = await connect(router)
        return Peer(trio.SSLStream(peer.stream, authority.client(), server_hostname=NAME, https_compatible=True))

    async def flood(sender: Peer) -> None:
        for each in range(number):
            await sender.send(each, body, settled=True)

    async with Router(listeners=[listener]) as router, trio.open_nursery() as nursery:
        stalled, flooding = await secured(router), await secured(router)
        await stalled.attach(Role.RECEIVER, "slow")
        await stalled.write(credit(1000))
        await flooding.attach(Role.SENDER, "slow")
        nursery.start_soon(flood, flooding)
        with trio.fail_after(60):
            while router.statistics().router.buffered == 0:  # until the sockets are full
                await trio.lowlevel.checkpoint()
            for each in range(number):
                assert (await stalled.expect(Transfer)).delivery_id == each
                assert stalled.payload.endswith(body)
        for peer in (stalled, flooding):
            await peer.close()
    assert router.statistics().is_empty


async def claiming(router: Router, credit_of: int) -> Peer:
    """Open a connection of the container `same` that attaches the link `x`."""
    peer = await opened(router, "same")
    await peer.write(begun(), attached(Role.RECEIVER, "q", name="x"), credit(credit_of))
    await peer.expect(Begin)
    return peer


async def test_a_peer_whose_system_acknowledges_has_its_link_still() -> None:
    async with Router(RouterConfig(theft_wait=20.0, listeners=(ListenerConfig(url=LOOPBACK),))) as router:
        first = await claiming(router, 1)
        await first.expect(Attach)
        second = await claiming(router, 1)
        await second.expect(Attach)
        assert router.statistics().router.stolen == 0
        for peer in (first, second):
            await peer.write(Close())
            await peer.expect(Close)
            await peer.stream.aclose()
    assert router.statistics().is_empty


async def test_a_peer_whose_system_takes_nothing_more_loses_it() -> None:
    async with Router(RouterConfig(theft_wait=0.05, listeners=(ListenerConfig(url=LOOPBACK),))) as router:
        silent = await claiming(router, 1000)
        await silent.expect(Attach)
        sender = await opened(router, "other")
        await sender.write(begun(), attached(Role.SENDER, "q"))
        await sender.expect(Begin)
        await sender.expect(Attach)
        await sender.expect(Flow)
        (record,) = (each for each in router._driver.core.context.connections if each.peer.container_id == "same")
        number = 0
        while not record.is_congested():  # it reads nothing, and its buffers are full
            await sender.write(frame(transferred(number, settled=True), bytes(30_000)))
            number += 1
            await wait_all_tasks_blocked()
        second = await claiming(router, 1)
        await second.expect(Attach)
        assert router.statistics().router.stolen == 1
        for peer in (silent, sender, second):
            await peer.stream.aclose()
        with trio.fail_after(60):
            while router.statistics().connections:
                await trio.lowlevel.checkpoint()
    assert router.statistics().is_empty
