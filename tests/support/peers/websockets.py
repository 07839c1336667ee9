"""The client's end of a WebSocket: requests and frames that a test writes, and a stream for a scripted peer."""

from __future__ import annotations

import trio

from amqpmesh.policies.redirect import PeerAddress
from amqpmesh.router.io.websocket_client import open_websocket
from tests.support.peers.scripted_stream import Peer

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPTED = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # of that key (RFC 6455, 1.3)

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MASK = b"\x37\xfa\x21\x3d"


def request(target: str = "/", *, method: str = "GET", **changed: str | None) -> bytes:
    """Return a request for a WebSocket. Args: changed: header fields, in place of the usual ones; None: without."""
    fields: dict[str, str | None] = {
        "host": "127.0.0.1",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": KEY,
        "sec-websocket-protocol": "amqp",
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }
    lines = [
        f"{method} {target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in fields.items() if value is not None),
    ]
    return "\r\n".join((*lines, "", "")).encode()


def ws_frame(kind: int, payload: bytes = b"", *, masked: bool = True, last: bool = True, reserved: int = 0) -> bytes:
    """Return a frame of a WebSocket (RFC 6455, 5.2). Args: last: of its message. reserved: the three reserved bits."""
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2) if size < 2**16 else b"\x7f" + size.to_bytes(8)
    first = bytes([(last << 7) | (reserved << 4) | kind])
    if not masked:
        return first + length + payload
    hidden = bytes(octet ^ MASK[at % 4] for at, octet in enumerate(payload))
    return first + bytes([length[0] | 0x80]) + length[1:] + MASK + hidden


async def answer_of(stream: trio.abc.ReceiveStream) -> tuple[int, dict[str, str]]:
    """Read the head of an answer, octet by octet. Returns: its status and header fields, those in lower case."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        octet = await stream.receive_some(1)
        assert octet, f"the stream ended behind {head!r}"
        head += octet
    first, *fields = head.decode().split("\r\n")[:-2]
    return int(first.split()[1]), {
        name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)
    }


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Read up to the end of a stream."""
    told = b""
    while data := await stream.receive_some(2**16):
        told += data
    return told


async def over_websocket(peer: Peer, path: str = "") -> Peer:
    """Return a peer that speaks AMQP through a WebSocket over the stream of another one."""
    place = PeerAddress.named("127.0.0.1", 80, secure=False, websocket=path)
    return Peer(await open_websocket(peer.stream, place))
