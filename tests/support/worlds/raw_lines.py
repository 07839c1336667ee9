"""Connections between routers and raw peers, frame by frame: each frame may be the last that arrives."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpmesh.router.model.connections import ConnectionRecord
    from tests.support.peers.raw_peer import RawPeer
    from tests.support.worlds.network import Network

#: Octets of a protocol header.
_HEADER: Final = 8


class Kind(Enum):
    """A kind of fault."""

    CUT = "cut"
    ONE_WAY = "one way"
    ROUTER = "router"
    CLIENT = "client"


class Back(Enum):
    """The time and the place at which the peer comes back."""

    AT_ONCE = "at once"
    LATE = "when its time is over"
    ELSEWHERE = "at another router"


@dataclass(frozen=True)
class Fault:
    """A fault at one frame of a story."""

    #: The number of the frame, of all that are carried, from 0.
    at: int
    kind: Kind
    #: Half of the frame arrives; else nothing of it.
    in_the_middle: bool
    back: Back


class Line:
    """A connection of a raw peer to a router."""

    def __init__(self, peer: RawPeer, network: Network) -> None:
        self.peer = peer
        self.network = network
        self.is_up = False
        self.record: ConnectionRecord
        #: Connections that the peer has left, and the router still has.
        self._old: list[ConnectionRecord] = []
        #: Frames of the router that have not been carried.
        self._down: deque[bytes] = deque()
        self._router_spoke = False
        #: What the router, or the peer, writes arrives no more.
        self.is_mute = {True: False, False: False}

    def connect(self, host: str = "127.0.0.1") -> None:
        """Connect the peer anew. Args: host: the peer's."""
        core = self.network.core
        self.record = core.accept(self.network.listener, host, self.network.now, secured=False)
        self.is_up, self._router_spoke = True, False
        self.is_mute = {True: False, False: False}
        self._down.clear()
        self.peer.connect()

    def steal(self) -> None:
        """Connect the peer anew, while its old connection still seems to be there. It is lost at the next cut."""
        if self.is_up:
            self._old.append(self.record)
            self.peer.lost()
        self.connect()

    def cut(self) -> None:
        """Lose the connection, at both ends."""
        self.cut_old_ones()
        if self.is_up:
            self.is_up = False
            self.network.core.receive_eof(self.record, self.network.now)
            self.network.run()
            self.peer.lost()

    def cut_old_ones(self) -> None:
        """Lose those connections that the peer has left."""
        old, self._old = self._old, []
        for record in old:
            self.network.core.receive_eof(record, self.network.now)

    def switch_off(self, network: Network) -> None:
        """Lose the connection, as its router is killed. Args: network: the router that comes in its place."""
        self._old.clear()
        self.network = network
        if self.is_up:
            self.is_up = False
            self.peer.lost()

    @property
    def is_lost(self) -> bool:
        """No connection of the peer is there, at either end."""
        return not (self.is_up or self._old)

    def has_frame(self, *, up: bool) -> bool:
        """Tell whether there is a frame to carry. Args: up: to the router."""
        if not self.is_up:
            return False
        if up:
            return self.peer.has_output
        self._collect()
        return bool(self._down)

    def carry(self, *, up: bool, octets: float = 1.0) -> None:
        """Carry the next frame. Args: octets: the share of it that arrives."""
        core, now = self.network.core, self.network.now
        data = self.peer.take() if up else self._down.popleft()
        data = data[: int(len(data) * octets)]
        if self.is_mute[up] or not data:
            return
        if up:
            while not core.receive(self.record, data, now):
                data = b""
            self.network.run()
        else:
            self.peer.hear(data)

    def _collect(self) -> None:
        core, now = self.network.core, self.network.now
        data = core.data_to_send(self.record, now)
        core.sent(self.record, now)
        if data and not self._router_spoke:
            self._router_spoke = True
            self._down.append(data[:_HEADER])
            data = data[_HEADER:]
        while data:
            size = int.from_bytes(data[:4], "big")
            self._down.append(data[:size])
            data = data[size:]


class Lines:
    """All raw peers of a story. A fault happens at one frame of all that are carried."""

    def __init__(self, *lines: Line) -> None:
        self.lines = lines
        self.carried = 0
        self._muted: list[Line] = []

    def connect(self) -> None:
        """Connect all, the last one first."""
        for line in reversed(self.lines):
            line.connect()

    def run(self, fault: Fault | None = None) -> Line | None:
        """Carry frames until there are none: in turns, one of each line and direction.

        Returns: the line where the fault has happened, which is the first one if there are no more frames; None: it has
        not.
        """
        while True:
            moved = False
            for line in self.lines:
                for up in (True, False):
                    if line.has_frame(up=up):
                        moved = True
                        if fault is not None and self.carried == fault.at:
                            self.carried += 1
                            self._fail(line, fault, up=up)
                            return line
                        self.carried += 1
                        line.carry(up=up)
            if not moved:
                if fault is None or self.carried != fault.at:
                    return None
                self._fail(self.lines[0], fault, up=True)
                return self.lines[0]

    def advance(self, seconds: float) -> None:
        """Let time pass at a router that all are connected to, timer by timer. All that is written arrives at once."""
        network = self.lines[0].network
        end = network.now + seconds
        self.run()
        while (due := network.core.next_timer()) is not None and due < end:
            network.advance(max(0.0, due - network.now))
            self.run()
        network.advance(end - network.now)
        self.run()

    def _fail(self, line: Line, fault: Fault, *, up: bool) -> None:
        if line.has_frame(up=up):
            line.carry(up=up, octets=0.5 if fault.in_the_middle else 0.0)
        if fault.kind is Kind.ONE_WAY:
            line.is_mute[up] = True
            self.run()
        if fault.kind is not Kind.ROUTER:
            line.cut()
