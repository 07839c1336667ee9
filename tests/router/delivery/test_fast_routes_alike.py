"""Equal results of the fast path and of decided deliveries: the same octets in, the same out."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.events import TransferReceived
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Modified, Received, Rejected
from amqpmesh.router.amqp.standard.messaging import (
    AmqpValue,
    DeliveryAnnotations,
    Header,
    MessageAnnotations,
    Properties,
    Source,
    Target,
)
from amqpmesh.router.amqp.standard.performatives import Attach, Close, Detach, End
from amqpmesh.router.config.file import AddressConfig, ListenerConfig, Overflow
from amqpmesh.router.kernel import (
    ACCEPTED_STATE,
    FAILED_STATE,
    RELEASED_STATE,
    UNDELIVERABLE_STATE,
)
from amqpmesh.router.management.snapshot import snapshot
from tests.support.data.encodings import mutated
from tests.support.peers.scripted import frame
from tests.support.worlds.kernel_router import FRAMES, frames
from tests.support.worlds.meshes import World
from tests.support.worlds.network import OUTCOMES, Network, message
from tests.support.worlds.side_by_side import M, Wired, disposition, relaying, statistics, transfer

CONFIGS: Final = (
    AddressConfig(pattern="near", distribution=Distribution.CLOSEST),
    AddressConfig(pattern="few", max_unsettled=2, max_credit=3, delivery_annotations=DeliveryAnnotationsRule.DROP),
    AddressConfig(pattern="news", distribution=Distribution.MULTICAST),
    AddressConfig(pattern="again", redeliver=True, attempts=2),
    AddressConfig(pattern="dropping", distribution=Distribution.MULTICAST, overflow=Overflow.DROP, overflow_time=0.1),
)
#: By handle: what producers and consumers name, and in which mode.
LINKS: Final = (
    (0, "q", 0),
    (1, "q", 1),
    (2, "few", 0),
    (3, "near", 1),
    (4, "news", 0),
    (5, "again", 0),
    (6, "news", 1),
    (7, "dropping", 0),
)


def _body(text: object) -> bytes:
    return encode_composite(AmqpValue(value=text))  # type: ignore[arg-type]  # any AMQP value


def _annotated(kind: type[DeliveryAnnotations | MessageAnnotations], key: str) -> bytes:
    return encode_composite(kind(value={Symbol(key): "yes"})) + _body("annotated")


PAYLOADS: Final = (
    message("plain"),
    message("no header", header=False),
    message("to", to="q"),
    message("ttl", ttl=60_000),
    message("for ever", ttl=0),
    message("short", ttl=1),
    message("urgent", priority=9),
    b"\x00\x53\x70\x45" + _body("empty header"),
    b"\x00\x53\x70\xc0\x04\x02\x41\x50\x04" + _body("durable"),
    b"\x00\x53\x70\xc0\x03\x02\x56\x01\x50\x04" + _body("odd durable"),
    b"\x00\x53\x70\xd0\x00\x00\x00\x06\x00\x00\x00\x02\x41\x40" + _body("list32"),
    b"\x00\xa3\x10amqp:header:list\x45" + _body("symbolic"),
    b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x70\x45" + _body("wide descriptor"),
    b"\x00\x53\x70\xc0\x04\x03\x40\x40\x43" + _body("ttl0"),
    b"\x00\x53\x70\xc0\x02\x03\x40\x40" + _body("fewer fields than it says"),
    b"\x00\x53\x70\x45\x00\x53\x70\x45" + _body("twice"),
    b"\x00\x53\x72\x45\x00\x53\x71\x45" + _body("out of order"),
    b"\x00\x53\x72\xc1\x7f\x00" + _body("longer than it is"),
    _annotated(DeliveryAnnotations, "x-opt-mesh-to"),
    _annotated(DeliveryAnnotations, "x-opt-other"),
    _annotated(MessageAnnotations, "x-opt-mesh-to"),
    encode_composite(Header(ttl=5000)) + _annotated(DeliveryAnnotations, "x-opt-other"),
    encode_composite(Properties(to="q")),
    message("x" * 300),
    message("x" * 2000),
    b"\x00\x53\x70\x45",
    b"\x00\x53",
    b"",
    b"\x00\x53\x77",
    b"anything",
)
STATES: Final = (
    ACCEPTED_STATE,
    ACCEPTED_STATE,
    b"\x00\x53\x24\xc0\x01\x00",
    RELEASED_STATE,
    FAILED_STATE,
    UNDELIVERABLE_STATE,
    encode_composite(OUTCOMES["rejected"]),
    encode_composite(OUTCOMES["modified"]),
    encode_composite(Rejected()),
    encode_composite(Modified()),
    encode_composite(Received(section_number=0, section_offset=0)),
    b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x24\x45",
    None,
)
STYLES: Final = ("compact", "compact", "full", "wide")
USUAL: Final = {
    "handle": 0,
    "settled": -1,
    "second": -1,
    "message_format": 0,
    "style": "compact",
    "payload": PAYLOADS[0],
    "id": 0,
    "tag": "own",
    "frames": 1,
    "held": 0,
    "end": "whole",
    "reckless": False,
}


class Dice:
    """The random choices of a history: mostly usual steps, sometimes unusual ones."""

    def __init__(self, seed: int, odd: float) -> None:
        """Args: odd: the share of unusual choices, 0..1."""
        self.random = Random(seed)
        self.odd = odd
        self.narrow = 2 if seed % 2 else 1000
        self.windows: tuple[int, ...] = ()

    def usually(self, usual: Any, *others: Any) -> Any:
        """Return the usual value, or sometimes one of the others."""
        return self.random.choice(others) if self.random.random() < self.odd else usual

    def world(self, *, at_once: bool) -> dict[str, Any]:
        """Return the settings of routers and links. Args: at_once: see `Wired`."""
        usually, random = self.usually, self.random
        return {
            "first_id": random.choice([0, M - 3]),
            "max_frame_size": usually(4096, 512),
            "at_once": at_once,
            # Counts that arrive later find other windows closed, and so another demand.
            "window": usually(1000, 1, 3) if at_once else 1000,
            "session_window": usually(64, 1, 3),
            "narrow": self.narrow,
            "output_backlog": usually(2**18, 1, 600),
            "max_owed": usually(5000, 2),
            "selective": usually(False, True),
            # Of a mesh: the routers of both producers and both consumers; whether B is no neighbour of C.
            "places": "AACC" if random.random() < 0.5 else "AACB",
            "star": False,
            "snd": usually(2, 0, 1),
            "max_message_size": usually(0, 200),
            "credit": usually(20, 1, 0, 5),
            "consumers": [(random.randint(2, 3), random.randint(0, 5)) for _ in range(random.randrange(9))],
        }

    def steps(self, count: int, *, at_once: bool) -> list[tuple[Any, ...]]:
        """Return the steps of a history."""
        self.windows = (0, 1, 3) if at_once else (1000,)
        kinds = ["send", "resume", "say", "credit", "wait", "attach", "detach", "stop", "leave"]
        weights = [40, 20, 40, 15, 5, 4, 100 * self.odd / 5, 100 * self.odd / 5, 100 * self.odd / 10]
        return [getattr(self, f"_{kind}")() for kind in self.random.choices(kinds, weights, k=count)]

    def _send(self) -> tuple[Any, ...]:
        deliveries = [self.delivery() for _ in range(self.random.randint(1, 8))]
        return "send", self.usually(0, 1), deliveries, self._cuts()

    def _cuts(self) -> list[int]:
        return [self.random.randrange(2000) for _ in range(self.usually(0, 1, 2, 3))]

    def delivery(self) -> dict[str, Any]:
        """Return a delivery to send."""
        usually, random = self.usually, self.random
        rarely = random.random() < self.odd / 3
        return {
            "handle": usually(random.choice([0, 0, 1]), 2, 3, 4, 5, 99 if rarely else 0),
            "settled": random.choice([-1, -1, -1, 0, 1]),
            "second": usually(-1, 0, 1 if rarely else 0),
            "message_format": usually(random.choice([0, 0, -1]), 1, 7),
            "style": random.choice(STYLES),
            "payload": usually(random.choice(PAYLOADS[:6]), *PAYLOADS),
            # The difference from the right id, the tag, the number of frames, and their end.
            "id": usually(0, 1, -1, M // 2) if rarely else 0,
            "tag": usually("own", "empty", "long", *(("again", "none") if rarely else ())),
            "frames": random.choice([1, 1, 1, 1, 2, 3, 5]),
            # The number of frames that come later, before the next delivery on the link.
            "held": random.choice([0, 0, 0, 1, 2]),
            "end": usually("whole", "aborted", "settled", "open" if rarely else "whole"),
            # True: send it even without credit.
            "reckless": rarely,
        }

    def _resume(self) -> tuple[Any, ...]:
        return "resume", self.usually(0, 1), self.random.choice([0, 0, 1, 2, 3])

    def _say(self) -> tuple[Any, ...]:
        usually, random = self.usually, self.random
        sayings = []
        for _ in range(random.randint(1, 4)):
            # From the first delivery without a disposition, or from any.
            first = usually(None, random.randrange(30))
            span = random.choice([0, 0, 1, 3, usually(10, -1, M // 2 - 1, M // 2)])
            state = usually(ACCEPTED_STATE, *STATES)
            role = usually("usual", "other")
            sayings.append((first, span, state, usually(random.random() < 0.7, True), role, random.choice(STYLES)))
        return "say", random.choice([0, 2, 2, 3]), sayings, self._cuts()

    def _credit(self) -> tuple[Any, ...]:
        random, usually = self.random, self.usually
        handle = random.randint(0, usually(1, 5))
        window = usually(1000, *self.windows)
        return (
            "credit",
            random.randint(2, 3),
            handle,
            random.randint(0, 20),
            window,
            usually(False, True),
            usually(0, -1),
        )

    def _wait(self) -> tuple[Any, ...]:
        return "wait", self.usually(0.01, 0.3, 2.0)

    def _attach(self) -> tuple[Any, ...]:
        return "attach", self.random.randrange(4), self.random.randrange(6)

    def _detach(self) -> tuple[Any, ...]:
        return "detach", self.random.randrange(4), self.random.randrange(6), self.random.random() < 0.5

    def _stop(self) -> tuple[Any, ...]:
        return "stop", self.random.randrange(4)

    def _leave(self) -> tuple[Any, ...]:
        return self.random.choice(["end", "lose", "close"]), self.random.randrange(4)


class MulticastDice(Dice):
    """The random choices of a history of multicasts."""

    #: Handles of links to multicast addresses, the first one usual.
    HANDLES: Final = (4, 6, 7)

    def world(self, *, at_once: bool) -> dict[str, Any]:
        """Return the settings of routers and links. Args: at_once: see `Wired`."""
        consumers = [(number, handle) for number in (2, 3) for handle in self.HANDLES]
        self.random.shuffle(consumers)
        count = self.usually(len(consumers), *range(2, len(consumers)))
        return {**super().world(at_once=at_once), "consumers": consumers[:count]}

    def delivery(self) -> dict[str, Any]:
        """Return a delivery to send."""
        handle = self.random.choice(self.HANDLES)
        return {**super().delivery(), "handle": self.usually(handle, 0), "frames": self.usually(1, 2, 3)}

    def _credit(self) -> tuple[Any, ...]:
        name, number, _, *rest = super()._credit()
        return name, number, self.random.choice(self.HANDLES), *rest

    def _attach(self) -> tuple[Any, ...]:
        return "attach", self.random.randrange(4), self.random.choice(self.HANDLES)

    def _detach(self) -> tuple[Any, ...]:
        return "detach", self.random.randrange(4), self.random.choice(self.HANDLES), self.random.random() < 0.5


class Bench:
    """Two producers and two consumers, of one router, of three in a row, or with two neighbours of one between them."""

    links: tuple[tuple[int, str | None, int], ...] = LINKS
    #: Seconds from the loss of all peers until nothing is left.
    rest = 5.0

    def __init__(self, world: dict[str, Any], *, mesh: bool) -> None:
        self.world = world
        listener = ListenerConfig(
            url="amqp://127.0.0.1:0",
            name="test",
            idle_time_out=0.0,
            session_window=world["session_window"],
            output_backlog=world["output_backlog"],
            max_owed=world["max_owed"],
            max_frame_size=4096,
        )
        if mesh:
            edges = [("A", "B"), ("A" if world["star"] else "B", "C")]
            self.mesh: World | None = World("ABC", edges, *CONFIGS)
            nodes = [self.mesh[router] for router in world["places"]]
            self.networks = [self.mesh[router] for router in "ABC"]
        else:
            self.mesh = None
            self.networks = [Network(*CONFIGS)]
            nodes = self.networks * 4
        self.peers = [
            Wired(
                node.core,
                lambda node=node: node.now if self.mesh is None else self.mesh.now,
                listener,
                first_id=world["first_id"],
            )
            for node in nodes
        ]
        for peer in self.peers:
            peer.at_once = world["at_once"]
        self.log: list[Any] = []
        #: Frames that come later, by peer and handle.
        self.held: dict[tuple[int, int], list[bytes]] = {}
        #: The first delivery that nobody has spoken of, by peer.
        self.said = [0, 0, 0, 0]
        for number, peer in enumerate(self.peers):
            peer.open(max_frame_size=4096 if number < 2 else world["max_frame_size"])
        self.run()
        for network in self.networks:
            for record in network.core.context.connections:
                record.engine.flow_state.narrow = world["narrow"]
        for number, handle in ((2, 0), (2, 1), *world["consumers"]):
            self.attach(number, handle)
            if self.peers[number].ways[handle].count == 0:
                self.credit(number, handle, world["credit"], world["window"], False, 0)
        for handle, _, _ in self.links:
            self.attach(0, handle)
        self.attach(1, 0)
        self.attach(1, 1)
        self.wait(0.3)

    def play(self, steps: list[tuple[Any, ...]]) -> list[Any]:
        """Do the steps. Returns: the frames that each peer got in each step."""
        self.note("setup")
        for name, *arguments in steps:
            getattr(self, name)(*arguments)
            self.run()
            self.note(name)
        for peer in self.peers:
            peer.stopped = False
        self.wait(1.0)
        self.note("rest")
        for peer in self.peers:
            peer.write(frame(Close()))
        self.wait(1.0)
        for peer in self.peers:
            peer.lose()
        self.wait(self.rest)
        for network in self.networks:
            assert network.core.context.in_flight == 0
            assert snapshot(network.core).router.buffered == 0
        if self.mesh is None:
            assert snapshot(self.networks[0].core).is_empty
        else:
            self.mesh.leave()
        self.note("end")
        return self.log

    def run(self) -> None:
        """Carry octets until there are no more."""
        for _ in range(1000):
            if self.mesh is not None:
                self.mesh.run()
            if sum(peer.read() for peer in self.peers) == 0:
                return
        raise AssertionError("it does not come to rest")

    def note(self, name: str) -> None:
        """Note the frames that each peer has got in a step."""
        seen = []
        for peer in self.peers:
            noted = peer.take()
            ways = [(handle, way.count, way.limit, way.attached) for handle, way in sorted(peer.ways.items())]
            seen.append((noted.transfers, noted.frames, sorted(noted.dispositions.items()), ways, peer.lost))
        self.log.append(
            (name, seen, [statistics(network.core, at_once=self.world["at_once"]) for network in self.networks])
        )

    # The steps.

    def send(self, number: int, deliveries: list[dict[str, Any]], cuts: list[int]) -> None:
        peer = self.peers[number]
        octets = bytearray()
        for each in deliveries:
            handle = each["handle"]
            way = peer.ways.get(handle)
            room = (peer.window_limit - peer.sent_frames) % M
            if way is None:
                if not each["reckless"]:
                    continue
            elif not each["reckless"] and (not way.attached or way.limit <= way.count or room < 8):
                continue
            octets += self._rest(number, handle)
            frames = self._delivery(peer, way, each)
            later = min(each["held"], len(frames) - 1)
            self.held[number, handle] = frames[len(frames) - later :]
            peer.sent_frames += len(frames) - later
            octets += b"".join(frames[: len(frames) - later])
        peer.write(bytes(octets), cuts)

    def resume(self, number: int, handle: int) -> None:
        way = self.peers[number].ways.get(handle)
        if way is not None and way.attached:
            self.peers[number].write(self._rest(number, handle))

    def _rest(self, number: int, handle: int) -> bytes:
        """Return the frames left of a half-sent delivery."""
        frames = self.held.pop((number, handle), [])
        self.peers[number].sent_frames += len(frames)
        return b"".join(frames)

    def _delivery(self, peer: Wired, way: Any, each: dict[str, Any]) -> list[bytes]:
        number = (peer.next_id + each["id"]) % M
        tag = {
            "own": peer.next_id.to_bytes(4, "big"),
            "again": ((peer.next_id - 1) % M).to_bytes(4, "big"),
            "empty": b"",
            "long": b"t" * 32,
            "none": None,
        }[each["tag"]]
        peer.next_id = (peer.next_id + 1) % M
        if way is not None:
            way.count += 1
        payload = each["payload"]
        frames, end = each["frames"], each["end"]
        if end == "aborted" or end == "settled":
            frames = max(frames, 2)
        parts = [payload[at * len(payload) // frames : (at + 1) * len(payload) // frames] for at in range(frames)]
        settled = self.world["snd"] if self.world["snd"] != 2 else each["settled"]
        written = []
        for at, part in enumerate(parts):
            last = at == frames - 1
            octets = transfer(
                number if at == 0 else -1,
                tag if at == 0 else None,
                b"" if last and end == "aborted" else part,
                handle=each["handle"],
                settled=1 if last and end == "settled" else settled,
                more=not last or (end == "open" and at > 0),
                second=each["second"] if at == 0 else -1,
                message_format=each["message_format"] if at == 0 else -1,
                aborted=last and end == "aborted",
                style=each["style"],
            )
            written.append(octets)
        return written

    def raw(self, number: int, octets: bytes, cuts: list[int]) -> None:
        self.peers[number].write(octets, cuts)

    def say(self, number: int, sayings: list[tuple[Any, ...]], cuts: list[int]) -> None:
        peer = self.peers[number]
        octets = b""
        for first, span, state, settled, role, style in sayings:
            if first is None:
                first, self.said[number] = self.said[number], self.said[number] + span % 100 + 1
            start = (peer.first_id + first) % M
            octets += disposition(
                start,
                (start + span) % M,
                state,
                receiver=(number >= 2) == (role == "usual"),
                settled=settled,
                style="compact" if style == "full" else style,
            )
        peer.write(octets, cuts)

    def credit(self, number: int, handle: int, credit: int, window: int, drain: bool, of: int) -> None:
        peer = self.peers[number]
        way = peer.ways.get(handle)
        if way is not None and way.attached and not (peer.ended or peer.lost):
            peer.credit(handle, credit, window=window, drain=drain, of=of)
            self.run()

    def attach(self, number: int, handle: int) -> None:
        peer = self.peers[number]
        if peer.ended or peer.lost or (handle in peer.ways and peer.ways[handle].attached):
            return
        _, address, mode = self.links[handle]
        selective = self.world["selective"] and number < 2
        limited = self.world["max_message_size"] if number >= 2 else 0
        peer.attach(
            Attach(
                name=f"{number}-{handle}",
                handle=handle,
                role=Role.SENDER if number < 2 else Role.RECEIVER,
                source=Source(address=address, outcomes=(Symbol("amqp:rejected:list"),) if selective else ()),
                target=Target(address=address),
                snd_settle_mode=SenderSettleMode(self.world["snd"]) if number < 2 else SenderSettleMode.MIXED,
                rcv_settle_mode=ReceiverSettleMode(mode),
                initial_delivery_count=0 if number < 2 else None,
                max_message_size=limited or None,
            )
        )
        self.run()

    def detach(self, number: int, handle: int, closed: bool) -> None:
        peer = self.peers[number]
        way = peer.ways.get(handle)
        if way is not None and way.attached and not (peer.ended or peer.lost):
            way.attached = False
            peer.write(frame(Detach(handle=handle, closed=closed)))

    def wait(self, seconds: float) -> None:
        if self.mesh is not None:
            self.mesh.advance(seconds)
            self.run()
            self.mesh.advance(0.01)
        else:
            network = self.networks[0]
            end = network.now + seconds
            while (due := network.core.next_timer()) is not None and due <= end:
                network.now = max(network.now, due)
                network.core.handle_timer(network.now)
                self.run()
            network.now = end
            network.core.handle_timer(end)
        self.run()

    def stop(self, number: int) -> None:
        self.peers[number].stopped = not self.peers[number].stopped

    def end(self, number: int) -> None:
        peer = self.peers[number]
        if not (peer.ended or peer.lost):
            peer.write(frame(End()))

    def lose(self, number: int) -> None:
        self.peers[number].lose()

    def close(self, number: int) -> None:
        peer = self.peers[number]
        if not peer.ended:
            peer.write(frame(Close()))


class LevelBench(Bench):
    """A bench where no sender goes ahead: they do so after what the kernel has relayed, not after what was decided."""

    def __init__(self, world: dict[str, Any], *, mesh: bool) -> None:
        super().__init__(world, mesh=mesh)
        for network in self.networks:
            network.core.context.kernel.ahead_at_once = 0


def played(
    world: dict[str, Any], steps: list[tuple[Any, ...]], *, mesh: bool, alone: bool, bench: type[Bench] = Bench
) -> tuple[list[Any], int]:
    """Play a history. Returns: the frames that each peer got in each step, and the number of decided transfers."""
    with relaying(alone=alone) as events:
        log = bench(world, mesh=mesh).play(steps)
    return log, events[TransferReceived]


def check(world: dict[str, Any], steps: list[tuple[Any, ...]], *, mesh: bool, bench: type[Bench] = Bench) -> None:
    """Play a history on the fast path and decided, and compare what the peers got in each step."""
    relayed, _ = played(world, steps, mesh=mesh, alone=True, bench=bench)
    decided, _ = played(world, steps, mesh=mesh, alone=False, bench=bench)
    for step, (one, other) in enumerate(zip(relayed, decided, strict=True)):
        assert one == other, (step, one[0])


SEEDS: Final = st.integers(0, 2**32 - 1)
ODD: Final = st.sampled_from([0.02, 0.1, 0.3])


@pytest.mark.parametrize("at_once", [False, True])
@settings(max_examples=30)
@given(SEEDS, st.integers(0, 40), ODD)
def test_one_router_relays_what_it_would_have_decided(at_once: bool, seed: int, count: int, odd: float) -> None:
    dice = Dice(seed, odd)
    check(dice.world(at_once=at_once), dice.steps(count, at_once=at_once), mesh=False, bench=LevelBench)


@pytest.mark.parametrize("at_once", [False, True])
@settings(max_examples=30)
@given(SEEDS, st.integers(0, 40), ODD)
def test_it_relays_multicasts_as_it_would_have_decided_them(at_once: bool, seed: int, count: int, odd: float) -> None:
    dice = MulticastDice(seed, odd)
    check(dice.world(at_once=at_once), dice.steps(count, at_once=at_once), mesh=False, bench=LevelBench)


@settings(max_examples=12)
@given(SEEDS, st.integers(0, 40), ODD)
@example(3170611280, 33, 0.02)  # a link gets more credit as shares shrink, while deliveries of another link pass
@example(1326315249, 37, 0.3)
def test_so_do_several(seed: int, count: int, odd: float) -> None:
    dice = Dice(seed, odd)
    check(dice.world(at_once=False), dice.steps(count, at_once=False), mesh=True, bench=LevelBench)


@settings(max_examples=12)
@given(SEEDS, st.integers(0, 40), ODD, st.sampled_from(["AABC", "AAAC", "BAAB", "ACBC"]), st.booleans())
@example(3177609664, 35, 0.1, "ACBC", True)  # a delivery waits at the node of one share while another one is open
def test_so_do_several_whose_consumers_are_at_several(
    seed: int, count: int, odd: float, places: str, star: bool
) -> None:
    dice = Dice(seed, odd)
    world = dice.world(at_once=False)
    everywhere = [(number, handle) for number in (2, 3) for handle in (0, 1, 3)]
    world = {**world, "places": places, "star": star, "consumers": everywhere}
    check(world, dice.steps(count, at_once=False), mesh=True, bench=LevelBench)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 2]), st.sampled_from(FRAMES).flatmap(mutated) | frames() | st.binary(max_size=12)
        ),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(0, 200), max_size=3),
)
def test_whatever_bytes_come_they_are_read_as_they_would_have_been(
    parts: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    world = {**Dice(0, 0.0).world(at_once=False), "first_id": 0, "consumers": []}
    octets = {number: b"".join(part for to, part in parts if to == number) for number in (0, 2)}
    check(
        world,
        [
            ("send", 0, [USUAL] * 3, []),
            ("raw", 0, octets[0], cuts),
            ("raw", 2, octets[2], cuts),
            ("send", 0, [USUAL] * 2, []),
        ],
        mesh=False,
    )


def test_a_sender_whose_credit_is_relayed_away_is_given_more_as_soon_as_it_would_have_been() -> None:
    world = {**Dice(0, 0.0).world(at_once=False), "credit": 20, "consumers": []}
    other = {**USUAL, "handle": 1}
    # The delivery is aborted in the middle of its header: no frame of it has left.
    first = [USUAL, other, {**USUAL, "payload": message(ttl=60_000), "end": "aborted"}]
    check(world, [("send", 0, first, []), ("send", 0, [other], [])], mesh=False)


@pytest.mark.parametrize("choices", [Dice, MulticastDice])
def test_histories_are_of_use(choices: type[Dice]) -> None:
    came = relayed = 0
    for seed in range(4):
        dice = choices(seed, 0.05)
        world, steps = dice.world(at_once=False), dice.steps(40, at_once=False)
        _, decided = played(world, steps, mesh=False, alone=True)
        _, whole = played(world, steps, mesh=False, alone=False)
        came += whole
        relayed += whole - decided
    assert came > 100
    assert relayed * 3 > came
