"""The same octets given to a router twice: on the fast path, and with every frame decided.

Peers write what a test says, blindly; what they get back is noted in a form that does not depend on when dispositions
were joined and flows sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Any, Final
from unittest.mock import patch

from amqpmesh.router import handlers
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.events import Event, TransferReceived
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
    decode_performative,
)
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.core import Core
from amqpmesh.router.delivery import arrival
from amqpmesh.router.kernel import DispositionRun, FrameReader, TransferFrame, write_disposition, write_transfer
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.model.links import IncomingLink
from tests.support.peers.scripted import AMQP, WINDOW, begun, flow, frame

M: Final = 2**32


@contextmanager
def relaying(*, alone: bool) -> Iterator[Counter[type[Event]]]:
    """Count the events that routers handle, but for what they tell each other of the mesh.

    Args: alone: the kernel relays what it can; else nothing is left to it.
    """
    counts: Counter[type[Event]] = Counter()

    def counted(handle: Callable[..., None]) -> Callable[..., None]:
        def counting(rooms: handlers.Handlers, record: ConnectionRecord, event: Event) -> None:
            if not isinstance(event, TransferReceived) or isinstance(event.link.context, IncomingLink):
                counts[type(event)] += 1
            handle(rooms, record, event)

        return counting

    with patch.dict(handlers.HANDLERS, {kind: counted(handle) for kind, handle in handlers.HANDLERS.items()}):
        if alone:
            yield counts
            return
        with (
            patch.object(arrival, "open_input", lambda _context, _incoming: None),
            patch.object(arrival, "open_route", lambda *_, **_options: None),
        ):
            yield counts


def transfer(
    number: int,
    tag: bytes | None,
    payload: bytes,
    *,
    handle: int = 0,
    settled: int = -1,
    more: bool = False,
    second: int = -1,
    message_format: int = 0,
    aborted: bool = False,
    style: str = "compact",
) -> bytes:
    """Encode a `transfer` frame. Args: second: rcv-settle-mode; -1: unset. style: compact, full, or wide."""
    out = bytearray()
    said = TransferFrame(handle, number, tag, message_format, settled, more, second, aborted=aborted)
    write_transfer(out, 0, said, payload, 2**20, style == "full")
    return widened(bytes(out)) if style == "wide" else bytes(out)


def disposition(
    first: int, last: int, state: bytes | None, *, receiver: bool = True, settled: bool = True, style: str = "compact"
) -> bytes:
    """Encode a `disposition` frame. Args: style: compact, or wide."""
    run = DispositionRun(receiver, first, settled, state)
    run.last = last
    out = bytearray()
    write_disposition(out, 0, run)
    return widened(bytes(out)) if style == "wide" else bytes(out)


def widened(octets: bytes) -> bytes:
    """Return a frame whose list8 became a list32 (§1.6.22, §1.6.23)."""
    size, count = octets[12], octets[13]
    body = octets[8:11] + b"\xd0" + (size + 3).to_bytes(4, "big") + count.to_bytes(4, "big") + octets[14:]
    return (len(body) + 8).to_bytes(4, "big") + octets[4:8] + body


@dataclass
class Way:
    """A link as its peer knows it."""

    handle: int
    role: Role
    #: Deliveries that came, or were sent.
    count: int = 0
    #: Where the router's credit ends, in deliveries from the beginning.
    limit: int = 0
    attached: bool = True


@dataclass
class Noted:
    """The frames that arrived at a peer in one step."""

    transfers: list[object] = field(default_factory=list)
    frames: list[object] = field(default_factory=list)
    #: By (receiver, delivery-id).
    dispositions: dict[tuple[bool, int], list[object]] = field(default_factory=dict)


class Wired:
    """A peer on a connection of its own, with one session on channel 0, whose links the test numbers."""

    def __init__(self, core: Core, now: Callable[[], float], listener: ListenerConfig, *, first_id: int = 0) -> None:
        """Args: first_id: where the router's transfer-ids and delivery-ids of the session begin, and the peer's."""
        self.core = core
        self._now = now
        self.record = core.accept(listener, "127.0.0.1", now(), secured=False)
        engine = self.record.engine
        engine.settings = replace(engine.settings, initial_delivery_id=first_id, initial_outgoing_id=first_id)
        self.first_id = first_id
        self._reader = FrameReader(2**20)
        self._in_frames = False
        #: Whatever was relayed is told at once to those who divide credit.
        self.at_once = False
        #: It has stopped reading.
        self.stopped = False
        self.lost = False
        self.ended = False
        #: Its next delivery-id and transfer-id.
        self.next_id = first_id
        self.sent_frames = 0
        #: Its links, by its handles; those by name, and by the router's handles.
        self.ways: dict[int, Way] = {}
        self._named: dict[str, Way] = {}
        self._theirs: dict[int, Way] = {}
        #: Transfer frames that came, from the beginning; and where the router's window ends.
        self.came = 0
        self.window_limit = 0
        self.noted = Noted()

    def open(self, *, max_frame_size: int = 4096, window: int = WINDOW) -> None:
        """Exchange `open` and `begin`."""
        self.write(
            AMQP
            + frame(Open(container_id=f"peer-{self.record.number}", max_frame_size=max_frame_size))
            + frame(begun(next_outgoing_id=self.first_id, incoming_window=window))
        )

    def attach(self, attach: Attach) -> None:
        """Attach a link."""
        self.ways[attach.handle] = self._named[attach.name] = Way(attach.handle, attach.role)
        self.write(frame(attach))

    def credit(self, handle: int, credit: int, *, window: int = WINDOW, drain: bool = False, of: int = 0) -> None:
        """Send a `flow` for a link that it receives on. Args: of: this many more than have arrived were counted."""
        way = self.ways[handle]
        self.write(
            frame(
                flow(
                    next_incoming_id=(self.first_id + self.came) % M,
                    incoming_window=window,
                    next_outgoing_id=(self.first_id + self.sent_frames) % M,
                    handle=handle,
                    delivery_count=(way.count + of) % M,
                    link_credit=credit,
                    drain=drain,
                )
            )
        )

    def write(self, octets: bytes, cuts: list[int] | None = None) -> None:
        """Give the router octets, in pieces."""
        if self.lost:
            return
        edges = sorted({0, len(octets), *(cut % (len(octets) + 1) for cut in cuts or ())})
        for start, end in pairwise(edges):
            piece = octets[start:end]
            while not self.core.receive(self.record, piece, self._now()):
                piece = b""
        if self.at_once:
            self.core.handle_timer(self._now())

    def lose(self) -> None:
        """Cut the connection."""
        if not self.lost:
            self.lost = True
            self.core.receive_eof(self.record, self._now())

    def read(self) -> bool:
        """Take what the router has for it. Returns: whether there was anything."""
        if self.lost or self.stopped:
            return False
        data = self.core.data_to_send(self.record, self._now())
        if not data:
            if self.record.engine.finished:
                self.lose()
            return False
        self.core.sent(self.record, self._now())
        self._reader.feed(data)
        if not self._in_frames:
            assert self._reader.next_header() == AMQP
            self._in_frames = True
        while (found := self._reader.next_frame()) is not None:
            if found.body:
                performative, at = decode_performative(found.body)
                self._note(performative, found.body[at:])
        return True

    def _note(self, performative: Performative, payload: bytes) -> None:
        noted = self.noted
        if isinstance(performative, Transfer):
            self.came += 1
            if performative.delivery_id is not None:
                self._theirs[performative.handle].count += 1
            noted.transfers.append((performative, payload))
        elif isinstance(performative, Disposition):
            last = performative.first if performative.last is None else performative.last
            state = None if performative.state is None else encode_composite(performative.state)
            for step in range((last - performative.first) % M + 1):
                key = (performative.role is Role.RECEIVER, (performative.first + step) % M)
                noted.dispositions.setdefault(key, []).append((performative.settled, state))
        elif isinstance(performative, Flow):
            seen = performative.next_incoming_id if performative.next_incoming_id is not None else self.first_id
            self.window_limit = (seen - self.first_id + performative.incoming_window) % M
            way = self._theirs[performative.handle] if performative.handle is not None else None
            if way is not None and way.role is Role.SENDER:
                way.limit = ((performative.delivery_count or 0) + (performative.link_credit or 0)) % M
            elif way is not None and performative.drain:
                way.count = performative.delivery_count or 0
        else:
            if isinstance(performative, Begin):
                self.window_limit = performative.incoming_window
            elif isinstance(performative, End | Close):
                self.ended = True
            elif isinstance(performative, Detach):
                way = self._theirs.pop(performative.handle)
                if self.ways.get(way.handle) is way:
                    way.attached = False
            elif isinstance(performative, Attach):
                self._theirs[performative.handle] = self._named[performative.name]
            noted.frames.append(performative)

    def take(self) -> Noted:
        """Return what arrived since the last call."""
        noted, self.noted = self.noted, Noted()
        return noted


#: What statistics say that depends on how dispositions are joined and when flows go.
_OCTETS: Final = frozenset({"octets_out", "octets_in", "unwritten"})
#: And on which way the deliveries were handled, which is what the two differ in.
#: Figures of one delivery in 64, from its arrival to the outcome of a receiver: a lost link gives none.
_SAMPLED: Final = frozenset({"latency", "latency_seconds"})
_DECISIONS: Final = frozenset({"relayed", "decided", "decisions"})
#: And on when those who divide credit are told of what was relayed, which is as soon as it matters to them.
_DEMAND: Final = frozenset({"demand", "granted", "credit", "reason", "zero_credit_in", "zero_credit_out"})
_IGNORED: Final = _OCTETS | _DECISIONS | _SAMPLED
_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})


def statistics(core: Core, *, at_once: bool) -> dict[str, Any]:
    """Return the router's statistics, but for those. Args: at_once: whether the divider of credit was told."""
    told: dict[str, Any] = _told(snapshot(core), _IGNORED if at_once else _IGNORED | _DEMAND)
    return told


def _told(value: Any, ignored: frozenset[str]) -> Any:
    """Return a copy made of dictionaries and lists. Histories take statistics after each step: it has to be cheap."""
    kind = type(value)
    if kind in _ATOMS or issubclass(kind, Enum):
        return value
    if issubclass(kind, dict):
        return {key: _told(each, ignored) for key, each in value.items() if key not in ignored}
    if issubclass(kind, list | tuple):
        return [_told(each, ignored) for each in value]
    if is_dataclass(kind):
        return {name: _told(getattr(value, name), ignored) for name in _names(kind) if name not in ignored}
    return deepcopy(value)


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))
