"""The end of a stream: our direction first, then the peer's, then the socket (§2.2, §5.1)."""

import errno
import fcntl
import select
import socket
import ssl
import struct

import pytest
import trio
import trustme
from trio.testing import MockClock, memory_stream_pair

from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.core import Core
from amqpmesh.router.io.dialing import open_tcp
from amqpmesh.router.io.handshake import secure
from amqpmesh.router.io.secured_stream import LINGER, close_gracefully
from amqpmesh.router.io.streams import RECEIVE_BUFFER, UNACKNOWLEDGED, UNSENT, UNSENT_TO_SENDER, TcpStream

#: Linux: the octets that the system accepted and has not sent once (`linux/sockios.h`).
SIOCOUTQNSD = 0x894B


class Recorded(trio.abc.HalfCloseableStream):
    """A stream that notes what is done with it."""

    def __init__(self, stream: trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]) -> None:
        self._stream = stream
        self.done: list[str] = []

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        if not data:
            self.done.append("read to the end")
        return data

    async def send_eof(self) -> None:
        self.done.append("ended")
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_a_stream_is_ended_outwards_then_read_to_its_end() -> None:
    ours, theirs = memory_stream_pair()
    recorded = Recorded(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(close_gracefully, recorded)
        assert await theirs.receive_some() == b""
        await theirs.send_all(b"still on its way")
        await theirs.send_eof()
    assert recorded.done == ["ended", "read to the end"]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


async def test_below_tls_it_is_so_too(authority: trustme.CA) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("router.example").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    ours, theirs = memory_stream_pair()
    recorded = Recorded(ours)
    secured = trio.SSLStream(recorded, server, server_side=True, https_compatible=True)
    peer = trio.SSLStream(theirs, client, server_hostname="router.example", https_compatible=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(secured.do_handshake)
        await peer.do_handshake()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(close_gracefully, secured)
        rest, _ = await peer.unwrap()
        assert recorded.done == []
        assert await rest.receive_some() == b""
        await theirs.send_eof()
    assert recorded.done == ["ended", "read to the end"]


async def test_after_a_handshake_that_failed_it_is_so_too_for_a_second(autojump_clock: MockClock) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours, theirs = memory_stream_pair()
    recorded = Recorded(ours)
    await theirs.send_all(b"GET / HTTP/1.1\r\n\r\n")
    began = trio.current_time()
    assert await secure(recorded, context, "peer", Core(RouterConfig(), 0.0).logins) is None
    assert recorded.done == ["ended"]
    assert trio.current_time() - began == pytest.approx(LINGER)


async def test_a_clients_socket_has_no_delay_and_is_kept_alive() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    stream = await open_tcp(Endpoint("amqp", "127.0.0.1", port))
    assert isinstance(stream, trio.SocketStream)
    assert stream.getsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE)
    assert stream.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY)
    await stream.aclose()
    for listener in listeners:
        await listener.aclose()


async def test_it_is_known_how_far_a_peer_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = TcpStream(socket.create_connection(listener.getsockname()))
        far = TcpStream(listener.accept()[0])
    within, other = (TcpStream(each) for each in socket.socketpair())
    async with near, far, within, other:
        trip = near.round_trip()
        assert trip is not None
        assert 0 < trip < 1
        assert within.round_trip() == 0.0, "workers of one router"
    assert near.round_trip() is None, "it is closed"


def connected_pair() -> tuple[TcpStream, socket.socket]:
    """Return the two ends of a connection; reading at the second one waits for a minute at most."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = TcpStream(socket.create_connection(listener.getsockname()))
        far, _ = listener.accept()
    far.settimeout(60)
    return near, far


def is_over(far: socket.socket) -> bool:
    """Return True once the connection is reset, False after a minute without that; the peer's end alone is no such."""
    asking = select.poll()
    asking.register(far, 0)
    return bool(asking.poll(60_000))


async def acknowledged(stream: TcpStream) -> None:
    """Wait until the peer's system has all octets."""
    with trio.fail_after(60):
        while not stream.is_acknowledged:
            await trio.sleep(0.001)


@pytest.mark.skipif(UNACKNOWLEDGED is None, reason="this system does not tell what is acknowledged")
async def test_a_peer_that_does_not_read_is_left_by_a_reset_and_still_gets_all_octets() -> None:
    near, far = connected_pair()
    with far:
        assert near.send_nowait(b"the reason") == 10
        await acknowledged(near)
        near.abandon(0.0)
        assert is_over(far)
        with pytest.raises(OSError, match=r".") as failed:  # at the end of the stream it would succeed
            far.send(b"hi")
        assert failed.value.errno in {errno.ECONNRESET, errno.EPIPE}
    near, far = connected_pair()
    with far:
        near.send_nowait(b"the reason")
        await acknowledged(near)
        near.abandon(0.0)
        assert is_over(far)
        assert far.recv(100) == b"the reason", "Linux keeps what was not read"


async def test_it_gets_the_end_of_the_stream_where_octets_were_just_sent() -> None:
    near, far = connected_pair()
    with far:
        near.send_nowait(b"the reason")
        near.abandon(3600.0)
        assert far.recv(100) == b"the reason"
        assert far.recv(100) == b""


async def test_it_gets_the_end_of_the_stream_behind_octets_that_are_still_on_their_way() -> None:
    near, far = connected_pair()
    with far:
        written = 0
        while sent := near.send_nowait(bytes(2**20)):  # until both systems are full
            written += sent
        near.abandon(0.0)
        came = 0
        while data := far.recv(2**20):
            came += len(data)
        assert came == written


async def test_little_waits_in_the_system_for_a_peer_that_sends_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        system = socket.create_connection(listener.getsockname())
        near = TcpStream(system)
        far = TcpStream(listener.accept()[0])
    within, other = (TcpStream(each) for each in socket.socketpair())
    piece = bytes(1 << 16)
    async with near, far, within, other:
        within.limit_unsent(UNSENT_TO_SENDER)  # the system has no such limit between workers
        waiting = []
        for _ in range(2):
            while near.send_nowait(piece):
                pass
            waiting.append(unsent(system))
            while far.receive_nowait(1 << 20):
                pass
            near.limit_unsent(UNSENT_TO_SENDER)
        assert waiting[1] <= UNSENT_TO_SENDER + len(piece)
        assert waiting[0] > 2 * waiting[1], "without a limit the system takes what its buffer holds"


def unsent(connected: socket.socket) -> int:
    """Return how many octets wait in the system that it has not sent once, as its window is closed."""
    (octets,) = struct.unpack("i", fcntl.ioctl(connected, SIOCOUTQNSD, bytes(4)))
    return int(octets)


async def test_between_neighbours_little_waits_where_nothing_can_pass() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = TcpStream(socket.create_connection(listener.getsockname()))
        far = TcpStream(listener.accept()[0])
    async with near, far:
        for each in (near, far):
            each.limit_buffers()
        written = 0
        piece = bytes(1 << 16)
        with trio.move_on_after(0.5) as patience:  # the system passes on what it has taken, and takes more
            while True:
                written += near.send_nowait(piece)
                await near.wait_send_all_might_not_block()
        assert patience.cancelled_caught
        # The system counts double for the receiver, and an unsent piece is taken whole.
        assert written <= 2 * RECEIVE_BUFFER + 2 * UNSENT + 2 * len(piece)
