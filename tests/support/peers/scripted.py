"""A scripted peer without I/O: it writes frames, legal or not, and reads the frames that come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from amqpmesh.router.amqp.frames import protocol_header
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Flow,
    Open,
    Performative,
    Transfer,
    decode_performative,
    encode_performative,
)
from amqpmesh.router.kernel import FrameReader

if TYPE_CHECKING:
    from collections.abc import Callable

AMQP = protocol_header(0)
TLS = protocol_header(2)
SASL = protocol_header(3)
WINDOW = 2**31 - 1

P = TypeVar("P", bound=Performative)


def frame(body: Performative | bytes, payload: bytes = b"", *, channel: int = 0, type: int = 0) -> bytes:
    """Encode a frame. Args: body: a performative, or any octets."""
    octets = (body if isinstance(body, bytes) else encode_performative(body)) + payload
    return (8 + len(octets)).to_bytes(4, "big") + bytes((2, type)) + channel.to_bytes(2, "big") + octets


def begun(remote_channel: int | None = None, **fields: int) -> Begin:
    """Return a `begin` whose windows never close, unless `fields` says so."""
    standard = {"next_outgoing_id": 0, "incoming_window": WINDOW, "outgoing_window": WINDOW}
    return Begin(remote_channel=remote_channel, **{**standard, **fields})


def attached(
    role: Role, address: str | None = "a", *, handle: int = 0, name: str | None = None, **fields: object
) -> Attach:
    """Return an `attach` of a link that is named after its role."""
    standard: dict[str, object] = {
        "source": Source(address=address),
        "target": Target(address=address),
        "initial_delivery_count": 0 if role is Role.SENDER else None,
    }
    name = name or f"{role.name.lower()} of {address}"
    return Attach(name=name, handle=handle, role=role, **{**standard, **fields})  # type: ignore[arg-type]  # tests' names


def flow(**fields: object) -> Flow:
    """Return a `flow` whose windows never close, of a session without transfers, unless `fields` says so."""
    standard = {"next_incoming_id": 0, "incoming_window": WINDOW, "next_outgoing_id": 0, "outgoing_window": WINDOW}
    return Flow(**{**standard, **fields})  # type: ignore[arg-type]  # the names are the tests'


def transferred(number: int = 0, *, handle: int = 0, **fields: object) -> Transfer:
    """Return a `transfer` that is a whole delivery, whose tag is its id, unless `fields` says so."""
    standard = {"delivery_id": number, "delivery_tag": number.to_bytes(4, "big"), "message_format": 0}
    return Transfer(handle=handle, **{**standard, **fields})  # type: ignore[arg-type]  # the names are the tests'


class Heard(NamedTuple):
    """A frame that arrived."""

    channel: int
    performative: Performative
    payload: bytes


class Script:
    """One end of a byte pipe to the engine under test."""

    def __init__(
        self, give: Callable[[bytes], None], take: Callable[[], bytes], *, max_frame_size: int = 2**20
    ) -> None:
        """Args: give: takes bytes to the other end. take: what the other end has to send, b"" for nothing."""
        self._give = give
        self._take = take
        self._frames = FrameReader(max_frame_size)

    def write(self, *parts: bytes | Performative, channel: int = 0) -> None:
        """Send octets and frames, all at once; frames of performatives go on `channel`."""
        self._give(b"".join(part if isinstance(part, bytes) else frame(part, channel=channel) for part in parts))

    def expect_header(self) -> bytes:
        """Return the next 8 octets."""
        self._frames.feed(self._take())
        header = self._frames.next_header()
        assert header is not None, "no header came"
        return header

    def hear(self) -> list[Heard]:
        """Return the frames since the last call; empty frames are skipped."""
        self._frames.feed(self._take())
        heard = []
        while (found := self._frames.next_frame()) is not None:
            if found.body:
                performative, at = decode_performative(found.body)
                heard.append(Heard(found.channel, performative, found.body[at:]))
        return heard

    def expect(self, kind: type[P]) -> P:
        """Return the one frame that arrived, and assert its kind."""
        heard = self.hear()
        assert [type(each.performative) for each in heard] == [kind], heard
        performative = heard[0].performative
        assert isinstance(performative, kind)
        return performative

    def expect_all(self, *kinds: type[Performative]) -> list[Performative]:
        """Return the frames that arrived, and assert their kinds, in order."""
        heard = self.hear()
        assert [type(each.performative) for each in heard] == list(kinds), heard
        return [each.performative for each in heard]

    def open(self, **fields: object) -> None:
        """Exchange protocol headers and `open` with a server that answers."""
        self.write(AMQP, Open(container_id="peer", **fields))  # type: ignore[arg-type]  # the names are the tests'
        assert self.expect_header() == AMQP
        self.expect(Open)

    def begin(self, *, channel: int = 0, **fields: int) -> Begin:
        """Begin a session, which is answered."""
        self.write(begun(**fields), channel=channel)
        return self.expect(Begin)
